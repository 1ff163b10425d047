"""Results of every candidate from the runs in a store: one row each, for figures and tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from latecomer.experiments import Store, Sweep
from latecomer.theory import CounterExample

from .candidates import CANDIDATES, RECOMMENDED, Candidate, find
from .pareto import Score, front
from .plans import METRICS, Metric, Size, counter_example_sweep, fairness_sweeps, stability_sweeps
from .stability import Stability, stability

__all__ = [
    "board",
    "ended",
    "ends",
    "found_rows",
    "front_of",
    "mean_influence_ratio",
    "mean_or_inf",
    "over_rates",
    "same_seeds",
    "shares_of",
    "shown",
    "whole_seeds",
]

WITHIN = 0.05
"""A run is good if it ends within this share of the best."""


def found_rows(
    sweep: Sweep, store: Store, who: Iterable[Candidate] = tuple(CANDIDATES.values())
) -> list[dict[str, Any]]:
    """Return the rows of a sweep's runs that are in the store, each with its ``candidate``, one of ``who``.

    Examples:
        >>> from pathlib import Path
        >>> from .plans import size_of
        >>> found_rows(counter_example_sweep(size_of("quick"), [CANDIDATES["momentum"]]), Store(Path("nowhere")))
        []
    """
    named, among = {}, tuple(who)
    for run in sweep.runs():
        # The counter-example has a beta of its own.
        options = {k: CANDIDATES["momentum"].options["beta"] if k == "beta" else v for k, v in run.options.items()}
        candidate = find(run.method, options, among)
        if run.key in store and candidate is not None:
            named[run.key] = candidate.name
    rows = [{**row, "candidate": named[row["key"]]} for row in store.rows(list(named))]
    for row in rows:
        if "slow_over_fast" not in row:
            raise ValueError(
                f"Run {row['key'][:12]} in {store.folder} was made by another command, which did not look at what the "
                "research needs: use another store"
            )
    return rows


def whole_seeds(rows: Sequence[dict[str, Any]], rates: int) -> list[dict[str, Any]]:
    """Return the rows of candidates and seeds with all learning rates, because only their shares are comparable.

    Examples:
        >>> rows = [{"candidate": "a", "seed": 0, "lr": lr} for lr in (0.1, 0.2)]
        >>> len(whole_seeds([*rows, {"candidate": "a", "seed": 1, "lr": 0.1}], rates=2))
        2
    """
    count = Counter((row["candidate"], row["seed"]) for row in rows)
    return [row for row in rows if count[row["candidate"], row["seed"]] == rates]


def mean_or_inf(values: Iterable[float | None]) -> float:
    """Return the mean; NaN of no values, infinite if a diverged run has none.

    Examples:
        >>> mean_or_inf([1.0, 3.0]), mean_or_inf([1.0, None])
        (2.0, inf)
    """
    numbers = [math.inf if value is None else value for value in values]
    return sum(numbers) / len(numbers) if numbers else math.nan


def mean_influence_ratio(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean influence of slow over fast samples over the runs that have one.

    Examples:
        >>> mean_influence_ratio([{"slow_over_fast": 0.5}, {"slow_over_fast": None}]), mean_influence_ratio([])
        (0.5, None)
    """
    ratios = [row["slow_over_fast"] for row in rows if row["slow_over_fast"] is not None]
    return sum(ratios) / len(ratios) if ratios else None


def _of(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["candidate"] == name]


