"""What a comparison shows, in a few sentences: every number in them is computed from its runs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl

from .._util.wording import listed, percent
from .results import Results
from .statistics import median

__all__ = ["conclusion"]

_BEST = 3
"""So many methods are named as the best ones."""
_PEERS = ("async-sgd", "sync-minibatch")
"""The same rule without and with waiting."""
_ORDERED, _UNORDERED = "ordered-momentum", "momentum"
_OURS = ("catch-up", "balanced-catch-up", "balanced-momentum", "rate-free")
_DEPENDENT, _CONTROL = "slow-samples", "independent"


def conclusion(found: Results) -> list[str]:
    """Return who is fast where, whether waiting pays, what happens to slow samples, and what to doubt.

    Sentences that need methods or delay models that were not compared are left out. Code is in backticks.
    """
    summary = found.summary()
    if summary.is_empty():
        return []
    lines = [_overall(found), *_per_problem(summary)]
    lines += [*_waiting(summary), *_slow_samples(summary), *_paper(summary), *_ours(summary)]
    return [*lines, _doubts(found, summary)]


def _overall(found: Results) -> str:
    table = found.overall()
    best = [f"{_code(row['method'])} {percent(row['within 2'])}" for row in table.head(_BEST).iter_rows(named=True)]
    instances = found.runs.select("problem", "delays", "seed").n_unique()
    return (
        f"**All together**: {table.height} methods on {instances} instances (problem, delay model, seed). Most often "
        f"within twice the fastest time: {listed(best)} of the instances that all methods were run on."
    )


def _per_problem(summary: pl.DataFrame) -> Iterator[str]:
    """Yield per problem the fastest methods under each delay model; those that tie are all fastest."""
    for (problem,), own in summary.group_by(["problem"], maintain_order=True):
        named: dict[str, list[str]] = {}
        for (delays,), rows in own.group_by(["delays"], maintain_order=True):
            reach = rows.filter(pl.col("time").is_finite())
            tied = reach.filter(pl.col("time") == reach["time"].min())["method"].to_list() if reach.height else []
            more = f" and {len(tied) - _BEST} more" if len(tied) > _BEST else ""
            names = ", ".join(map(_code, tied[:_BEST])) + more if tied else "none reaches the target"
            named.setdefault(names, []).append(str(delays))
        yield (
            f"**{problem}**, fastest: " + "; ".join(f"{who} ({', '.join(where)})" for who, where in named.items()) + "."
        )


def _waiting(summary: pl.DataFrame) -> Iterator[str]:
    asynchronous, waiting = _PEERS
    ratios = _ratios(summary, asynchronous, waiting)
    if ratios:
        not_paying = [f"{problem} under {delays}" for (problem, delays), ratio in ratios.items() if ratio >= 1.0]
        where = f"It does not pay on {listed(not_paying)}" if not_paying else "It pays in all of them"
        against = _against(ratios, waiting)
        yield f"**Waiting**: with one rule, SGD, not waiting ({_code(asynchronous)}) {against}. {where}."


def _slow_samples(summary: pl.DataFrame) -> Iterator[str]:
    """Yield how far the slow group is behind under delays that follow the data, relative to the control."""
    behind: dict[str, list[float]] = {}
    for (_, method), own in summary.group_by(["problem", "method"], maintain_order=True):
        losses = {row["delays"]: row["loss_slow"] for row in own.iter_rows(named=True)}
        dependent, control = (losses.get(delays) or math.nan for delays in (_DEPENDENT, _CONTROL))
        if math.isfinite(dependent / control):
            behind.setdefault(str(method), []).append(dependent / control)
    middle = sorted(((median(values), method) for method, values in behind.items()), reverse=True)
    if len(middle) < 2:
        return
    worst = [f"{_code(method)} {ratio:.2f}" for ratio, method in middle[:_BEST]]
    best = [f"{_code(method)} {ratio:.2f}" for ratio, method in middle[::-1][:_BEST]]
    yield (
        f"**Slow samples**: the last loss of the slow group when delays follow the data, over that when they do not "
        f"(median over problems), is largest for {listed(worst)} and smallest for {listed(best)}."
    )


def _paper(summary: pl.DataFrame) -> Iterator[str]:
    ratios = _ratios(summary, _ORDERED, _UNORDERED)
    if ratios:
        yield f"**The paper's ordering**: {_code(_ORDERED)} {_against(ratios, _UNORDERED)}."


def _ours(summary: pl.DataFrame) -> Iterator[str]:
    several = [(method, _ratios(summary, method, _UNORDERED)) for method in _OURS]
    words = [f"{_code(method)} {_against(ratios, _UNORDERED)}" for method, ratios in several if ratios]
    if words:
        yield f"**Ours**: {'; '.join(words)}."


def _doubts(found: Results, summary: pl.DataFrame) -> str:
    tuned = summary.filter(pl.col("options").str.contains("lr="))
    at_end = tuned["rate"].is_not_null()
    evaluations, seeds = found.comparison.evaluations, len(found.comparison.seeds)
    rates = f"the chosen learning rate is at an end of its range in {int(at_end.sum())} of {tuned.height} cases, "
    return (
        f"**Doubts**: {rates if tuned.height else ''}each method was tuned on one seed and run on {seeds}, times are "
        f"known to 1/{evaluations} of a run, and nothing here is a test: a rank describes these runs."
    )


def _ratios(summary: pl.DataFrame, method: str, other: str) -> dict[tuple[str, str], float]:
    """Return the median time of one method over that of another, per problem and delay model that one of them reaches.

    It is infinite where only the other reaches the target, and zero where only the first does.
    """
    found = {}
    for (problem, delays), own in summary.group_by(["problem", "delays"], maintain_order=True):
        times = dict(zip(own["method"].to_list(), own["time"].to_list(), strict=True))
        a, b = times.get(method, math.nan), times.get(other, math.nan)
        if not math.isnan(a + b) and math.isfinite(min(a, b)):
            found[str(problem), str(delays)] = 0.0 if math.isinf(b) else a / b if b else 1.0
    return found


def _against(ratios: dict[tuple[str, str], float], other: str) -> str:
    """Say how often a method is faster than another, a miss being slower, and by how much where both get there."""
    values = list(ratios.values())
    faster, slower = sum(ratio < 1 for ratio in values), sum(ratio > 1 for ratio in values)
    both = sorted(ratio for ratio in values if 0 < ratio < math.inf)
    spread = f", {both[0]:.2f} to {both[-1]:.2f}," if len(both) > 1 else ""
    times = f" ({median(both):.2f} of its time{spread} where both reach the target)" if both else ""
    return f"is faster than {_code(other)} in {faster} and slower in {slower} of {len(values)} cases{times}"


def _code(name: str) -> str:
    return f"`{name}`"
