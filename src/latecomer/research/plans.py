"""The sweeps behind the front, in three sizes: quadratics and the counter-example for fairness, digits, MNIST, ..."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..experiments import Grid, Sweep
from ..experiments.presets import PAPER_RATES
from ..theory import CounterExample
from .candidates import CANDIDATES, SHORTLIST, Candidate
from .fairness import PROBLEMS

__all__ = ["SIZES", "Size", "counter_example_sweep", "fairness_sweeps", "plan", "size_of", "stability_sweeps"]

CHOOSING = (0, 1, 2, 3, 4)
"""Seeds that are looked at while choosing."""
HELD_OUT = (100, 101, 102, 103, 104)
"""Seeds for the final word."""
PAPERS_DELAYS = {"workers": 7, "slow_share": 0.1, "exact": False}


@dataclass(frozen=True)
class Size:
    """How much is run.

    Args:
        name: ``"quick"``, ``"standard"`` or ``"full"``.
        rates: Learning rates of the stability runs.
        seeds: How many seeds of the stability runs.
        fair_seeds: How many seeds of the fairness runs.
        fair_steps: Updates on the quadratics; the learning rate there is 60 over them.
        workers: M of the counter-example.
        digits: Network and updates.
        mnist: Width and updates; None for no runs on MNIST.
        more: Whether text and CIFAR-10 are run too.

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
    mnist: tuple[float, int] | None
    more: bool = False


SIZES: Mapping[str, Size] = {
    size.name: size
    for size in (
        Size("quick", (0.003, 0.01, 0.03, 0.1), 1, 1, 2000, 11, ("mlp", 500), None),
        Size("standard", tuple(PAPER_RATES), 5, 3, 6000, 21, ("mlp", 1000), (0.2, 3750)),
        Size("full", tuple(PAPER_RATES), 5, 5, 20_000, 51, ("cnn", 2000), (0.4, 3750), more=True),
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


def fairness_sweeps(size: Size, who: Iterable[Candidate]) -> list[Sweep]:
    """Return the runs on the two-centre quadratics, one sweep a problem.

    Examples:
        >>> from .candidates import CONTROLS
        >>> [sweep.problem_options["distance"] for sweep in fairness_sweeps(size_of("quick"), CONTROLS)]
        [3.0, 10.0, 3.0, 3.0]
    """
    who, rate = list(who), 60.0 / size.fair_steps
    return [
        Sweep(
            f"research-{name}-{size.name}",
            "two-centres",
            "data-dependent",
            steps=size.fair_steps,
            seeds=CHOOSING[: size.fair_seeds],
            grids=_grids(who, [rate], size.fair_steps),
            evaluate_every=size.fair_steps,
            problem_options=dict(options),
            delay_options=PAPERS_DELAYS,
        )
        for name, options in PROBLEMS.items()
    ]


def counter_example_sweep(size: Size, who: Iterable[Candidate]) -> Sweep:
    """Return the runs on the counter-example to Theorem 1, with the theorem's lr and beta.

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
        f"research-counter-example-{size.name}",
        "quadratic",
        "sample-cost",
        steps=example.steps,
        seeds=CHOOSING[: size.fair_seeds],
        grids=tuple(grids),
        evaluate_every=example.steps,
        problem_options={**options, "centres": list(problem.centres), "shares": list(problem.shares)},
        delay_options={"workers": size.workers, "cost": [1.0, 100.0], "slow_share": 0.1},
    )


def stability_sweeps(size: Size, who: Iterable[Candidate], few: Iterable[Candidate]) -> dict[str, Sweep]:
    """Return the runs over learning rates by problem: all candidates on digits, a few on the larger ones.

    Examples:
        >>> from .candidates import CONTROLS
        >>> list(stability_sweeps(size_of("standard"), CONTROLS, CONTROLS[:1]))
        ['digits', 'mnist']
    """
    network, steps = size.digits
    few = list(few)

    def sweep(problem: str, steps: int, who: Iterable[Candidate], options: dict[str, Any], **more: Any) -> Sweep:
        return Sweep(
            f"research-{problem}-{size.name}",
            problem,
            more.get("delays", "data-dependent"),
            steps=steps,
            seeds=CHOOSING[: size.seeds],
            grids=_grids(who, size.rates, steps),
            evaluate_every=steps,  # what counts is how a run ends
            problem_options=options,
            delay_options=more.get("delay_options", PAPERS_DELAYS),
        )

    sweeps = {"digits": sweep("digits", steps, who, {"network": network})}
    if size.mnist is not None:
        width, updates = size.mnist
        sweeps["mnist"] = sweep("mnist", updates, few, {"width": width, "split": "validation"})
    if size.more:
        sweeps["cifar10"] = sweep(
            "cifar10",
            500,
            few,
            {"width": 0.25, "weights": "none", "split": "validation"},
            delay_options={"workers": 5, "slow_share": 0.5, "exact": False},
        )
    return sweeps


def plan(size: str) -> list[Sweep]:
    """Return all sweeps of a size in the order they are run.

    Examples:
        >>> [sweep.name for sweep in plan("quick")][-2:]
        ['research-counter-example-quick', 'research-digits-quick']
    """
    made, everyone = size_of(size), list(CANDIDATES.values())
    few = [CANDIDATES[name] for name in SHORTLIST]
    fair = [*fairness_sweeps(made, everyone), counter_example_sweep(made, everyone)]
    return [*fair, *stability_sweeps(made, everyone, few).values()]
