"""The candidates: balanced catch-up, and methods that isolate the effect of each of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from latecomer.experiments import Grid

__all__ = ["CANDIDATES", "RECOMMENDED", "Candidate", "find"]

BETA = 0.05
"""Beta of all candidates: the one at which the paper's ordering was most stable."""


@dataclass(frozen=True)
class Candidate:
    """A method with its options, without the learning rate.

    Args:
        name: Short name for tables and figures.
        method: A name in `latecomer.optim.METHODS`.
        options: Its options, without lr.

    Examples:
        >>> Candidate("momentum", "momentum", {"beta": 0.05}).grid([0.1, 0.2]).combinations()
        [{'lr': 0.1, 'beta': 0.05}, {'lr': 0.2, 'beta': 0.05}]
    """

    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """``"adam"`` if it divides by a running second moment: its learning rates are on another scale."""
        return "adam" if self.method.endswith("adamw") else "momentum"

    def grid(self, rates: Iterable[float], **more: Any) -> Grid:
        """Return the runs of this candidate: one for every learning rate, with additional options if given."""
        return Grid(self.method, {"lr": list(rates), **{k: [v] for k, v in {**self.options, **more}.items()}})


CANDIDATES: Mapping[str, Candidate] = {
    each.name: each
    for each in (
        Candidate("momentum", "momentum", {"beta": BETA}),
        Candidate("ordered-momentum", "ordered-momentum", {"beta": BETA}),
        Candidate("catch-up", "catch-up", {"beta": BETA}),
        Candidate("catch-up-adamw", "catch-up-adamw", {"beta": BETA}),
        Candidate("clipped-catch-up, fixed 1", "clipped-catch-up", {"beta": BETA, "clip_at": 1.0}),
        Candidate("clipped-catch-up, c 1.5", "clipped-catch-up", {"beta": BETA, "clip": 1.5}),
        Candidate("balanced-catch-up", "balanced-catch-up", {"beta": BETA}),
        Candidate("balanced-momentum", "balanced-momentum", {"beta": BETA}),
    )
}
"""Candidates by name: rules without a clip, then the parts of balanced catch-up one by one."""

RECOMMENDED = "balanced-catch-up"
"""The candidate whose lead over the others is shown."""


def find(
    method: str, options: Mapping[str, Any], among: Iterable[Candidate] = tuple(CANDIDATES.values())
) -> Candidate | None:
    """Return the candidate of a run, whatever its learning rate.

    Examples:
        >>> find("clipped-catch-up", {"lr": 0.1, "beta": 0.05, "clip": 1.5}).name
        'clipped-catch-up, c 1.5'
        >>> find("momentum", {"beta": 0.9}) is None
        True
    """
    own = {name: value for name, value in options.items() if name != "lr"}
    return next((c for c in among if c.method == method and dict(c.options) == own), None)
