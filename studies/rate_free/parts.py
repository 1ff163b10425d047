"""``python -m studies.rate_free.parts``: what each part of the rule without a learning rate is for.

Every variant changes one part of `RateFree` and is run on seeds that the rule was designed on: the table explains
choices and judges nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import torch
from rich.console import Console
from torch import Tensor

import latecomer as lc
from latecomer._util.checks import Range
from latecomer._util.files import writable
from latecomer._util.parallel import in_parallel
from latecomer.cli._entry import run
from latecomer.cli._output import print_text
from latecomer.delays import DataDependent, DelayModel, WorkerSpeeds
from latecomer.optim import RateFree
from latecomer.optim._clipping import LatenessClipped
from latecomer.optim._distance import together
from latecomer.optim.base import Arrival, Group, Params, Work
from latecomer.report.markdown import Part, write_page

__all__ = ["SETTINGS", "VARIANTS", "Parts", "Setting", "end_of", "parts"]

PROG = "python -m studies.rate_free.parts"
SEEDS = (11, 12, 13)
WORKERS = 7
"""The usual number of workers, at which all steps are equal."""
SPEEDS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
"""Mean durations of jobs on uneven workers."""


class ByPower(RateFree):
    """A step over another power of the mean wait than its root, equal to the rule with seven workers."""

    power: ClassVar[float]

    def _apply(self, work: Work, arrival: Arrival) -> None:
        wait = (self.param_groups[0]["waits"] + arrival.delay + 1) / arrival.t
        self._share = RateFree._share * (wait / WORKERS) ** (0.5 - self.power)
        super()._apply(work, arrival)


class OverWait(ByPower):
    """A step over the mean wait."""

    power = 1.0


class ConstantStep(ByPower):
    """A step that does not depend on the mean wait."""

    power = 0.0


class SmallStart(RateFree):
    """An estimate that starts fifty times smaller."""

    _first_relative = 0.001


class LargeStart(RateFree):
    """An estimate that starts twice as large."""

    _first_relative = 0.1


class NoLimit(RateFree):
    """No limit for large gradients."""

    _largest = math.inf


class LowLimit(RateFree):
    """A limit of twice the usual size."""

    _largest = 2.0


class AtParameters(RateFree):
    """The inner product at x as it is when a gradient arrives."""

    def _computed_at(self, params: list[Tensor], group: Group, arrival: Arrival, level: int) -> Tensor:
        return together(params, level)


class AtQuery(RateFree):
    """The inner product at y as it is when a gradient arrives."""

    def _computed_at(self, params: list[Tensor], group: Group, arrival: Arrival, level: int) -> Tensor:
        return super()._computed_at(params, group, replace(arrival, point=None), level)


class NoLeastLength(RateFree):
    """No least value of the denominator."""

    def _running_sum(
        self, name: str, params: list[Tensor], level: int, decay: float, g: Tensor, weight: float, *,
        squared: bool = False,
    ) -> Tensor:  # fmt: skip
        if squared:
            return torch.zeros_like(g)
        return super()._running_sum(name, params, level, decay, g, weight)


class OtherMemory(RateFree):
    """Sums of the estimate that decay by another beta2 than that of v."""

    sums_beta2: ClassVar[float]

    def _estimate(self, work: Work, arrival: Arrival) -> float:
        shared = self.param_groups[0]
        usual, work = shared["beta2"], [(dict(group), params, grads) for group, params, grads in work]
        shared["beta2"] = self.sums_beta2  # the copies in work keep that of v
        try:
            return super()._estimate(work, arrival)
        finally:
            shared["beta2"] = usual


class ShortMemory(OtherMemory):
    """Sums that decay ten times as fast."""

    sums_beta2 = 0.01


class LongMemory(OtherMemory):
    """Sums that do not decay: of their weights 1 - q, which cancel, something has to be left."""

    sums_beta2 = 1e-9


class ClippedFirst(LatenessClipped, RateFree):
    """A clip by lateness in front of the rule."""

    ranges: ClassVar[Mapping[str, Range]] = {**RateFree.ranges, **LatenessClipped.ranges}
    bookkeeping: ClassVar[frozenset[str]] = RateFree.bookkeeping | LatenessClipped.bookkeeping
    _own_attributes: ClassVar[tuple[str, ...]] = RateFree._own_attributes
    _fixed: ClassVar[Mapping[str, Any]] = {"beta2": 0.001, "eps": 1e-8}

    def __init__(self, params: Params, lr: float = 1.0, beta: float = 0.2) -> None:
        super().__init__(params, lr, beta)


class ClippedInstead(ClippedFirst):
    """A clip by lateness instead of the limit."""

    _largest = math.inf


VARIANTS: Mapping[str, type[RateFree]] = {
    "the rule": RateFree,
    "step over the mean wait": OverWait,
    "step that does not depend on the wait": ConstantStep,
    "start value 0.001": SmallStart,
    "start value 0.1": LargeStart,
    "no limit": NoLimit,
    "limit of 2": LowLimit,
    "clip by lateness in front": ClippedFirst,
    "clip by lateness instead of the limit": ClippedInstead,
    "inner product at x of the arrival": AtParameters,
    "inner product at y of the arrival": AtQuery,
    "no least denominator": NoLeastLength,
    "sums decay ten times as fast": ShortMemory,
    "sums do not decay": LongMemory,
}
"""The rule and its variants, each of which differs in one part."""


def data_dependent(workers: int = WORKERS) -> DelayModel:
    """Return the delays of the paper's experiments for a number of workers."""
    return DataDependent(workers=workers, slow_share=0.1, exact=False)


