"""Stability of a method: the share of learning rates that end near the best."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from latecomer._util.checks import Range
from latecomer._util.intervals import Interval, mean
from latecomer.optim import METHODS

__all__ = ["Stability", "candidate", "stability"]

_NOT_OPTIONS = frozenset({"self", "params", "lr", "seed"})


@dataclass(frozen=True)
class Stability:
    """Stability of a candidate.

    Attributes:
        good: Runs within the margin.
        runs: All runs.
        best: The candidate's own best learning rate, by the mean over seeds.
        score: That mean.
        by_seed: The share of each seed on its own.

    Examples:
        >>> Stability(good=3, runs=4, best=0.01, score=0.97).share
        0.75
    """

    good: int
    runs: int
    best: float
    score: float
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share of the learning rates, over seeds, that ended near the best."""
        return self.good / self.runs

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the share, by its spread over seeds; None with fewer than two."""
        if len(self.by_seed) < 2:
            return None
        found = mean(list(self.by_seed.values()))
        return Interval(self.share, max(0.0, found.low), min(1.0, found.high))

    def lead(self, other: Stability) -> Interval | None:
        """Return the difference of its share to another's, paired by seed; None if they share fewer than two seeds.

        Examples:
            >>> first = Stability(3, 4, 0.01, 0.97, {0: 1.0, 1: 0.5})
            >>> str(first.lead(Stability(1, 4, 0.01, 0.97, {0: 0.5, 1: 0.0, 2: 1.0})))
            '0.5 (0.5 to 0.5)'
        """
        shared = sorted(set(self.by_seed) & set(other.by_seed))
        return None if len(shared) < 2 else mean([self.by_seed[seed] - other.by_seed[seed] for seed in shared])


def candidate(row: Mapping[str, Any]) -> str:
    """Return the name of the candidate of a row: the method and its options, without learning rate and seed.

    Examples:
        >>> row = {"method": "balanced-momentum", "seed": 3, "lr": 0.1, "beta": 0.05, "clip": 2.0, "gamma": None}
        >>> candidate(row)
        'balanced-momentum beta=0.05 clip=2.0'
    """
    known = inspect.signature(METHODS[row["method"]].optimizer.__init__).parameters
    options = [(name, row[name]) for name in known if name not in _NOT_OPTIONS and row.get(name) is not None]
    return " ".join([row["method"], *(f"{name}={value}" for name, value in options)])


def stability(
    rows: Iterable[Mapping[str, Any]],
    *,
    metric: str = "f1",
    least: bool = False,
    within: float = 0.05,
    best: float | None = None,
    named: str | None = None,
) -> dict[str, Stability]:
    """Return the stability of every candidate in the rows of one sweep, as `Store.rows` yields them.

    A run is good if it ends at ``(1 - within)·best`` or above. The best is that of all candidates together: the highest
    mean over seeds that any of them has at any learning rate. Runs that diverged, or have no metric, are not good. Of a
    loss the best is the lowest, and what ends at ``(1 + within)·best`` or below is good.

    Args:
        rows: One row per run, with ``method``, ``lr``, ``seed``, the options and the final metrics; of one problem.
        metric: The column to compare.
        least: Whether less of it is better, as of a loss.
        within: Largest relative distance from the best.
        best: Compare with this instead, for example with the best of an earlier sweep.
        named: The column with the candidate of a row; `candidate` by default.

    Examples:
        >>> rows = [
        ...     {"method": "momentum", "lr": lr, "seed": seed, "beta": 0.1, "f1": f1}
        ...     for lr, f1s in {0.01: (0.96, 0.94), 0.1: (0.93, 0.02)}.items() for seed, f1 in enumerate(f1s)
        ... ]
        >>> found = stability(rows)["momentum beta=0.1"]
        >>> found.share, found.best, found.score
        (0.75, 0.01, 0.95)
        >>> found.by_seed, str(found.interval)
        ({0: 1.0, 1: 0.5}, '0.75 (0 to 1)')
        >>> losses = [{**row, "loss": 1 - row["f1"]} for row in rows]
        >>> stability(losses, metric="loss", least=True)["momentum beta=0.1"].good
        1
    """
    Range(0, 1).check("within", within)
    sign = -1.0 if least else 1.0  # a loss is looked at upside down
    runs: dict[str, dict[float, dict[int, float]]] = {}
    for row in rows:
        ended = row.get(metric)
        if ended is None or not math.isfinite(ended) or row.get("diverged_at") is not None:
            ended = -sign * math.inf
        name = candidate(row) if named is None else str(row[named])
        runs.setdefault(name, {}).setdefault(float(row["lr"]), {})[int(row["seed"])] = sign * float(ended)
    if not runs:
        raise ValueError("There are no rows to compare")
    means = {name: {lr: sum(e.values()) / len(e) for lr, e in by_lr.items()} for name, by_lr in runs.items()}
    top = max(max(by_lr.values()) for by_lr in means.values()) if best is None else sign * best
    if top == -math.inf:
        raise ValueError(f"No learning rate of any candidate has {metric!r} for all its seeds")
    result = {}
    for name, by_lr in runs.items():
        own = max(means[name], key=lambda lr: means[name][lr])
        near: dict[int, list[bool]] = {}
        for ends in by_lr.values():
            for seed, end in ends.items():
                near.setdefault(seed, []).append(end >= (1.0 - sign * within) * top)
        by_seed = {seed: sum(near[seed]) / len(near[seed]) for seed in sorted(near)}
        good, count = sum(map(sum, near.values())), sum(map(len, near.values()))
        result[name] = Stability(good, count, own, sign * means[name][own], by_seed)
    return result