def same_seeds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the seeds that all candidates share, because means over others are not comparable.

    Examples:
        >>> same_seeds([{"candidate": name, "seed": seed} for name, seed in (("a", 0), ("a", 1), ("b", 1))])
        [{'candidate': 'a', 'seed': 1}, {'candidate': 'b', 'seed': 1}]
    """
    seeds: dict[str, set[int]] = {}
    for row in rows:
        seeds.setdefault(row["candidate"], set()).add(row["seed"])
    shared = set.intersection(*seeds.values()) if seeds else set()
    return [row for row in rows if row["seed"] in shared]


def _fairness(size: Size, store: Store, who: Sequence[Candidate]) -> dict[str, dict[str, float]]:
    """Return the columns of fairness per candidate."""
    table: dict[str, dict[str, float]] = {each.name: {} for each in who}
    for name, sweep in fairness_sweeps(size, who).items():
        rows = same_seeds(found_rows(sweep, store))
        for each in who:
            own = _of(rows, each.name)
            table[each.name] |= {
                f"excess_{name}": mean_or_inf(row.get("excess") for row in own),
                f"influence_{name}": math.nan if (ratio := mean_influence_ratio(own)) is None else ratio,
                f"seeds_{name}": len(own),
            }
    bound = CounterExample(size.workers).promised.bound
    rows = same_seeds(found_rows(counter_example_sweep(size, who), store))
    for each in who:
        squares = [row.get("squared_gradient_mean") for row in _of(rows, each.name)]
        table[each.name]["theorem"] = mean_or_inf(squares) / bound
    return table


def ends(rows: Sequence[dict[str, Any]], found: Stability, metric: Metric) -> dict[str, Any]:
    """Return the results of one candidate's rows, at its own best learning rate.

    Examples:
        >>> rows = [{"lr": 0.1, "seed": seed, "f1": 0.9, "f1_slow": 0.8 + seed / 10} for seed in (0, 1)]
        >>> found = ends(rows, Stability(2, 2, 0.1, 0.9, {0: 1.0, 1: 1.0}), Metric())
        >>> found["stable"], round(found["slow"], 2), found["seeds"], found["low"]
        (1.0, 0.85, 2, 1.0)
    """
    best = [row for row in rows if row["lr"] == found.best]
    return {
        **shown(found),
        "runs": found.runs,
        "lr": found.best,
        "best": found.score,
        "slow": mean_or_inf(row.get(metric.slow) for row in best),
        "influence": mean_or_inf(row.get("slow_over_fast") for row in best),
    }


def shown(found: Stability) -> dict[str, Any]:
    """Return a share, its 95 % interval and its number of seeds, by their names in the tables.

    Examples:
        >>> shown(Stability(2, 1, 0.1, 0.9, {0: 0.5}))["seeds"]
        1
    """
    low, high = (None, None) if found.interval is None else (found.interval.low, found.interval.high)
    return {"stable": found.share, "low": low, "high": high, "seeds": len(found.by_seed)}


def _lead(found: Mapping[str, Stability], name: str) -> dict[str, float]:
    """Return the lead of the recommended rule over another of its kind, paired by seed."""
    if RECOMMENDED not in found or name == RECOMMENDED or CANDIDATES[name].kind != CANDIDATES[RECOMMENDED].kind:
        return {}
    lead = found[RECOMMENDED].lead(found[name])
    return {} if lead is None else {"lead": lead.value, "lead_low": lead.low, "lead_high": lead.high}


def board(size: Size, store: Store, who: Sequence[Candidate]) -> pl.DataFrame:
    """Return one row per candidate, from the runs in the store; a seed counts if all its learning rates are there.

    ``stable_<problem>`` is the share of runs that ended within 5 % of the best mean that any candidate has at any
    learning rate, with its 95 % interval over seeds from ``low_<problem>`` to ``high_<problem>``, and
    ``runs_<problem>`` and ``seeds_<problem>`` count what it is of. At the candidate's best learning rate
    ``lr_<problem>``, ``best_<problem>`` is the mean F1 (on text the loss), ``slow_<problem>`` that of slow samples (on
    text of the longest windows), and ``influence_<problem>`` the relative influence of slow samples. With ``_kind``
    behind their first word, shares are compared with the best of candidates of the same kind alone, momentum or Adam;
    and ``lead_<problem>``, from ``lead_low_<problem>`` to ``lead_high_<problem>``, is by how much the share of the
    recommended candidate is above, paired by seed.

    For every quadratic there are ``excess_<quadratic>``, ``influence_<quadratic>`` and ``seeds_<quadratic>``, and
    ``theorem`` is the counter-example's mean squared gradient over the theorem's bound: means over the seeds that all
    have.

    Args:
        size: Size of the runs.
        store: The store.
        who: The candidates.

    Examples:
        >>> from pathlib import Path
        >>> from .plans import size_of
        >>> board(size_of("quick"), Store(Path("nowhere")), [CANDIDATES["momentum"]])["excess_far"].to_list()
        [nan]
    """
    table: dict[str, dict[str, Any]] = {each.name: {"candidate": each.name, "method": each.method} for each in who}
    for name, columns in _fairness(size, store, who).items():
        table[name] |= columns
    for problem, sweep in stability_sweeps(size, who).items():
        rows, metric = whole_seeds(found_rows(sweep, store), len(size.rates)), METRICS[problem]
        for name, found in shares_of(rows, metric).items():
            table[name] |= {f"{key}_{problem}": value for key, value in ends(_of(rows, name), found, metric).items()}
        for name, found in (within := shares_of(rows, metric, within_kind=True)).items():
            table[name] |= {f"{key}_kind_{problem}": value for key, value in shown(found).items()}
            table[name] |= {f"{key}_{problem}": value for key, value in _lead(within, name).items()}
    return pl.DataFrame(list(table.values()), infer_schema_length=None)


def shares_of(rows: Sequence[dict[str, Any]], metric: Metric, within_kind: bool = False) -> dict[str, Stability]:
    """Return the stability of every candidate that has rows.

    Args:
        rows: Runs, each with its candidate.
        metric: The metric.
        within_kind: Whether candidates are compared only with the best of their kind, momentum or Adam.

    Examples:
        >>> rows = [{"candidate": "momentum", "lr": lr, "seed": 0, "f1": f1} for lr, f1 in ((0.1, 0.9), (1.0, 0.2))]
        >>> shares_of(rows, Metric())["momentum"].share, shares_of([], Metric())
        (0.5, {})
        >>> rows += [{"candidate": "catch-up-adamw", "lr": 0.1, "seed": 0, "f1": 1.0}]
        >>> [shares_of(rows, Metric(), within_kind=w)["momentum"].share for w in (False, True)]
        [0.0, 0.5]
    """
    if not rows:
        return {}
    compare = partial(stability, metric=metric.name, least=metric.least, within=WITHIN, named="candidate")
    found = compare(rows)
    kinds = {CANDIDATES[name].kind for name, its in found.items() if math.isfinite(its.score)} if within_kind else ()
    for kind in kinds:  # one in which nobody has a learning rate that all seeds survive has no best of its own
        found |= compare([row for row in rows if CANDIDATES[row["candidate"]].kind == kind])
    return found


def over_rates(size: Size, store: Store, who: Sequence[Candidate]) -> pl.DataFrame:
    """Return how candidates ended: one row per problem, candidate and learning rate, the mean over seeds.

    A run that diverged has an F1 of 0; on text its loss, like any worse one, is that of guessing bytes. A seed counts
    once all its learning rates are there. Columns: ``problem``, ``candidate``, ``lr``, ``value``, ``seeds``.

    Examples:
        >>> from pathlib import Path
        >>> from .plans import size_of
        >>> over_rates(size_of("quick"), Store(Path("nowhere")), [CANDIDATES["momentum"]]).height
        0
    """
    table = []
    for problem, sweep in stability_sweeps(size, who).items():
        metric, grouped = METRICS[problem], dict[tuple[str, float], list[float]]()
        for row in whole_seeds(found_rows(sweep, store), len(size.rates)):
            grouped.setdefault((row["candidate"], row["lr"]), []).append(ended(row, metric))
        for each in who:
            own = sorted((lr, values) for (name, lr), values in grouped.items() if name == each.name)
            table += [(problem, each.name, lr, sum(values) / len(values), len(values)) for lr, values in own]
    columns = {"problem": pl.String, "candidate": pl.String, "lr": pl.Float64, "value": pl.Float64, "seeds": pl.Int64}
    return pl.DataFrame(table, schema=columns, orient="row")


UNIFORM_LOSS = math.log(256)
"""Loss of a uniform prediction of bytes."""


def ended(row: Mapping[str, Any], metric: Metric) -> float:
    """Return how a run ended, with a number for one that diverged: an F1 of 0, or the loss of a uniform prediction.

    Examples:
        >>> ended({"f1": 0.9}, Metric()), ended({"f1": 0.9, "diverged_at": 7}, Metric())
        (0.9, 0.0)
    """
    value = None if row.get("diverged_at") is not None else row.get(metric.name)
    if metric.least:
        return UNIFORM_LOSS if value is None else min(UNIFORM_LOSS, float(value))
    return 0.0 if value is None else float(value)


def front_of(table: pl.DataFrame, stable: str, fair: str) -> list[str]:
    """Return the candidates on the Pareto front of two columns: the share of good runs, and a loss or an influence.

    Of a column of losses (``excess_...``, ``theorem``) less is better, and they count in
    steps of a factor of 1.5, since less is noise; an influence is best at 1.

    Examples:
        >>> rows = [("a", 0.9, 1.0), ("b", 0.5, 0.002), ("c", 0.5, 0.3)]
        >>> table = pl.DataFrame(rows, schema=["candidate", "stable", "excess_far"], orient="row")
        >>> front_of(table, "stable", "excess_far")
        ['a', 'b']
    """
    rows = table.select("candidate", stable, fair).drop_nulls().rows()
    return [s.name for s in front(Score(name, share, _higher_is_better(fair, value)) for name, share, value in rows)]


def _higher_is_better(column: str, value: float) -> float:
    if math.isnan(value):
        return math.nan
    if column.startswith("influence"):
        return -abs(round(value, 2) - 1.0)
    if math.isinf(value):
        return -math.inf
    return -round(math.log(max(value, 1e-12)) / math.log(1.5))  # steps of a half: less is noise
