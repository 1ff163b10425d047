"""Harder settings: other seeds, another slow class, other numbers of workers, other delays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from latecomer.experiments import Store, Sweep

from .board import ended, ends, found_rows, mean_influence_ratio, mean_or_inf, same_seeds, shares_of, shown, whole_seeds
from .candidates import CANDIDATES, Candidate
from .plans import HELD_OUT, METRICS, PAPERS_DELAYS, Size, stability_sweeps

__all__ = ["HARD", "Setting", "hard_plan", "hard_table"]

RATES = (0.01, 0.03, 0.06, 0.1)
"""Number of seeds of all settings except "fresh seeds", which has that of the size."""


@dataclass(frozen=True)
class Setting:
    """A harder setting.

    Args:
        name: Short name.
        delays: Name of the delay model.
        delay_options: Its arguments.
        digits: More arguments of digits.
        all_rates: Whether all learning rates of the size are run instead of four.
        problem: ``"digits"``, with the quadratic beside it, or ``"text"``, which has its own delays.

    Examples:
        >>> HARD[0].name
        'fresh seeds'
    """

    name: str
    delays: str = "data-dependent"
    delay_options: Mapping[str, Any] = field(default_factory=lambda: dict(PAPERS_DELAYS))
    digits: Mapping[str, Any] = field(default_factory=dict)
    all_rates: bool = False
    problem: str = "digits"

    @property
    def slow_share(self) -> float:
        """Share of slow samples."""
        return float(self.delay_options["slow_share"])

    def rates(self, size: Size) -> tuple[float, ...]:
        """Return the learning rates on digits."""
        if self.all_rates:
            return size.rates
        return RATES if size.seeds > 1 else RATES[1:2]


HARD: tuple[Setting, ...] = (
    Setting("fresh seeds", all_rates=True),
    Setting("slow class 3", digits={"slow_class": 3}),
    Setting("M = 3", delay_options={**PAPERS_DELAYS, "workers": 3}),
    Setting("M = 31", delay_options={**PAPERS_DELAYS, "workers": 31}),
    Setting("delays 10 times longer", delay_options={**PAPERS_DELAYS, "workers": 70}),
    Setting("slow jobs last 100", "sample-cost", {"workers": 7, "cost": [1.0, 100.0], "slow_share": 0.1}),
    Setting("slow share 0.3", delay_options={**PAPERS_DELAYS, "slow_share": 0.3}),
    Setting("no delay", "constant", {"workers": 1, "slow_share": 0.1}),
    Setting("text, fresh seeds", all_rates=True, problem="text"),
)
"""The settings; all use other seeds than the main comparison."""


def hard_plan(size: Size) -> dict[str, tuple[Sweep, Sweep | None]]:
    """Return the sweeps of every setting: over learning rates, and on the quadratic with its centres 10 apart.

    Text has no quadratic; a size without text has no setting for it.

    Examples:
        >>> from .plans import size_of
        >>> digits, far = hard_plan(size_of("quick"))["M = 3"]
        >>> digits.delay_options["workers"], len(far.runs())
        (3, 8)
    """
    who, plan = list(CANDIDATES.values()), dict[str, tuple[Sweep, Sweep | None]]()
    for setting in HARD:
        if setting.problem == "digits":
            plan[setting.name] = _digits(setting, size, who), _far(setting, size, who)
        elif setting.problem in (known := stability_sweeps(size, who)):
            name, seeds = f"hard-{setting.name}-{size.name}", HELD_OUT[: size.seeds]
            plan[setting.name] = replace(known[setting.problem], name=name, seeds=seeds), None
    return plan


def _digits(setting: Setting, size: Size, who: Sequence[Candidate]) -> Sweep:
    rates, (network, steps) = setting.rates(size), size.digits
    return Sweep(
        f"hard-{setting.name}-{size.name}",
        "digits",
        setting.delays,
        steps=steps,
        seeds=HELD_OUT[: size.seeds],
        grids=tuple(each.grid(rates) for each in who),
        evaluate_every=steps,
        problem_options={"network": network, **setting.digits},
        delay_options=dict(setting.delay_options),
    )


def _far(setting: Setting, size: Size, who: Sequence[Candidate]) -> Sweep:
    return Sweep(
        f"hard-far-{setting.name}-{size.name}",
        "two-centres",
        setting.delays,
        steps=size.fair_steps,
        seeds=HELD_OUT[: size.fair_seeds],
        grids=tuple(each.grid([60.0 / size.fair_steps]) for each in who),
        evaluate_every=size.fair_steps,
        problem_options={"distance": 10.0, "slow_share": setting.slow_share},
        delay_options=dict(setting.delay_options),
    )


def hard_table(size: Size, store: Store) -> pl.DataFrame:
    """Return one row per setting and candidate, from the runs in the store.

    ``stable`` is the share of runs within 5 % of the best mean in this setting, with its 95 % interval over seeds from
    ``low`` to ``high``; with ``_kind`` behind them, compared with the best of the same kind. ``best`` and ``slow`` are
    F1 and that of the slow class at the candidate's own best learning rate ``lr`` (on text the loss, and that on the
    longest windows), ``worst`` is that of the worst seed there; ``excess`` and ``influence`` (slow over fast samples)
    are those on the quadratic.

    Examples:
        >>> from pathlib import Path
        >>> from .plans import size_of
        >>> hard_table(size_of("quick"), Store(Path("nowhere"))).height
        0
    """
    table, plan = list[dict[str, Any]](), hard_plan(size)
    for setting in (setting for setting in HARD if setting.name in plan):
        trained, far = plan[setting.name]
        metric, rates = METRICS[setting.problem], len(setting.rates(size))
        rows = whole_seeds(found_rows(trained, store), rates)
        fair = [] if far is None else same_seeds(found_rows(far, store))
        shares, within = shares_of(rows, metric), shares_of(rows, metric, within_kind=True)
        for name in (name for name in CANDIDATES if name in shares):
            mine = [row for row in rows if row["candidate"] == name]
            found = ends(mine, shares[name], metric)
            at_best = [ended(row, metric) for row in mine if row["lr"] == found["lr"]]
            own = [row for row in fair if row["candidate"] == name]
            table.append(
                {
                    "setting": setting.name,
                    "candidate": name,
                    **{key: found[key] for key in ("stable", "low", "high", "runs", "seeds", "lr", "best", "slow")},
                    **{f"{key}_kind": value for key, value in shown(within[name]).items()},
                    "worst": max(at_best) if metric.least else min(at_best),
                    "excess": mean_or_inf(row["excess"] for row in own) if own else None,
                    "influence": mean_influence_ratio(own),
                }
            )
    return pl.DataFrame(table, infer_schema_length=None)
