"""What the runs in a store say of every candidate: one row each, for the plane and for the tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from ..experiments import Store, Sweep
from ..theory import CounterExample
from .candidates import CANDIDATES, Candidate, find
from .fairness import PROBLEMS
from .pareto import Score, front
from .plans import Size, counter_example_sweep, fairness_sweeps, stability_sweeps
from .stability import stability

__all__ = ["board", "found_rows", "front_of", "whole_seeds"]

WITHIN = 0.05
"""A run is good if its F1 is within this share of the best."""


def found_rows(sweep: Sweep, store: Store) -> list[dict[str, Any]]:
    """Return the rows of a sweep's runs that are in the store, each with the ``candidate`` it was of.

    Examples:
        >>> from pathlib import Path
        >>> from .plans import size_of
        >>> found_rows(fairness_sweeps(size_of("quick"), [CANDIDATES["momentum"]])[0], Store(Path("nowhere")))
        []
    """
    named = {}
    for run in sweep.runs():
        # The counter-example has a beta of its own.
        options = {k: CANDIDATES["momentum"].options["beta"] if k == "beta" else v for k, v in run.options.items()}
        candidate = find(run.method, options)
        if run.key in store and candidate is not None:
            named[run.key] = candidate.name
    return [{**row, "candidate": named[row["key"]]} for row in store.rows(list(named))]


def whole_seeds(rows: Sequence[dict[str, Any]], rates: int) -> list[dict[str, Any]]:
    """Return the rows of those candidates and seeds that have all learning rates: a share of some is a share of others.

    Examples:
        >>> rows = [{"candidate": "a", "seed": 0, "lr": lr} for lr in (0.1, 0.2)]
        >>> len(whole_seeds([*rows, {"candidate": "a", "seed": 1, "lr": 0.1}], rates=2))
        2
    """
    count = Counter((row["candidate"], row["seed"]) for row in rows)
    return [row for row in rows if count[row["candidate"], row["seed"]] == rates]


def _mean(values: Iterable[float | None]) -> float:
    """Return the mean; what a run that diverged does not have is as bad as can be."""
    numbers = [math.inf if value is None else value for value in values]
    return sum(numbers) / len(numbers) if numbers else math.nan


def _of(rows: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["candidate"] == name]


def board(size: Size, store: Store, who: Sequence[Candidate], few: Sequence[Candidate]) -> pl.DataFrame:
    """Return one row a candidate, of the runs that are there; a seed counts once all its learning rates are there.

    Columns: ``candidate``, ``method``; for every problem with learning rates ``stable_<problem>`` (the share of runs
    that ended within 5 % of the best mean that any candidate has at any learning rate), ``runs_<problem>``,
    ``f1_<problem>`` (the mean at the candidate's best learning rate), ``slow_f1_<problem>`` and ``say_<problem>`` (F1
    of the slow class, and influence of slow over fast samples, there); for every quadratic ``excess_<problem>`` and
    ``say_<problem>``; ``theorem`` is the counter-example's mean squared gradient over the theorem's bound.

    Args:
        size: Which runs.
        store: Where they are.
        who: The candidates.
        few: Those that ran on the larger problems too.

    Examples:
        >>> from pathlib import Path
        >>> from .plans import size_of
        >>> few = [CANDIDATES["momentum"]]
        >>> board(size_of("quick"), Store(Path("nowhere")), few, few)["excess_far"].to_list()
        [nan]
    """
    table: dict[str, dict[str, Any]] = {each.name: {"candidate": each.name, "method": each.method} for each in who}
    for name, sweep in zip(PROBLEMS, fairness_sweeps(size, who), strict=True):
        rows = found_rows(sweep, store)
        for each in who:
            own = _of(rows, each.name)
            table[each.name][f"excess_{name}"] = _mean(row.get("excess") for row in own)
            says = [row["slow_over_fast"] for row in own if row.get("slow_over_fast") is not None]
            table[each.name][f"say_{name}"] = sum(says) / len(says) if says else math.nan
    bound = CounterExample(size.workers).promised.bound
    rows = found_rows(counter_example_sweep(size, who), store)
    for each in who:
        table[each.name]["theorem"] = _mean(row.get("squared_gradient_mean") for row in _of(rows, each.name)) / bound
    for name, sweep in stability_sweeps(size, who, few).items():
        rows = whole_seeds(found_rows(sweep, store), len(size.rates))
        shares = stability(rows, within=WITHIN, named="candidate") if rows else {}
        for each in who:
            if each.name in shares:
                found = shares[each.name]
                best = [row for row in _of(rows, each.name) if row["lr"] == found.best]
                more = {
                    f"stable_{name}": found.share,
                    f"runs_{name}": found.runs,
                    f"f1_{name}": found.score,
                    f"lr_{name}": found.best,
                    f"slow_f1_{name}": _mean(row["f1_slow"] for row in best),
                    f"say_{name}": _mean(row.get("slow_over_fast") for row in best),
                }
                table[each.name] |= more
    return pl.DataFrame(list(table.values()), infer_schema_length=None)


def front_of(table: pl.DataFrame, stable: str, fair: str) -> list[str]:
    """Return the candidates on the front of two columns: the share of good runs, and a loss or an influence.

    Of a column of losses (``excess_...``, ``theorem``) less is better, and what differs by less than a half is taken
    for the same, since it is noise; an influence is best at 1.

    Examples:
        >>> rows = [("a", 0.9, 1.0), ("b", 0.5, 0.002), ("c", 0.5, 0.3)]
        >>> table = pl.DataFrame(rows, schema=["candidate", "stable", "excess_far"], orient="row")
        >>> front_of(table, "stable", "excess_far")
        ['a', 'b']
    """
    rows = table.select("candidate", stable, fair).drop_nulls().rows()
    return [s.name for s in front(Score(name, share, _worth(fair, value)) for name, share, value in rows)]


def _worth(column: str, value: float) -> float:
    if math.isnan(value):
        return math.nan
    if column.startswith("say"):
        return -abs(round(value, 2) - 1.0)
    if math.isinf(value):
        return -math.inf
    return -round(math.log(max(value, 1e-12)) / math.log(1.5))  # steps of a half: less is noise
