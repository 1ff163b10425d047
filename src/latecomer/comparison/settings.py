"""What methods are compared on: problems with their sizes, delay models, and how large a comparison is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "DELAYS", "DEPENDENT", "INDEPENDENT", "JUDGED_SEEDS", "PROBLEMS", "SIZES", "TUNING_SEED", "WORKERS",
    "ProblemSetting", "Size",
]  # fmt: skip

WORKERS = 8
TUNING_SEED = 2000
JUDGED_SEEDS = (3000, 3001, 3002, 3003, 3004)
"""Seeds that nothing was chosen on."""
QUICK_SEEDS = (4000, 4001, 4002)
"""Whoever tries the quick size sees none of the study's seeds."""
TEXT_COSTS = (1.0, 1.3, 2.6, 6.4)
"""What a gradient on windows of 32, 64, 128 and 256 bytes costs: measured once and kept, so that a run has the same
schedule everywhere. `python benchmarks/text_costs.py --width 32 --layers 1 --lengths 32 64 128 256 --batch-size 4`"""


@dataclass(frozen=True)
class ProblemSetting:
    """A problem as it is compared on.

    Args:
        problem: Its name in `latecomer.problems.PROBLEMS`.
        arrivals: Arrivals of a run in which every arrival is an update. Others run for the same time on the clock.
        metric: What a target is a value of.
        higher: Whether more of it is better.
        rates: Smallest and largest learning rate, by family of methods.
        options: Arguments of the problem.
        splits: Whether it has a validation split to tune on.
        costs: Duration of a job by group, fastest first.
        shares: Share of each group.
        always_by_sample: Whether durations depend on the sample under every delay model, as those of text do.
        methods: The only methods to run on it; empty for all.
    """

    problem: str
    arrivals: int
    metric: str
    higher: bool
    rates: Mapping[str, tuple[float, float]]
    options: Mapping[str, Any] = field(default_factory=dict)
    splits: bool = True
    costs: tuple[float, ...] = (1.0, 10.0)
    shares: tuple[float, ...] = (0.9, 0.1)
    always_by_sample: bool = False
    methods: tuple[str, ...] = ()


# ---- delay models -----------------------------------------------------------------------------------------------

Model = Callable[[ProblemSetting, int], tuple[str, dict[str, Any]]]
"""A function of problem and number of workers that returns a delay model's name and its arguments."""


def _by_sample(problem: ProblemSetting, workers: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "sample-cost", {"workers": workers, "cost": list(problem.costs), "shares": list(problem.shares), **more}


def _slow_samples(problem: ProblemSetting, workers: int) -> tuple[str, dict[str, Any]]:
    """Equal workers, durations by sample: a slow one takes ten times as long, on text 1 to 6.4 times by length."""
    return _by_sample(problem, workers)


def _independent(problem: ProblemSetting, workers: int) -> tuple[str, dict[str, Any]]:
    """Control of slow-samples: the same durations, but drawn independently of the sample that is trained on."""
    return _by_sample(problem, workers, dependent=False)


def _by_worker(problem: ProblemSetting, speeds: list[float]) -> tuple[str, dict[str, Any]]:
    if problem.always_by_sample:
        return _by_sample(problem, len(speeds), speeds=speeds)
    return "worker-speeds", {"durations": speeds, "shares": list(problem.shares)}


def _slow_workers(problem: ProblemSetting, workers: int) -> tuple[str, dict[str, Any]]:
    """Mixed hardware: the i-th worker takes sqrt(i) times as long; on text times the cost of the sample."""
    return _by_worker(problem, [round((1 + worker) ** 0.5, 4) for worker in range(workers)])


def _straggler(problem: ProblemSetting, workers: int) -> tuple[str, dict[str, Any]]:
    """One worker takes ten times as long as the others; on text times the cost of the sample."""
    return _by_worker(problem, [1.0] * (workers - 1) + [10.0])


DEPENDENT, INDEPENDENT = "slow-samples", "independent"
"""The delay model in which delays follow the data, and its control."""

DELAYS: Mapping[str, Model] = {
    DEPENDENT: _slow_samples,
    INDEPENDENT: _independent,
    "slow-workers": _slow_workers,
    "straggler": _straggler,
}
"""Delay models of a comparison by name."""

# ---- problems and sizes -----------------------------------------------------------------------------------------

_QUADRATIC = ProblemSetting(
    "quadratic", 3000, "loss", False, {"sgd": (0.001, 0.3), "adam": (0.001, 0.3)}, splits=False
)  # its loss is exact: only the seeds of tuning and judging differ
_DIGITS = {"sgd": (0.01, 1.0), "adam": (3e-4, 0.03)}
_MNIST = {"sgd": (0.001, 0.05), "adam": (3e-5, 0.003)}  # cubed logits collapse at larger rates
_CIFAR10 = {"sgd": (0.003, 0.3), "adam": (1e-4, 0.01)}
_TEXT = {"sgd": (0.003, 1.0), "adam": (1e-4, 0.01)}
_SIX = ("momentum", "ordered-momentum", "balanced-catch-up", "rate-free", "ringmaster", "sync-minibatch")

PROBLEMS: Mapping[str, ProblemSetting] = {
    "quadratic": _QUADRATIC,
    "digits": ProblemSetting("digits", 1500, "f1", True, _DIGITS, {"network": "mlp", "cubic": False}),
    "mnist": ProblemSetting("mnist", 1000, "f1", True, _MNIST, {"width": 0.4, "evaluated": 1000}),
    "text": ProblemSetting(
        "text", 750, "loss", False, _TEXT,
        {"width": 32, "layers": 1, "heads": 4, "lengths": [32, 64, 128, 256], "batch_size": 4, "evaluated": 2048},
        costs=TEXT_COSTS, shares=(0.4, 0.3, 0.2, 0.1), always_by_sample=True,
    ),
    "cifar10": ProblemSetting(
        "cifar10", 500, "f1", True, _CIFAR10, {"width": 0.25, "weights": "none", "evaluated": 1000},
        shares=(0.5, 0.5), methods=_SIX,
    ),
}  # fmt: skip
"""Problems of a comparison by name, at the sizes of the standard study."""


@dataclass(frozen=True)
class Size:
    """How large a comparison is.

    Args:
        problems: Its problems.
        delays: Its delay models.
        configurations: Configurations per method, problem and delay model.
        seeds: Seeds to judge on.
        arrivals: Arrivals by problem where they are not those of the standard study.
        options: Arguments of problems that replace those of the standard study.
        evaluations: Evaluations of a judging run.
    """

    problems: tuple[str, ...]
    delays: tuple[str, ...]
    configurations: int
    seeds: tuple[int, ...]
    arrivals: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluations: int = 24


SIZES: Mapping[str, Size] = {
    "quick": Size(
        ("quadratic", "digits", "text"), ("slow-samples", "slow-workers"), 4, QUICK_SEEDS,
        {"quadratic": 600, "digits": 500, "text": 150},
        {"text": {"width": 16, "layers": 1, "heads": 2, "lengths": [16, 32, 64, 128], "evaluated": 512,
                  "limit": 1_000_000}}, evaluations=12,
    ),
    "standard": Size(("quadratic", "mnist", "text", "cifar10"), tuple(DELAYS), 6, JUDGED_SEEDS),
}  # fmt: skip
"""Sizes of a comparison; docs/compare.md has the standard one in words."""
