"""Where it fails: settings that are harder than those it was designed on, beside two tuned methods.

docs/rate-free.md has the same plan in words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import polars as pl

from latecomer.experiments import Grid, Sweep
from latecomer.experiments.pieces import FinishedRuns

from ..stable_and_fair.plans import PAPERS_DELAYS
from .plan import METHODS, OURS, RATES

__all__ = ["LIMITS", "Limit", "limit_table"]

SEEDS = (2103, 2104, 2105)
TUNED = ("catch-up-adamw", "balanced-catch-up")
"""The two tuned methods that a user would take instead."""


@dataclass(frozen=True)
class Limit:
    """One setting.

    Args:
        name: Short name.
        problem: ``"digits"`` or ``"quadratic"``; a tuned learning rate is carried over from its usual setting.
        steps: Updates per run.
        options: More arguments of the problem.
        delay_options: More arguments of the delay model.
        method_options: More arguments of every method.
    """

    name: str
    problem: str = "digits"
    steps: int = 1000
    options: Mapping[str, Any] = field(default_factory=dict)
    delay_options: Mapping[str, Any] = field(default_factory=dict)
    method_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """What counts at the end of a run."""
        return "f1" if self.problem == "digits" else "loss"

    def sweep(self) -> Sweep:
        """Return its runs."""
        more = {name: [value] for name, value in self.method_options.items()}
        grids = [Grid(OURS, more)]
        for method in TUNED:
            kind, options = METHODS[method]
            grids.append(Grid(method, {"lr": list(RATES[kind]), **options, **more}))
        network = {"network": "mlp"} if self.problem == "digits" else {}
        return Sweep(
            f"limit-{self.name}",
            self.problem,
            "data-dependent",
            steps=self.steps,
            seeds=SEEDS,
            grids=tuple(grids),
            evaluate_every=self.steps,
            problem_options={**network, **self.options},
            delay_options={**PAPERS_DELAYS, **self.delay_options},
        )


USUAL = {"digits": "digits, as judged", "quadratic": "quadratic, as judged"}
LIMITS: tuple[Limit, ...] = (
    Limit(USUAL["digits"]),
    Limit("100 updates", steps=100),
    Limit("300 updates", steps=300),
    Limit("batches of 1", options={"batch_size": 1}),
    Limit("batches of 256", options={"batch_size": 256}),
    Limit("31 workers", delay_options={"workers": 31}),
    Limit("delays ten times as long", delay_options={"workers": 70}),
    Limit("weight decay 0.1", method_options={"weight_decay": 0.1}),
    Limit(USUAL["quadratic"], "quadratic", 3750),
    Limit("slow gradients ten times as large", "quadratic", 3750, {"centres": [0.0, 30.0]}),
    Limit("warm start", "quadratic", 3750, {"start": 0.5}),
    Limit("without noise", "quadratic", 3750, {"noise": 0.0}),
)
"""The settings, each problem's usual one first."""


def limit_table(runs: FinishedRuns) -> pl.DataFrame:
    """Return one row per setting and tuned method, with medians over seeds; of settings whose runs are all there.

    ``ours`` is the method without a learning rate, ``worst`` its worst run, ``influence`` the least relative influence
    of slow samples in a run of it, ``best`` the tuned method at its best learning rate in this setting, ``carried`` the
    same at its best learning rate in the problem's usual setting.
    """
    rows: list[dict[str, Any]] = []
    usual: dict[tuple[str, str], float] = {}
    for limit in LIMITS:
        specs = limit.sweep().runs()
        if any(spec.key not in runs for spec in specs):
            continue
        values: dict[tuple[str, float], list[float]] = {}
        influence = []
        for spec in specs:
            record = runs.record(spec.key)
            end = record["final"].get(limit.metric)
            if spec.method == OURS:
                influence.append(record["outcome"]["relative_influence"])
            failed = end is None or not math.isfinite(end)
            ended = (math.inf if limit.metric == "loss" else 0.0) if failed else float(end)
            values.setdefault((spec.method, float(spec.options.get("lr", 0.0))), []).append(ended)
        medians = {key: median(own) for key, own in values.items()}
        for method in TUNED:
            own = {lr: value for (name, lr), value in medians.items() if name == method}
            best = sorted(own, key=own.__getitem__)[0 if limit.metric == "loss" else -1]
            if limit.name == USUAL[limit.problem]:
                usual[limit.problem, method] = best
            carried = usual.get((limit.problem, method))
            rows.append(
                {
                    "setting": limit.name,
                    "metric": limit.metric,
                    "ours": medians[OURS, 0.0],
                    "worst": (max if limit.metric == "loss" else min)(values[OURS, 0.0]),
                    "influence": min(influence),
                    "method": method,
                    "best": own[best],
                    "lr": best,
                    "carried": None if carried is None else own[carried],
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None)
