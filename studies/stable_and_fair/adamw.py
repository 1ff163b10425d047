"""AdamW under delays: how far the balanced clip keeps it stable, and what it does to slow samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl

from latecomer._util.intervals import Interval, mean
from latecomer.experiments import Store, Sweep

from .board import (
    UNIFORM_LOSS,
    WITHIN,
    ended,
    ends,
    found_rows,
    mean_influence_ratio,
    mean_or_inf,
    same_seeds,
    whole_seeds,
)
from .candidates import BETA, CANDIDATES, Candidate
from .plans import METRICS, Metric, Size, fairness_sweeps, stability_sweeps
from .stability import Stability, stability

__all__ = ["ADAMW", "RATES", "SEEDS", "adamw_curves", "adamw_plan", "adamw_table"]

SEEDS = (200, 201, 202, 203, 204)
"""Seeds that nothing was chosen on; MNIST, the slowest, has the first three."""
RATES: Mapping[str, tuple[float, ...]] = {
    "adam": tuple(float(f"{10 ** (i / 3 - 4):.3g}") for i in range(10)),
    "momentum": tuple(float(f"{10 ** (i / 3 - 3):.3g}") for i in range(10)),
}
"""Learning rates of each kind: three decades, 0.0001 to 0.1 for AdamW, ten times that for momentum."""
ADAMW: Mapping[str, Candidate] = {
    each.name: each
    for each in (
        Candidate("balanced-adamw", "balanced-adamw", {"beta": BETA}),
        CANDIDATES["catch-up-adamw"],
        Candidate("torch-adamw", "torch-adamw", {"beta": BETA}),
        CANDIDATES["balanced-catch-up"],
    )
}
"""The candidates of this comparison; torch-adamw takes gradients as they come."""
OURS = "balanced-adamw"
FAR_LR = 60.0
"""Learning rate times updates on the quadratic, as in the main comparison."""
GUESSING_F1 = 0.05
"""A run is no better than guessing if its F1 ends below; a loss if it ends at that of guessing bytes or above."""


def adamw_plan(size: Size) -> dict[str, Sweep]:
    """Return the runs by problem: over learning rates on digits, and where the size has them MNIST and text; far.

    Making them registers the method torch-adamw.
    """
    own = tuple(each.grid(_rates(each, size)) for each in ADAMW.values())
    file = str(Path(__file__).parent / "registered" / "torch_adamw.py")
    far = fairness_sweeps(size, ())["far"]
    fair = tuple(each.grid([FAR_LR / size.fair_steps]) for each in ADAMW.values())
    sweeps = {
        **{
            problem: replace(sweep, seeds=SEEDS[: min(size.seeds, 3) if problem == "mnist" else size.seeds], grids=own)
            for problem, sweep in stability_sweeps(replace(size, cifar10=None), ()).items()
        },
        "far": replace(far, seeds=SEEDS[: size.fair_seeds], grids=fair),
    }
    return {
        problem: replace(sweep, name=f"adamw-{problem}-{size.name}", imports=(file,))
        for problem, sweep in sweeps.items()
    }


def _rates(candidate: Candidate, size: Size) -> tuple[float, ...]:
    return RATES[candidate.kind] if size.seeds > 1 else RATES[candidate.kind][::3]


def _rows(size: Size, store: Store, sweep: Sweep) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every candidate that has a whole seed."""
    count = len(_rates(ADAMW[OURS], size))
    rows = whole_seeds(found_rows(sweep, store, ADAMW.values()), count)
    grouped = {name: [row for row in rows if row["candidate"] == name] for name in ADAMW}
    return {name: own for name, own in grouped.items() if own}


def adamw_table(size: Size, store: Store) -> pl.DataFrame:
    """Return one row per problem and candidate, from the runs in the store.

    ``stable`` is the share of runs that ended within 5 % of the best mean of any candidate, ``stable_kind`` of the best
    of its kind, AdamW or momentum. ``decades`` is the width of the longest stretch of neighbouring learning rates in
    ``stable_kind``, mean over seeds; a learning rate stands for the distance to the next one. ``guessing`` counts runs
    that diverged, ended with an F1 below 0.05, or with a loss no better than that of guessing bytes. ``best`` and
    ``slow`` are F1 and that of the slow class at the candidate's own best learning rate ``lr`` (on text the loss, and
    that on the longest windows), with ``influence`` the relative influence of slow samples there, clip included, and
    ``clipped_slow`` and ``clipped_fast`` the shares of arrivals that were clipped. ``influence_all`` is the mean over
    all learning rates. Columns that begin with ``lead_`` are balanced-adamw minus the candidate, paired by seed. The
    rows of *far*, the quadratic whose centres are 10 apart, have ``influence``, ``excess`` and ``seeds`` alone.
    """
    table: list[dict[str, Any]] = []
    plan = adamw_plan(size)
    for problem, sweep in plan.items():
        if problem not in METRICS:
            continue
        metric, rows = METRICS[problem], _rows(size, store, sweep)
        found = {name: _measures(name, rows, metric) for name in rows}
        for name, (columns, by_seed) in found.items():
            lead: dict[str, float] = {}
            if name != OURS and OURS in found:
                for key, theirs in by_seed.items():
                    lead |= _interval(f"lead_{key}", _paired(found[OURS][1][key], theirs))
            table.append({"problem": problem, "candidate": name, **columns, **lead})
    fair = same_seeds(found_rows(plan["far"], store, ADAMW.values()))
    for name in ADAMW if table else ():
        if own := [row for row in fair if row["candidate"] == name]:
            excess, influence = mean_or_inf(row.get("excess") for row in own), mean_influence_ratio(own)
            measured = {"influence": influence, "excess": excess, "seeds": len(own)}
            table.append({"problem": "far", "candidate": name, **measured})
    return pl.DataFrame(table, infer_schema_length=None)


