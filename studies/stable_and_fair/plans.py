"""The sweeps behind the front, in three sizes.

The quadratics and the counter-example are for fairness, digits, MNIST, text and CIFAR-10 for stability.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latecomer.experiments import Grid, Sweep
from latecomer.paper.presets import PAPER_RATES
from latecomer.theory import CounterExample

from .candidates import CANDIDATES, Candidate
from .fairness import PROBLEMS

__all__ = [
    "METRICS",
    "SIZES",
    "Metric",
    "Size",
    "counter_example_sweep",
    "fairness_sweeps",
    "plan",
    "size_of",
    "stability_sweeps",
]

CHOOSING = (0, 1, 2, 3, 4)
"""Seeds used for selection."""
HELD_OUT = (100, 101, 102, 103, 104)
"""Seeds of the final comparison."""
PAPERS_DELAYS = {"workers": 7, "slow_share": 0.1, "exact": False}
CIFAR10S_DELAYS = {"workers": 5, "slow_share": 0.5, "exact": False}
TEXT: dict[str, Any] = {
    "width": 32,
    "layers": 1,
    "heads": 2,
    "lengths": [16, 32, 64, 128],
    "batch_size": 8,
    "evaluated": 2048,
    "limit": 1_000_000,
}
TEXTS_DELAYS = {"workers": 7, "cost": [1.0, 1.9, 4.4, 14.0], "shares": [0.4, 0.3, 0.2, 0.1]}
"""Cost of a window of each length, as once measured by `latecomer.problems.Text.costs`."""


@dataclass(frozen=True)
class Metric:
    """The metric of a problem.

    Args:
        name: The metric.
        slow: The same on slow samples; on text on the longest windows.
        least: Whether less is better.

    Examples:
        >>> METRICS["digits"].name, METRICS["text"].slow
        ('f1', 'loss_128')
    """

    name: str = "f1"
    slow: str = "f1_slow"
    least: bool = False


METRICS: Mapping[str, Metric] = {
    "digits": Metric(),
    "mnist": Metric(),
    "text": Metric("loss", f"loss_{TEXT['lengths'][-1]}", least=True),
    "cifar10": Metric(),
}
"""Metrics by problem."""


@dataclass(frozen=True)
class Size:
    """Size of the study.

    Args:
        name: ``"quick"``, ``"standard"`` or ``"full"``.
        rates: Learning rates of the stability runs.
        seeds: Number of seeds of the stability runs.
        fair_seeds: Number of seeds of the fairness runs.
        fair_steps: Updates on the quadratics; the learning rate there is 60 over them.
        workers: M of the counter-example.
        digits: Network and updates.
        mnist: Width and updates; None for no runs on MNIST.
        text: Updates; None for no runs on text.
        cifar10: Width and updates; None for no runs on CIFAR-10.

    Examples:
        >>> size_of("quick").seeds
        1
    """

    name: str
    rates: tuple[float, ...]
    seeds: int
    fair_seeds: int
    fair_steps: int
    workers: int
    digits: tuple[str, int]
    mnist: tuple[float, int] | None = None
    text: int | None = None
    cifar10: tuple[float, int] | None = None


SIZES: Mapping[str, Size] = {
    size.name: size
    for size in (
        Size("quick", (0.003, 0.01, 0.03, 0.1), 1, 1, 2000, 11, ("mlp", 500)),
        Size("standard", tuple(PAPER_RATES), 5, 3, 6000, 21, ("mlp", 1000), (0.2, 3750), 500, (0.125, 300)),
        Size("full", tuple(PAPER_RATES), 5, 5, 20_000, 51, ("cnn", 2000), (0.4, 3750), 2000, (0.25, 500)),
    )
}
"""Sizes by name."""


def size_of(name: str) -> Size:
    """Return the size with this name.

    Examples:
        >>> len(size_of("standard").rates)
        19
    """
    if name not in SIZES:
        raise ValueError(f"Unknown size {name!r} (expected one of {', '.join(SIZES)})")
    return SIZES[name]


def _grids(who: Iterable[Candidate], rates: Sequence[float]) -> tuple[Grid, ...]:
    return tuple(each.grid(rates) for each in who)


def fairness_sweeps(size: Size, who: Iterable[Candidate]) -> dict[str, Sweep]:
    """Return the runs on the two-centre quadratics by problem.

    Args:
        size: The size.
        who: The candidates.

    Examples:
        >>> {name: len(sweep.seeds) for name, sweep in fairness_sweeps(size_of("standard"), []).items()}
        {'near': 3, 'far': 3, 'loud': 3, 'heavy-tailed': 3}
    """
    grids = _grids(who, [60.0 / size.fair_steps])
    return {
        name: Sweep(
            f"research-{name}-{size.name}",
            "two-centres",
            "data-dependent",
            steps=size.fair_steps,
            seeds=CHOOSING[: size.fair_seeds],
            grids=grids,
            evaluate_every=size.fair_steps,
            problem_options=dict(options),
            delay_options=PAPERS_DELAYS,
        )
        for name, options in PROBLEMS.items()
    }


def counter_example_sweep(size: Size, who: Iterable[Candidate]) -> Sweep:
    """Return the runs on the counter-example to Theorem 1, with the theorem's lr and beta.

    Args:
        size: The size.
        who: The candidates.

    Examples:
        >>> counter_example_sweep(size_of("quick"), []).steps
        1280
    """
    example = CounterExample(size.workers)
    problem, promised = example.problem, example.promised
    options: dict[str, Any] = {"dimensions": 1, "curvature": [1.0, 1.0], "noise": 0.0, "start": problem.start}
    return Sweep(
        f"research-counter-example-{size.name}",
        "quadratic",
        "sample-cost",
        steps=example.steps,
        seeds=CHOOSING[: size.fair_seeds],
        grids=tuple(each.grid([promised.lr], beta=promised.beta) for each in who),
        evaluate_every=example.steps,
        problem_options={**options, "centres": list(problem.centres), "shares": list(problem.shares)},
        delay_options={"workers": size.workers, "cost": [1.0, 100.0], "slow_share": 0.1},
    )


def stability_sweeps(size: Size, who: Iterable[Candidate]) -> dict[str, Sweep]:
    """Return the runs over learning rates by problem.

    Args:
        size: The size.
        who: The candidates.

    Examples:
        >>> {name: len(sweep.seeds) for name, sweep in stability_sweeps(size_of("standard"), []).items()}
        {'digits': 5, 'mnist': 5, 'text': 5, 'cifar10': 5}
    """
    network, steps = size.digits
    grids = _grids(who, size.rates)

    def sweep(problem: str, steps: int, options: Mapping[str, Any], **changed: Any) -> Sweep:
        given: dict[str, Any] = {
            "name": f"research-{problem}-{size.name}",
            "problem": problem,
            "delays": "data-dependent",
            "steps": steps,
            "seeds": CHOOSING[: size.seeds],
            "grids": grids,
            "evaluate_every": steps,  # what counts is how a run ends
            "problem_options": dict(options),
            "delay_options": PAPERS_DELAYS,
        }
        return Sweep(**{**given, **changed})

    sweeps = {"digits": sweep("digits", steps, {"network": network})}
    if size.mnist is not None:
        width, updates = size.mnist
        sweeps["mnist"] = sweep("mnist", updates, {"width": width, "split": "validation"})
    if size.text is not None:
        sweeps["text"] = sweep("text", size.text, TEXT, delays="sample-cost", delay_options=TEXTS_DELAYS)
    if size.cifar10 is not None:
        width, updates = size.cifar10
        options = {"width": width, "weights": "none", "split": "validation"}
        sweeps["cifar10"] = sweep("cifar10", updates, options, delay_options=CIFAR10S_DELAYS)
    return sweeps


def plan(size: str) -> list[Sweep]:
    """Return all sweeps of a size in the order they are run.

    Examples:
        >>> [sweep.name for sweep in plan("quick")][-2:]
        ['research-counter-example-quick', 'research-digits-quick']
    """
    made, who = size_of(size), list(CANDIDATES.values())
    fair = [*fairness_sweeps(made, who).values(), counter_example_sweep(made, who)]
    return [*fair, *stability_sweeps(made, who).values()]
