"""What is compared: every candidate with its options, the controls first, and the few that go on to larger problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..experiments import Grid
from ..optim import METHODS

__all__ = ["CANDIDATES", "CONTROLS", "FINALISTS", "Candidate", "find"]

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

    def grid(self, rates: Iterable[float], **more: Any) -> Grid:
        """Return the runs of this candidate: one for every learning rate, with more options of its rule if given."""
        return Grid(self.method, {"lr": list(rates), **{k: [v] for k, v in {**self.options, **more}.items()}})

    @property
    def clipped(self) -> bool:
        """Whether it clips."""
        return self.method.startswith("clipped-")


def _plain(method: str, **options: Any) -> Candidate:
    beta = {"beta": BETA} if "beta" in METHODS[method].optimizer.ranges else {}
    words = [f"{name.removeprefix('clip_').replace('_', ' ')} {value}" for name, value in options.items()]
    name = ", ".join([method, *words])
    return Candidate(name, method, {**beta, **options})


def _clipped(rule: str, **options: Any) -> Candidate:
    """Name a clipped rule by what is special about its clip."""
    made = _plain(f"clipped-{rule}", **options)
    words = {
        "clip": "c {:g}",
        "clip_rate": "rate {:g}",
        "clip_scale": "by {}",
        "clip_norm": "fixed {:g}",
        "feedback": "feedback {:g}",
        "fill_rate": "fill {:g}",
    }
    return Candidate(
        ", ".join([made.method, *(words[k].format(v) for k, v in options.items())]), made.method, made.options
    )


CONTROLS: tuple[Candidate, ...] = (
    _plain("async-sgd"),
    _plain("delay-adaptive"),
    _plain("momentum"),
    _plain("mu2", gamma=0.1),
    _plain("ordered-momentum"),
    _plain("catch-up"),
    _plain("ordered-mu2", gamma=0.1),
    _plain("ordered-mu2-anytime"),
)
"""The paper's methods, and catch-up."""

_FIXED = (
    *(_clipped(rule, clip_norm=1.0) for rule in ("async-sgd", "momentum", "ordered-momentum", "catch-up")),
    *(_clipped(rule, clip_norm=4.0) for rule in ("momentum", "catch-up")),
)
_ADAPTIVE = (
    *(_clipped(rule, clip=2.0) for rule in ("async-sgd", "momentum", "ordered-momentum", "catch-up")),
    *(_clipped(rule, clip=c) for c in (4.0, 10.0) for rule in ("momentum", "ordered-momentum", "catch-up")),
    *(_clipped(rule, clip=1.5) for rule in ("momentum", "catch-up")),
    *(_clipped("catch-up", clip=2.0, clip_rate=rate) for rate in (0.1, 0.001)),
    *(_clipped(rule, clip=2.0, clip_scale="tensor") for rule in ("momentum", "catch-up")),
    *(
        _clipped(rule, clip=2.0, clip_scale="delay")
        for rule in ("async-sgd", "momentum", "ordered-momentum", "catch-up")
    ),
    *(_clipped(rule, clip=4.0, clip_scale="delay") for rule in ("momentum", "catch-up")),
)
_REPAIRED = (
    *(_clipped("catch-up", clip=c, clip_scale="lateness") for c in (1.25, 1.5, 2.0)),
    *(_clipped(rule, clip=1.5, clip_scale="lateness") for rule in ("momentum", "ordered-momentum")),
    *(_clipped("catch-up", clip=2.0, feedback=leak) for leak in (0.5, 0.9, 1.0)),
    _clipped("momentum", clip=2.0, feedback=0.9),
    _clipped("catch-up", clip=2.0, clip_scale="delay", feedback=0.9),
)
_OTHERS = (
    *(_plain("catch-up-debt", rho=rho) for rho in (0.1, 0.03)),
    *(_plain("ordered-filled", fill_rate=rate) for rate in (0.01, 0.1)),
    _clipped("ordered-filled", clip=2.0),
    _clipped("ordered-filled", clip=4.0),
    _clipped("ordered-filled", clip=2.0, clip_scale="delay"),
    *(_plain("ordered-falling", power=power) for power in (0.5, 1.0)),
    _plain("ordered-adamw"),
    _plain("ordered-adamw-catch-up"),
)

CANDIDATES: Mapping[str, Candidate] = {
    each.name: each for each in (*CONTROLS, *_FIXED, *_ADAPTIVE, *_REPAIRED, *_OTHERS)
}
"""All of them by name, the controls first."""

FINALISTS: tuple[str, ...] = (
    "momentum",
    "ordered-momentum",
    "catch-up",
    "clipped-catch-up, fixed 1",
    "clipped-catch-up, c 1.5",
    "clipped-catch-up, c 1.5, by lateness",
    "clipped-momentum, c 1.5, by lateness",
)
"""Those that go on to all seeds, the larger problems and the harder settings: what led, and what says why it does."""


def find(method: str, options: Mapping[str, Any]) -> Candidate | None:
    """Return the candidate that a run was of, whatever its learning rate.

    Examples:
        >>> find("clipped-catch-up", {"lr": 0.1, "beta": 0.05, "clip": 2.0}).name
        'clipped-catch-up, c 2'
        >>> find("momentum", {"beta": 0.9}) is None
        True
    """
    own = {name: value for name, value in options.items() if name != "lr"}
    return next((c for c in CANDIDATES.values() if c.method == method and dict(c.options) == own), None)