def _measures(
    name: str, rows: Mapping[str, list[dict[str, Any]]], metric: Metric
) -> tuple[dict[str, Any], dict[str, dict[int, float]]]:
    """Return the columns of a candidate, and by seed what is compared in pairs."""
    own, kind = rows[name], ADAMW[name].kind
    overall = _stable([row for each in rows.values() for row in each], metric)[name]
    peers = [row for peer, each in rows.items() if ADAMW[peer].kind == kind for row in each]
    within = _stable(peers, metric)
    shares, top = within[name], _top(within, metric)
    columns = ends(own, overall, metric)
    best = {row["seed"]: row for row in own if row["lr"] == columns["lr"]}
    bands = {seed: _band([row for row in own if row["seed"] == seed], metric, top) for seed in shares.by_seed}
    by_seed = {
        "stable_kind": dict(shares.by_seed),
        "decades": bands,
        "best": {seed: ended(row, metric) for seed, row in best.items()},
        "slow": {seed: float(row[metric.slow]) for seed, row in best.items() if row.get(metric.slow) is not None},
    }
    columns |= _interval("stable_kind", shares.interval) | {"stable_kind": shares.share}
    columns |= _interval("decades", _interval_of(bands)) | {"decades": fmean(bands.values())}
    columns |= {
        "guessing": sum(_is_guessing(row, metric) for row in own),
        "influence": mean_influence_ratio(list(best.values())),
        "influence_all": mean_influence_ratio(own),
        **{key: _mean_of(list(best.values()), key) for key in ("clipped_slow", "clipped_fast")},
    }
    return columns, by_seed


def _stable(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Stability]:
    return stability(rows, metric=metric.name, least=metric.least, within=WITHIN, named="candidate")


def _top(found: Mapping[str, Stability], metric: Metric) -> float:
    return (min if metric.least else max)(each.score for each in found.values())


def _band(rows: Sequence[Mapping[str, Any]], metric: Metric, top: float) -> float:
    """Return the width in decades of the longest stretch of neighbouring good learning rates of one seed.

    Examples:
        >>> rows = [{"lr": lr, "f1": f1} for lr, f1 in zip(RATES["adam"], [0.1, 0.9, 0.9, 0.2, 0.9])]
        >>> round(_band(rows, Metric(), 0.9), 2)
        0.67
    """
    longest = now = 0
    ordered = sorted(rows, key=lambda row: float(row["lr"]))
    for row in ordered:
        end = ended(row, metric)
        good = end <= (1.0 + WITHIN) * top if metric.least else end >= (1.0 - WITHIN) * top
        now = now + 1 if good and row.get("diverged_at") is None else 0
        longest = max(longest, now)
    return longest * math.log10(ordered[-1]["lr"] / ordered[0]["lr"]) / (len(ordered) - 1)


def _is_guessing(row: Mapping[str, Any], metric: Metric) -> bool:
    """Whether a run diverged or learnt nothing.

    Examples:
        >>> _is_guessing({"f1": 0.02}, Metric()), _is_guessing({"f1": 0.9, "diverged_at": 3}, Metric())
        (True, True)
        >>> _is_guessing({"loss": 3.3}, METRICS["text"])
        False
    """
    end = ended(row, metric)
    return end >= UNIFORM_LOSS if metric.least else end < GUESSING_F1


def _paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    return _interval_of({seed: ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()})


def _interval_of(by_seed: Mapping[int, float]) -> Interval | None:
    values = [by_seed[seed] for seed in sorted(by_seed)]
    return mean(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def _interval(name: str, found: Interval | None) -> dict[str, float]:
    return {} if found is None else {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _mean_of(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return fmean(values) if values else None


def adamw_curves(size: Size, store: Store) -> pl.DataFrame:
    """Return how candidates ended by learning rate: the mean over seeds of score, slow score and influence.

    Columns: ``problem``, ``candidate``, ``lr``, ``value`` with the worst and best seed ``low`` and ``high``, ``slow``,
    ``influence``, ``guessing`` and ``seeds``.
    """
    table: list[dict[str, Any]] = []
    for problem, sweep in adamw_plan(size).items():
        if problem not in METRICS:
            continue
        metric = METRICS[problem]
        for name, rows in _rows(size, store, sweep).items():
            for lr in sorted({row["lr"] for row in rows}):
                here = [row for row in rows if row["lr"] == lr]
                scores = [ended(row, metric) for row in here]
                slow = [ended(row, replace(metric, name=metric.slow)) for row in here]
                table.append(
                    {
                        "problem": problem,
                        "candidate": name,
                        "lr": lr,
                        "value": fmean(scores),
                        "low": min(scores),
                        "high": max(scores),
                        "slow": fmean(slow),
                        "influence": mean_influence_ratio(here),
                        "guessing": sum(_is_guessing(row, metric) for row in here),
                        "seeds": len(here),
                    }
                )
    return pl.DataFrame(table, infer_schema_length=None)
