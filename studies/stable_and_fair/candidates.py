"""What is compared: balanced catch-up, and the methods that say which part of it does what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from latecomer.experiments import Grid

__all__ = ["CANDIDATES", "RECOMMENDED", "Candidate", "find"]

BETA = 0.05
"""Of all of them: the beta at which the paper's ordering was most stable."""


@dataclass(frozen=True)
class Candidate:
    """A method with its options; the learning rate is what it is judged over.

    Args:
        name: For tables and figures, short.
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
        """Return the runs of this candidate: one for every learning rate, with more options of its rule if given."""
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
"""By name: the rules without a clip, then what each part of balanced catch-up does by itself."""

RECOMMENDED = "balanced-catch-up"
"""Whose lead over the others is told."""


def find(method: str, options: Mapping[str, Any]) -> Candidate | None:
    """Return the candidate that a run was of, whatever its learning rate.

    Examples:
        >>> find("clipped-catch-up", {"lr": 0.1, "beta": 0.05, "clip": 1.5}).name
        'clipped-catch-up, c 1.5'
        >>> find("momentum", {"beta": 0.9}) is None
        True
    """
    own = {name: value for name, value in options.items() if name != "lr"}
    return next((c for c in CANDIDATES.values() if c.method == method and dict(c.options) == own), None)