@dataclass(frozen=True)
class Setting:
    """One column of the table.

    Args:
        problem: Name of the problem.
        steps: Updates per run.
        delays: The delay model.
        options: Arguments of the problem.
    """

    problem: str = "digits"
    steps: int = 1000
    delays: DelayModel = field(default_factory=data_dependent)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def higher(self) -> bool:
        """Whether more is better: F1 on digits, the excess loss on the quadratic."""
        return self.problem == "digits"

    @property
    def failed(self) -> float:
        """What a run that diverges counts as."""
        return 0.0 if self.higher else math.inf

    def make(self) -> lc.problems.Problem:
        """Return the problem."""
        if self.problem == "digits":
            return lc.problems.digits(network="mlp", **self.options)
        return lc.problems.quadratic(**self.options)

    def cell(self, values: list[float]) -> str:
        """Return the median and, in brackets, the worst.

        Examples:
            >>> Setting().cell([0.95, 0.9, 0.0]), Setting("quadratic").cell([0.02, math.inf, 0.01])
            ('0.900 (0.000)', '0.02 (inf)')
        """
        if self.higher:
            return f"{median(values):.3f} ({min(values):.3f})"
        return f"{median(values):.3g} ({max(values):.3g})"


SETTINGS: Mapping[str, Setting] = {
    "digits, 3 workers": Setting(delays=data_dependent(3)),
    "digits, 7 workers": Setting(),
    "digits, 31 workers": Setting(delays=data_dependent(31)),
    "digits, uneven workers": Setting(delays=WorkerSpeeds(SPEEDS, "exponential", slow_share=0.1)),
    "quadratic": Setting("quadratic", 3750),
    "quadratic, slow gradients ten times as large": Setting("quadratic", 3750, options={"centres": [0.0, 30.0]}),
}


