"""How fair a method is to slow samples: their influence after clipping, and the bias where the optimum is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..delays import DataDependent
from ..problems import TwoCentres
from ..simulation import simulate
from ..trace import Trace
from .measured import Watch

__all__ = ["PROBLEMS", "Fairness", "measure"]

PROBLEMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "near": {"distance": 3.0},
        "far": {"distance": 10.0},
        "loud": {"distance": 3.0, "slow_noise": 5.0},
        "heavy-tailed": {"distance": 3.0, "slow_noise": 2.0, "tail": 1.5},
    }
)
"""Arguments of `TwoCentres`: slow gradients like the fast ones, larger by signal, larger by noise, heavy-tailed."""


@dataclass(frozen=True)
class Fairness:
    """What `measure` found.

    Attributes:
        excess: Excess loss of the mean of the last half of the iterates, at the share of slow samples that arrived;
            infinite if the run diverged.
        slow_over_fast: Mean influence of a slow arrival over that of a fast one, with what the clip did.
        declared: The same without what the clip did.
        clipped: Share of the counted arrivals that were clipped, fast and slow.

    Examples:
        >>> Fairness(0.5, 0.8, 1.0, (0.0, 0.4)).slow_over_fast
        0.8
    """

    excess: float
    slow_over_fast: float
    declared: float
    clipped: tuple[float, float]


def measure(
    problem: str | TwoCentres,
    method: str,
    *,
    lr: float = 0.003,
    steps: int = 20_000,
    workers: int = 7,
    slow_share: float = 0.1,
    trace: Trace | None = None,
    seed: int = 0,
    **options: Any,
) -> Fairness:
    """Run a method on a two-centre quadratic and return how fair it was.

    Args:
        problem: A name in `PROBLEMS`, or a problem.
        method: A name in `latecomer.optim.METHODS`.
        lr: Learning rate.
        steps: Arrivals; half of them to get there, half to average over.
        workers: M of the data-dependent delays.
        slow_share: Share of slow samples.
        trace: Another schedule of two groups instead.
        seed: Draws the schedule and the samples.
        **options: Hyper-parameters of the method.

    Examples:
        >>> short = {"steps": 1000, "lr": 0.03, "beta": 0.1}
        >>> fair, unfair = (measure("near", name, **short) for name in ("catch-up", "ordered-momentum"))
        >>> fair.slow_over_fast, round(unfair.slow_over_fast, 1), fair.excess < unfair.excess
        (1.0, 0.3, True)
    """
    if isinstance(problem, str):
        if problem not in PROBLEMS:
            raise ValueError(f"Unknown problem {problem!r} (expected one of {', '.join(PROBLEMS)})")
        problem = TwoCentres(**PROBLEMS[problem], slow_share=slow_share)
    if trace is None:
        trace = DataDependent(workers=workers, slow_share=slow_share, exact=False).trace(steps=steps, seed=seed)
    watch = Watch(problem, len(trace))
    run = simulate(problem, method, trace, lr=lr, evaluate_every=len(trace), watch=watch, **options)
    seen = {name: math.nan if value is None else value for name, value in watch.outcome(run).items()}
    return Fairness(
        excess=math.inf if run.diverged_at is not None else seen["excess"],
        slow_over_fast=seen["slow_over_fast"],
        declared=seen["declared"],
        clipped=(seen["clipped_fast"], seen["clipped_slow"]),
    )
