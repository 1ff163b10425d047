"""The runs: six problems, the methods of the paper and ours over seven learning rates, and one method without any.

docs/rate-free.md has the same plan in words. It was committed before the first of these runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from latecomer.experiments import Grid, Sweep

from ..stable_and_fair.plans import CIFAR10S_DELAYS, PAPERS_DELAYS, TEXT, TEXTS_DELAYS

__all__ = ["METHODS", "OURS", "PROBLEMS", "RATES", "Goal", "Setting", "plan"]

OURS = "rate-free"
_MOMENTUM = {"beta": [0.1]}
_TWO_POINTS = {"beta": [0.1], "gamma": [0.1]}

RATES: Mapping[str, tuple[float, ...]] = {
    "sgd": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "adam": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
    "anytime": (1e-7, 1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3),
}
"""The seven learning rates of each kind of method; the weights of Algorithm 2 grow with t, so its rates are smaller."""
METHODS: Mapping[str, tuple[str, Mapping[str, list[Any]]]] = {
    "async-sgd": ("sgd", {}),
    "delay-adaptive": ("sgd", {}),
    "delay-filtered": ("sgd", {"threshold": [14.0]}),
    "momentum": ("sgd", _MOMENTUM),
    "mu2": ("sgd", _TWO_POINTS),
    "ordered-momentum": ("sgd", _MOMENTUM),
    "ordered-mu2": ("sgd", _TWO_POINTS),
    "ordered-mu2-anytime": ("anytime", {}),
    "catch-up": ("sgd", _MOMENTUM),
    "clipped-catch-up": ("sgd", _MOMENTUM),
    "balanced-catch-up": ("sgd", _MOMENTUM),
    "balanced-momentum": ("sgd", _MOMENTUM),
    "catch-up-adamw": ("adam", {}),
    "balanced-adamw": ("adam", {}),
}
"""The tuned methods: their kind, and their other options, which are the defaults or the middle of the paper's grid."""
LOGISTIC: Mapping[str, Any] = {"data": "mnist", "images": 60_000, "radius": None}
"""All images of MNIST, which no linear model separates: the loss has a minimum above zero."""
ON_CIFAR10 = ("momentum", "ordered-momentum", "balanced-catch-up", "catch-up-adamw", "balanced-adamw", "delay-adaptive")
"""The methods on CIFAR-10, whose runs are the slowest."""


@dataclass(frozen=True)
class Goal:
    """What the method without a learning rate has to reach, relative to the best tuned method's median.

    Args:
        kind: ``"score"`` for a metric of which more is better, ``"loss"`` and ``"excess"`` for less.
        margin: A score may be lower by this much, a loss higher by this share, an excess loss by this factor.
        metric: Column of the history.
        collapsed: Scores below, or losses above, count as a collapse.

    Examples:
        >>> Goal("score", 0.02, "f1", 0.5).within(0.95, 0.96), Goal("excess", 2.0, "loss", 1.0).within(0.05, 0.02)
        (True, False)
    """

    kind: Literal["score", "loss", "excess"]
    margin: float
    metric: str
    collapsed: float

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.kind == "score"

    def within(self, value: float, best: float) -> bool:
        """Return whether a value is near enough to the best one."""
        if self.kind == "score":
            return value >= best - self.margin
        return value <= best * (1.0 + self.margin if self.kind == "loss" else self.margin)

    def is_collapse(self, value: float) -> bool:
        """Return whether a run that ends with this value has collapsed."""
        return not (value >= self.collapsed if self.higher else value <= self.collapsed)


@dataclass(frozen=True)
class Setting:
    """One problem of the study.

    Args:
        problem: Name of the problem.
        steps: Updates per run.
        goal: The goal on it.
        delays: Name of the delay model.
        delay_options: Its arguments.
        options: Arguments of the problem.
        methods: The tuned methods.
        seeds: Seeds of all runs.
    """

    problem: str
    steps: int
    goal: Goal
    delays: str = "data-dependent"
    delay_options: Mapping[str, Any] = field(default_factory=lambda: PAPERS_DELAYS)
    options: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = tuple(METHODS)
    seeds: tuple[int, ...] = (2012, 2013, 2014)

    def sweep(self) -> Sweep:
        """Return its runs."""
        grids = [Grid(OURS, {})]
        for method in self.methods:
            kind, options = METHODS[method]
            grids.append(Grid(method, {"lr": list(RATES[kind]), **options}))
        return Sweep(
            f"rate-free-{self.problem}",
            self.problem,
            self.delays,
            steps=self.steps,
            seeds=self.seeds,
            grids=tuple(grids),
            evaluate_every=self.steps,  # what counts is how a run ends
            problem_options=dict(self.options),
            delay_options=dict(self.delay_options),
        )


PROBLEMS: Mapping[str, Setting] = {
    each.problem: each
    for each in (
        Setting("quadratic", 3750, Goal("excess", 2.0, "loss", 61.0), seeds=tuple(range(2012, 2021))),
        Setting("logistic", 3750, Goal("excess", 2.0, "loss", 2.3), options=LOGISTIC),
        Setting("digits", 1000, Goal("score", 0.02, "f1", 0.5), options={"network": "mlp"}),
        Setting("text", 1500, Goal("loss", 0.02, "loss", 5.5), "sample-cost", TEXTS_DELAYS, TEXT),
        Setting("mnist", 3750, Goal("score", 0.02, "f1", 0.5), options={"width": 0.4}),
        Setting(
            "cifar10",
            500,
            Goal("score", 0.02, "accuracy", 0.11),
            delay_options=CIFAR10S_DELAYS,
            options={"width": 0.25, "weights": "none"},
            methods=ON_CIFAR10,
        ),
    )
}
"""The problems in the order they are run, the cheapest first."""


def plan(problems: tuple[str, ...] = ()) -> dict[str, Sweep]:
    """Return the sweep of every problem.

    Args:
        problems: Only these.

    Examples:
        >>> {name: len(sweep.runs()) for name, sweep in plan(("quadratic",)).items()}
        {'quadratic': 891}
    """
    for name in problems:
        if name not in PROBLEMS:
            raise ValueError(f"Unknown problem {name!r} (expected one of {', '.join(PROBLEMS)})")
    return {name: PROBLEMS[name].sweep() for name in problems or PROBLEMS}