def end_of(variant: str, setting: str, seed: int, steps: int | None = None) -> dict[str, Any]:
    """Run a variant in a setting.

    Args:
        variant: Its name in `VARIANTS`.
        setting: Its name in `SETTINGS`.
        seed: Seed of the schedule and of the model.
        steps: Updates; those of the setting by default.

    Returns:
        The names, the seed, ``value``, the F1 or excess loss at the end, None if the run diverged, and ``distance``,
        the estimate D at the end, None if it is not a number.
    """
    torch.set_num_threads(1)
    chosen = SETTINGS[setting]
    steps = chosen.steps if steps is None else steps
    made: list[RateFree] = []

    def method(params: Params) -> RateFree:
        made.append(VARIANTS[variant](params))
        return made[-1]

    trace = chosen.delays.trace(steps=steps, seed=seed)
    found = lc.simulate(chosen.make(), method, trace, seed=seed, evaluate_every=steps)
    end = found.final.get("f1" if chosen.higher else "loss")
    value = None if end is None or found.diverged_at is not None or not math.isfinite(end) else float(end)
    distance = made[-1].distance
    return {
        "variant": variant,
        "setting": setting,
        "seed": seed,
        "value": value,
        "distance": distance if math.isfinite(distance) else None,
    }


@dataclass(frozen=True)
class Parts:
    """Run the rule without a learning rate and variants of it that lack or change one part.

    Example: python -m studies.rate_free.parts --out docs/results/rate-free
    """

    out: Path = Path("rate-free")
    """Folder for parts.md and parts.json."""
    processes: int = 2
    """Runs at a time."""

    def run(self, console: Console) -> None:
        """Run and write."""
        writable(self.out)
        jobs = [(variant, setting, seed) for setting in SETTINGS for variant in VARIANTS for seed in SEEDS]
        rows: list[dict[str, Any]] = []
        for row in in_parallel(end_of, jobs, self.processes):
            rows.append(row)
            if len(rows) % 50 == 0 or len(rows) == len(jobs):
                print_text(console, f"{len(rows)} of {len(jobs)} runs")
        rows.sort(key=lambda row: jobs.index((row["variant"], row["setting"], row["seed"])))
        write_page(
            self.out, "parts", "What each part of the rule is for", parts(rows), f"{PROG} --out {self.out}", rows
        )
        print_text(console, f"{self.out / 'parts.md'} has been written")


def parts(rows: list[dict[str, Any]]) -> list[Part]:
    """Return the tables of the page: how runs end, and the estimate D there."""
    ends: dict[tuple[str, str], list[float]] = {}
    distances: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        key, value, distance = (row["variant"], row["setting"]), row["value"], row["distance"]
        ends.setdefault(key, []).append(SETTINGS[row["setting"]].failed if value is None else value)
        distances.setdefault(key, []).append(math.inf if distance is None else distance)
    heads = ["variant", *SETTINGS]
    words = (
        f"Median over seeds {SEEDS[0]} to {SEEDS[-1]}, the worst in brackets: F1 on digits with an MLP after 1,000 "
        "updates (more is better), excess loss on the quadratic after 3,750 (less is better). A run that diverges "
        "counts as an F1 of 0 or an infinite loss. Each variant differs from the rule in one part. The two other steps "
        f"are equal to that of the rule where the mean wait is {WORKERS}, which it is not yet in the first updates. "
        f"There are {WORKERS} workers if nothing else is said; delays are data-dependent, and a tenth of the samples "
        f"is slow. Uneven workers take {SPEEDS[0]:g} to {SPEEDS[-1]:g} seconds per job on average, whatever the sample."
        " The rule was designed on these seeds."
    )
    return [
        Part(
            heads,
            [[name, *(each.cell(ends[name, key]) for key, each in SETTINGS.items())] for name in VARIANTS],
            "How runs end",
            words,
        ),
        Part(
            heads,
            [
                [name, *(f"{median(own):.3g} ({max(own):.3g})" for key in SETTINGS for own in [distances[name, key]])]
                for name in VARIANTS
            ],
            "The estimate D at the end",
            "Median and largest over the same runs.",
        ),
    ]


if __name__ == "__main__":
    sys.exit(run(Parts, PROG, "What each part of the rule without a learning rate is for."))
