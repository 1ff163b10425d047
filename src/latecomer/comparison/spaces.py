"""What each method is tuned over: a log grid of learning rates, and its own options at declared values.

Every method gets the same number of configurations. A method with several values of an option gets fewer rates, and one
without a learning rate has a single configuration.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..optim import METHODS

__all__ = ["SPACES", "Space", "configurations"]

Family = Literal["sgd", "adam"]


@dataclass(frozen=True)
class Space:
    """What a method is tuned over.

    Args:
        family: Which of a problem's ranges of learning rates it takes.
        scale: A factor on that range, where a method's learning rate means something else.
        values: Its own options, each with the values to try.
        per_worker: Options that are these multiples of the number of workers, rounded up.
        per_arrival: Whether the rates are divided by half the number of arrivals, as for weights that grow with t.
        tuned: False for a method without a learning rate, which has one configuration.

    Examples:
        >>> space = Space(values={"beta": (0.1, 0.01)})
        >>> [each["lr"] for each in configurations(space, (0.01, 1.0), count=4, workers=8, arrivals=100)]
        [0.01, 0.01, 1.0, 1.0]
    """

    family: Family = "sgd"
    scale: float = 1.0
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    per_worker: Mapping[str, float] = field(default_factory=dict)
    per_arrival: bool = False
    tuned: bool = True


_BETA = {"beta": (0.1,)}
_AVERAGED = 8.0  # one update of as many arrivals as there are workers, or a step divided by the delay
_HEAVY_BALL = 0.1  # rules whose momentum adds gradients up, so that a step is 1 / beta times as long

SPACES: Mapping[str, Space] = {
    "async-sgd": Space(),
    "delay-adaptive": Space(),
    "delay-filtered": Space(per_worker={"threshold": 2.0}),
    "momentum": Space(values=_BETA),
    "mu2": Space(values=_BETA),
    "ordered-momentum": Space(values=_BETA),
    "catch-up": Space(values=_BETA),
    "ordered-mu2": Space(values=_BETA),
    "ordered-mu2-anytime": Space(per_arrival=True),
    "catch-up-adamw": Space("adam"),
    "clipped-catch-up": Space(values=_BETA),
    "balanced-catch-up": Space(values=_BETA),
    "balanced-momentum": Space(values=_BETA),
    "balanced-adamw": Space("adam"),
    "rate-free": Space(tuned=False),
    "ormo": Space(scale=_HEAVY_BALL, values=_BETA),
    "ormo-da": Space(scale=_HEAVY_BALL, values={**_BETA, "L": (1.0,)}),
    "ringmaster": Space(per_worker={"R": 1.0}),
    "ringmaster-stop": Space(per_worker={"R": 1.0}),
    "ringleader": Space(),
    "rennala": Space(scale=_AVERAGED, per_worker={"S": 1.0}),
    "sync-minibatch": Space(scale=_AVERAGED),
    "async-minibatch": Space(scale=_AVERAGED, values=_BETA, per_worker={"B": 1.0}),
    "picky": Space(values={"radius": (0.3, 3.0)}),
    "staleness-aware": Space(scale=_AVERAGED),
    "dc-asgd": Space(values={"lam": (0.04,)}),
    "dana-zero": Space(scale=_HEAVY_BALL, values=_BETA),
    "asap": Space(values={"A": (0.5,)}),
    "fedbuff": Space(scale=_AVERAGED, per_worker={"K": 1.0}),
    "fadas": Space("adam", scale=3.0, per_worker={"K": 1.0}),
    "anytime-sgd": Space(per_arrival=True),
    "clipped": Space(values={"clip_at": (1.0, 10.0)}),
    "ringmaster-lmo": Space(values=_BETA, per_worker={"R": 1.0}),
    "ordered-adamw": Space("adam"),
}
"""Spaces of the library's methods; any other method gets the learning rates alone."""


def configurations(
    space: Space, rates: tuple[float, float], *, count: int, workers: int, arrivals: int
) -> list[dict[str, Any]]:
    """Return the configurations of a method.

    Args:
        space: What it is tuned over.
        rates: Smallest and largest learning rate of the problem.
        count: Number of configurations.
        workers: Number of workers.
        arrivals: Arrivals per run.
    """
    if not space.tuned:
        return [{}]
    own = [dict(zip(space.values, chosen, strict=True)) for chosen in itertools.product(*space.values.values())]
    if count % len(own):
        raise ValueError(f"{count} configurations cannot be {len(own)} combinations of options times some rates")
    factor = space.scale * (2.0 / arrivals if space.per_arrival else 1.0)
    low, high = (rate * factor for rate in rates)
    grid = [float(f"{rate:.2g}") for rate in np.geomspace(low, high, count // len(own))]
    fixed = {name: int(np.ceil(share * workers)) for name, share in space.per_worker.items()}
    return [{"lr": rate, **fixed, **each} for rate in grid for each in own]


def space_of(method: str) -> Space:
    """Return the space of a method; one that is not the library's is tuned over the learning rate alone."""
    if method in SPACES:
        return SPACES[method]
    if "lr" not in METHODS[method].arguments:
        raise ValueError(
            f"The method {method} has no option lr (it has {', '.join(METHODS[method].arguments) or 'none'}), so it "
            "cannot be tuned: give its optimizer an argument lr"
        )
    return Space()
