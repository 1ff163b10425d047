"""What a schedule does to each class: number of images, delay and influence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..experiments.spec import RunSpec, Sweep
from ..problems.images import Images
from ..theory.influence import influence
from ..trace import Trace

__all__ = ["appearances", "class_delays", "class_influence", "mean_influence", "slow_shares"]


def appearances(problem: Images, trace: Trace) -> NDArray[np.int64]:
    """Return how many images of each class every arrival brought: one row per arrival."""
    samples = trace.columns["sample"][trace.rows].tolist()
    counts = np.zeros((len(trace), problem.classes), dtype=np.int64)
    for row, (sample, group) in enumerate(zip(samples, trace.group.tolist(), strict=True)):
        counts[row] = np.bincount(problem.labels(sample, group).numpy(), minlength=problem.classes)
    return counts


def _schedule(sweep: Sweep, seed: int, **delay_options: Any) -> Trace:
    options = {**sweep.delay_options, **delay_options}
    return RunSpec(sweep.problem, "", sweep.delays, sweep.steps, seed, delay_options=options).make_trace()


def class_delays(sweep: Sweep, problem: Images, seeds: Sequence[int]) -> pl.DataFrame:
    """Return the number of images of each class and their mean delay, with and without delays that depend on the data.

    One row per seed, class and kind of delay: ``dependent``, ``seed``, ``label``, ``appearances``, ``delay`` (mean).
    """
    rows = []
    for dependent in (True, False):
        for seed in seeds:
            trace = _schedule(sweep, seed, dependent=dependent)
            counts = appearances(problem, trace)
            total = counts.sum(0)
            late = (counts * trace.delay[:, None]).sum(0) / np.maximum(total, 1)
            for label in range(problem.classes):
                rows.append((dependent, seed, label, int(total[label]), float(late[label])))
    return pl.DataFrame(rows, schema=["dependent", "seed", "label", "appearances", "delay"], orient="row")


def slow_shares(sweep: Sweep, seeds: Sequence[int]) -> list[float]:
    """Return the share of slow arrivals of each schedule."""
    return [float(_schedule(sweep, seed).group.mean()) for seed in seeds]


def class_influence(
    sweep: Sweep, problem: Images, chosen: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
) -> pl.DataFrame:
    """Return the mean influence of an image of each class by method, at each method's options."""
    rows = []
    for seed in seeds:
        trace = _schedule(sweep, seed)
        counts = appearances(problem, trace)
        for method, options in chosen.items():
            weight = influence(trace, method, options)
            mean = (counts * weight[:, None]).sum(0) / np.maximum(counts.sum(0), 1)
            rows += [(method, seed, label, float(value)) for label, value in enumerate(mean)]
    return pl.DataFrame(rows, schema=["method", "seed", "label", "influence"], orient="row")


def mean_influence(sweep: Sweep, method: str, options: Mapping[str, Any], seed: int) -> float:
    """Return the mean influence of an arrival: the factor by which ordering changes the effective learning rate."""
    return float(influence(_schedule(sweep, seed), method, options).mean())
