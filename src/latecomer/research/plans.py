"""The sweeps behind the front, in three sizes: all candidates on what is cheap, the finalists on all of it.

The screening is of one seed: the quadratics and the counter-example for fairness, digits for stability. The finalists
run on all seeds there, and on MNIST, text and CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..experiments import Grid, Sweep
from ..experiments.presets import PAPER_RATES
from ..theory import CounterExample
from .candidates import CANDIDATES, FINALISTS, Candidate
from .fairness import PROBLEMS

__all__ = [
    "METRICS",
    "SIZES",
    "Metric",
    "Size",
    "counter_example_sweep",
    "fairness_sweeps",
    "finalists",
    "plan",
    "size_of",
    "stability_sweeps",
]

CHOOSING = (0, 1, 2, 3, 4)
"""Seeds that are looked at while choosing."""
HELD_OUT = (100, 101, 102, 103, 104)
"""Seeds for the final word."""
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
"""What a window of each length costs, as `latecomer.problems.Text.costs` once measured it."""


@dataclass(frozen=True)
class Metric:
    """What a run on a problem is judged by.

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
    "screening": Metric(),
    "digits": Metric(),
    "mnist": Metric(),
    "text": Metric("loss", f"loss_{TEXT['lengths'][-1]}", least=True),
    "cifar10": Metric(),
}
"""By the name of the sweep over learning rates; the screening is on digits."""


@dataclass(frozen=True)
class Size:
    """How much is run.

    Args:
        name: ``"quick"``, ``"standard"`` or ``"full"``.
        rates: Learning rates of the stability runs.
        seeds: How many seeds of the finalists' stability runs; the screening has one.
        fair_seeds: How many seeds of the finalists' fairness runs; the screening has one.
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
    """Return a size by its name.

    Examples:
        >>> len(size_of("standard").rates)
        19
    """
    if name not in SIZES:
        raise ValueError(f"Unknown size {name!r} (expected one of {', '.join(SIZES)})")
    return SIZES[name]


def _grids(who: Iterable[Candidate], rates: Sequence[float], steps: int) -> tuple[Grid, ...]:
    return tuple(each.grid(_own(each, rates, steps)) for each in who)


def _own(candidate: Candidate, rates: Sequence[float], steps: int) -> list[float]:
    """Algorithm 2's step is ``lr·t``: rates that have the same mean over the run."""
    scale = 2.0 / steps if candidate.method == "ordered-mu2-anytime" else 1.0
    return [rate * scale for rate in rates]


def finalists() -> list[Candidate]:
    """Return the candidates named in `FINALISTS`.

    Examples:
        >>> finalists()[0].name
        'momentum'
    """
    return [CANDIDATES[name] for name in FINALISTS]


def fairness_sweeps(size: Size, who: Iterable[Candidate], *, screening: bool = False) -> dict[str, Sweep]:
    """Return the runs on the two-centre quadratics by problem.

    Args:
        size: How much.
        who: The candidates.
        screening: One seed only.

    Examples:
        >>> from .candidates import CONTROLS
        >>> {name: len(sweep.seeds) for name, sweep in fairness_sweeps(size_of("standard"), CONTROLS).items()}
        {'near': 3, 'far': 3, 'loud': 3, 'heavy-tailed': 3}
    """
    who, rate = list(who), 60.0 / size.fair_steps
    return {
        name: Sweep(
            _named(name, size, screening),
            "two-centres",
            "data-dependent",
            steps=size.fair_steps,
            seeds=CHOOSING[: 1 if screening else size.fair_seeds],
            grids=_grids(who, [rate], size.fair_steps),
            evaluate_every=size.fair_steps,
            problem_options=dict(options),
            delay_options=PAPERS_DELAYS,
        )
        for name, options in PROBLEMS.items()
    }


def _named(problem: str, size: Size, screening: bool) -> str:
    return f"research-{problem}-{'screening-' if screening else ''}{size.name}"


def counter_example_sweep(size: Size, who: Iterable[Candidate], *, screening: bool = False) -> Sweep:
    """Return the runs on the counter-example to Theorem 1, with the theorem's lr and beta.

    Args:
        size: How much.
        who: The candidates.
        screening: One seed only.

    Examples:
        >>> from .candidates import CONTROLS
        >>> counter_example_sweep(size_of("quick"), CONTROLS).steps
        1280
    """
    example = CounterExample(size.workers)
    problem, promised = example.problem, example.promised
    grids = []
    for each in who:
        beta = {"beta": promised.beta} if "beta" in each.options else {}
        grids.append(each.grid(_own(each, [promised.lr], example.steps), **beta))
    options: dict[str, Any] = {"dimensions": 1, "curvature": [1.0, 1.0], "noise": 0.0, "start": problem.start}
    return Sweep(
        _named("counter-example", size, screening),
        "quadratic",
        "sample-cost",
        steps=example.steps,
        seeds=CHOOSING[: 1 if screening else size.fair_seeds],
        grids=tuple(grids),
        evaluate_every=example.steps,
        problem_options={**options, "centres": list(problem.centres), "shares": list(problem.shares)},
        delay_options={"workers": size.workers, "cost": [1.0, 100.0], "slow_share": 0.1},
    )


def stability_sweeps(size: Size, who: Iterable[Candidate], few: Iterable[Candidate]) -> dict[str, Sweep]:
    """Return the runs over learning rates: the screening on digits, one seed of everybody, then a few by problem.

    Args:
        size: How much.
        who: Everybody.
        few: Those that run on all seeds, and on the larger problems.

    Examples:
        >>> from .candidates import CONTROLS
        >>> sweeps = stability_sweeps(size_of("standard"), CONTROLS, CONTROLS[:1])
        >>> {name: len(sweep.seeds) for name, sweep in sweeps.items()}
        {'screening': 1, 'digits': 5, 'mnist': 5, 'text': 5, 'cifar10': 5}
    """
    network, steps = size.digits
    few, seeds = list(few), CHOOSING[: size.seeds]

    def sweep(problem: str, steps: int, options: Mapping[str, Any], **changed: Any) -> Sweep:
        given: dict[str, Any] = {
            "name": f"research-{problem}-{size.name}",
            "problem": problem,
            "delays": "data-dependent",
            "steps": steps,
            "seeds": seeds,
            "grids": _grids(few, size.rates, steps),
            "evaluate_every": steps,  # what counts is how a run ends
            "problem_options": dict(options),
            "delay_options": PAPERS_DELAYS,
        }
        return Sweep(**{**given, **changed})

    digits = sweep("digits", steps, {"network": network})
    everybody = _grids(who, size.rates, steps)
    screening = replace(digits, name=f"research-screening-{size.name}", seeds=seeds[:1], grids=everybody)
    sweeps = {"screening": screening, "digits": digits}
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
        >>> [sweep.name for sweep in plan("quick")][-3:]
        ['research-counter-example-quick', 'research-screening-quick', 'research-digits-quick']
    """
    made, everyone, few = size_of(size), list(CANDIDATES.values()), finalists()
    fair: list[Sweep] = []
    for who, screening in ((everyone, True), (few, False)):
        fair += fairness_sweeps(made, who, screening=screening).values()
        fair.append(counter_example_sweep(made, who, screening=screening))
    return [*fair, *stability_sweeps(made, everyone, few).values()]
