"""Runs that were never made, for tests of the plan: the plan asks for thousands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from latecomer.experiments import RunSpec, Store
from latecomer.paper.stages import stage_sweeps
from latecomer.paper.weights import Weights


class InMemory(Store):
    """A store without a disk: the plan asks for thousands of runs."""

    def __init__(self) -> None:
        self.runs: dict[str, tuple[dict[str, Any], pl.DataFrame]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.runs

    def put(self, spec: RunSpec, history: pl.DataFrame, outcome: dict[str, Any], seconds: float) -> None:
        record = {"key": spec.key, "spec": spec.as_dict(), "outcome": outcome, "final": history.row(-1, named=True)}
        self.runs[spec.key] = record, history

    def keys(self) -> list[str]:
        return sorted(self.runs)

    def seconds(self, key: str) -> float | None:
        return 1.0

    def record(self, key: str) -> dict[str, Any]:
        return self.runs[key][0]

    def history(self, key: str) -> pl.DataFrame:
        return self.runs[key][1]


def put(store: Store, run: RunSpec, f1: float, gap: float = 0.0, **outcome: Any) -> None:
    """Pretend that a run was made; slow classes score lower by a gap."""
    updates = [0, *range(run.evaluate_every, run.steps, run.evaluate_every), run.steps]
    scores = [f1] * len(updates)
    history = {"update": updates, "time": [None] * len(updates), "loss": scores, "accuracy": scores, "f1": scores}
    history |= {"f1_slow": [f1 - gap] * len(updates), "f1_fast": scores}
    known = {"diverged_at": None, "relative_influence": 1.0, **outcome}
    store.put(run, pl.DataFrame(history, schema_overrides={"time": pl.Float64}), known, 1.0)


def fill(
    store: Store,
    stage: str,
    score: Callable[[RunSpec], float],
    weights: Sequence[Weights] = (),
    most_looks: int | None = None,
) -> list[str]:
    """Make all runs of a stage as it asks for them, and return the names of its sweeps with their sizes."""
    seen = []
    for sweep in stage_sweeps(stage, store, weights, most_looks=most_looks):
        runs = sweep.runs()
        seen.append(f"{sweep.name} {len(runs)}")
        for run in runs:
            if run.key not in store:
                put(store, run, score(run))
    return seen


def best_at(rate: float) -> Callable[[RunSpec], float]:
    """F1 that falls off from one learning rate, and from beta 0.05."""

    def score(run: RunSpec) -> float:
        away = abs(np.log(run.options["lr"] / rate)) + abs(np.log(run.options.get("beta", 0.05) / 0.05))
        return float(0.97 - 0.1 * away)

    return score
