"""What a comparison shows, in a few sentences: every number in them is computed from its runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import polars as pl

from .._util.wording import counted, listed, percent
from .plan import Cell
from .results import Results
from .settings import DEPENDENT, INDEPENDENT
from .statistics import median

__all__ = ["conclusion", "fastest"]

_BEST = 3
"""So many methods are named as the best ones."""
_PEERS = ("async-sgd", "sync-minibatch")
"""The same rule without and with waiting."""
_ORDERED, _UNORDERED = "ordered-momentum", "momentum"
_OURS = ("catch-up", "balanced-catch-up", "balanced-momentum", "catch-up-adamw", "balanced-adamw", "rate-free")


def conclusion(found: Results) -> list[str]:
    """Return who is fast where, whether waiting pays, what happens to slow samples, and what to doubt.

    Sentences that need methods or delay models that were not compared are left out. Code is in backticks.
    """
    summary = found.summary()
    if summary["method"].n_unique() < 2:
        return []
    lines = [_overall(found, summary), *_per_problem(found, summary)]
    lines += [*_waiting(summary), *_slow_samples(found), *_ordering(summary), *_ours(summary)]
    return [*lines, _doubts(found, summary)]


def _overall(found: Results, summary: pl.DataFrame) -> str:
    table = found.overall().filter(pl.col("within 2") > 0)
    methods, sizes = summary["method"].n_unique(), summary.group_by("problem", "delays").len()["len"]
    fewer = int((sizes < methods).sum())
    what = f"**All together**: {counted(methods, 'method')} in {counted(len(sizes) - fewer, 'setting')}"
    what += " (a problem under a delay model)" + (f", some of them in {fewer} more" if fewer else "")
    if table.is_empty():
        return f"{what}. No method reaches a target that all methods were run on."
    best = [f"{_code(row['method'])} {percent(row['within 2'])}" for row in table.head(_BEST).iter_rows(named=True)]
    last = table["within 2"][min(_BEST, table.height) - 1]
    tied = table[_BEST:].filter(pl.col("within 2") == last).height
    more = f", as {counted(tied, 'other')}" if tied else ""
    return (
        f"{what}. Most often within twice the fastest method's time, in per cent of the runs where all were run: "
        f"{listed(best)}{more}."
    )


def _per_problem(found: Results, summary: pl.DataFrame) -> Iterator[str]:
    """Yield per problem the fastest methods under each delay model; those that tie are all fastest."""
    seeds = counted(len(found.comparison.seeds), "seed")
    for (problem,), own in summary.group_by(["problem"], maintain_order=True):
        named: dict[str, list[str]] = {}
        for (delays,), rows in own.group_by(["delays"], maintain_order=True):
            names = fastest(rows.filter(pl.col("time").is_finite()), "`") or "none reaches the target"
            named.setdefault(names, []).append(str(delays))
        each = "; ".join(f"{who} ({', '.join(where)})" for who, where in named.items())
        if len(named) == 1 and own["delays"].n_unique() > 1:
            each = f"{next(iter(named))} under every delay model"
        yield f"**{problem}**, fastest by the median over {seeds}: {each}. {_failing(found, str(problem))}."


def _failing(found: Results, problem: str) -> str:
    """Say how many methods reach the target of a problem on no seed, and how many do not even train."""
    by_method = found.runs.filter(problem=problem).group_by("method")
    best = by_method.agg(pl.col("time").min(), pl.col("trained").max().fill_null(value=False))
    missing = best.filter(pl.col("time").is_infinite())
    if missing.is_empty():
        return f"Each of {counted(best.height, 'method')} reaches the target at least once"
    verb = "reaches" if missing.height == 1 else "reach"
    some = f"{missing.height} of {counted(best.height, 'method')} {verb} the target on no seed under any delay model"
    lost = missing.height - int(missing["trained"].sum())
    return f"{some}; {lost} of them did not even get half of the way there in any run" if lost else some


def fastest(fastest_first: pl.DataFrame, quote: str = "") -> str:
    """Return the first method, and those that are as fast: a time is known at the resolution of evaluations."""
    if fastest_first.is_empty():
        return ""
    tied = fastest_first.filter(pl.col("time") == fastest_first["time"][0])["method"].to_list()
    more = f" and {len(tied) - _BEST} more" if len(tied) > _BEST else ""
    return ", ".join(f"{quote}{method}{quote}" for method in tied[:_BEST]) + more


def _waiting(summary: pl.DataFrame) -> Iterator[str]:
    """Yield where waiting is faster than most methods or than all, and what not waiting brings with one rule."""
    asynchronous, waiting = _PEERS
    ratios = _ratios(summary, asynchronous, waiting)
    if not ratios:
        return
    beaten = _beaten(summary, waiting)
    most = [setting for setting, (slower, of) in beaten.items() if slower > of / 2]
    every = [setting for setting, (slower, of) in beaten.items() if slower == of]
    largest = max(of for _, of in beaten.values())  # where fewer methods were run, a share means less
    best, setting = max(((slower, each) for each, (slower, of) in beaten.items() if of == largest), key=lambda x: x[0])
    slower_in = [setting for setting, ratio in ratios.items() if ratio > 1.0]
    yield (
        f"**Where asynchrony does not pay**: waiting, by SGD without momentum ({_code(waiting)}), is faster than most "
        f"other methods in {_settings(most)}, and faster than all in {_settings(every)}. At best it is faster than "
        f"{best} of {largest} others, in {_settings([setting])}. Like is compared with like only where the "
        f"rule is the same: without waiting it ({_code(asynchronous)}) {_against(ratios, waiting)}"
        f"{f', slower in {_settings(slower_in)}' if slower_in else ''}. In every setting jobs differ in duration; with "
        "equal durations waiting costs nothing."
    )


def _beaten(summary: pl.DataFrame, method: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Return how many of the other methods are slower than one, and their number, per setting that it was run in.

    A miss is slower than any time; who misses is faster than nobody.
    """
    found = {}
    for (problem, delays), own in summary.group_by(["problem", "delays"], maintain_order=True):
        times = dict(zip(own["method"].to_list(), own["time"].to_list(), strict=True))
        if method in times and len(times) > 1:
            slower = sum(time > times[method] for time in times.values())
            found[str(problem), str(delays)] = slower, len(times) - 1
    return found


def _settings(settings: Sequence[tuple[str, str]]) -> str:
    """Return the names of settings, by problem."""
    by_problem: dict[str, list[str]] = {}
    for problem, delays in settings:
        by_problem.setdefault(problem, []).append(delays)
    return listed([f"{problem} ({', '.join(several)})" for problem, several in by_problem.items()] or ["no setting"])


def _slow_samples(found: Results) -> Iterator[str]:
    """Yield who reaches a target only if delays do not follow the data, and how far the slow group is behind."""
    both = found.runs.filter(pl.col("easier").is_not_null())
    if both["delays"].n_unique() < 2:
        return
    lost: list[str] = []
    gained: list[str] = []
    half = both.group_by("problem", "delays", "method", maintain_order=True).agg(pl.col("easier").mean() > 0.5)
    for (problem,), own in half.filter("easier").group_by(["problem"], maintain_order=True):
        dependent, control = (set(own.filter(delays=delays)["method"]) for delays in (DEPENDENT, INDEPENDENT))
        for names, only in ((lost, control - dependent), (gained, dependent - control)):
            if only:
                names.append(f"{len(only)} on {problem} ({', '.join(map(_code, sorted(only)))})")
    words = [
        "**Slow samples**: methods that reach a target on most seeds when durations are independent of the data, and "
        f"miss the same target when they follow the data: {listed(lost or ['none'])}. The reverse, which only tuning "
        f"and chance can explain: {listed(gained or ['none'])}."
    ]
    slow = found.slow_losses()
    several = []
    for method in (_ORDERED, _UNORDERED, "rate-free"):
        own = slow.filter(method=method)
        if own.height:
            each = [f"{ratio:.2f} on {problem}" for problem, ratio in own.select("problem", "ratio").iter_rows()]
            several.append(f"{_code(method)} {listed(each)}")
    if several:
        words.append(
            "The last loss of the slow group if delays follow the data is so many times that of the control: "
            f"{'; '.join(several)} (table Slow samples)."
        )
    yield " ".join(words)


def _ordering(summary: pl.DataFrame) -> Iterator[str]:
    ratios = _ratios(summary, _ORDERED, _UNORDERED)
    if ratios:
        against = _against(ratios, _UNORDERED)
        yield f"**Ordering**, by Algorithm 1 of Bringing Order to Asynchronous SGD: {_code(_ORDERED)} {against}."


def _ours(summary: pl.DataFrame) -> Iterator[str]:
    several = {method: ratios for method in _OURS if (ratios := _ratios(summary, method, _UNORDERED))}
    if several:
        words = [
            f"{_code(method)} {'/'.join(map(str, _counts(ratios)))} of {len(ratios)}{_bracketed(_details(ratios))}"
            for method, ratios in several.items()
        ]
        yield (
            f"**Rules of this library**, settings in which each is faster/as fast/slower than {_code(_UNORDERED)}: "
            f"{'; '.join(words)}. They were designed on problems like these, with other seeds, and the others were not."
        )


def _doubts(found: Results, summary: pl.DataFrame) -> str:
    tuned = summary.filter(pl.col("options").str.contains("lr="))
    plan, at_end = found.comparison, int(tuned["rate"].is_not_null().sum())
    fastest_times = summary.filter(pl.col("ratio") == 1.0).unique(
        ["problem", "delays"], keep="first", maintain_order=True
    )
    rates = ""
    if tuned.height:
        chosen = counted(tuned.height, "chosen learning rate")
        rates = (
            f"at most {plan.configurations} learning rates per method were tried, chosen on one seed by the last value "
            f"and judged by the time to a target; of {chosen} {at_end} are at an end of their range; "
        )
    steps = [
        plan.setting(Cell(problem, delays)).arrivals / plan.evaluations / updates
        for problem, delays, updates in fastest_times.select("problem", "delays", "updates").iter_rows()
    ]
    coarse = f", which is {percent(min(steps))} to {percent(max(steps))} of the fastest method's time" if steps else ""
    return (
        f"**Doubts**: {rates}there are {counted(len(plan.seeds), 'seed')} to judge on; times are those of evaluations, "
        f"{plan.evaluations} per run{coarse}; and nothing here is a test: a rank describes these runs."
    )


def _ratios(summary: pl.DataFrame, method: str, other: str) -> dict[tuple[str, str], float]:
    """Return the median time of one method over that of another, per setting that both were run in.

    It is infinite where only the other reaches the target, zero where only the first does, and NaN where neither does.
    """
    found = {}
    for (problem, delays), own in summary.group_by(["problem", "delays"], maintain_order=True):
        times = dict(zip(own["method"].to_list(), own["time"].to_list(), strict=True))
        if method in times and other in times:
            a, b = times[method], times[other]
            found[str(problem), str(delays)] = a / b if b else 1.0
            if math.isinf(b):
                found[str(problem), str(delays)] = math.nan if math.isinf(a) else 0.0
    return found


def _against(ratios: dict[tuple[str, str], float], other: str) -> str:
    """Say how often a method is faster than another, a miss being slower, and by how much where both get there."""
    faster, equal, slower = _counts(ratios)
    in_all = counted(len(ratios), "setting")
    counts = f"faster than {_code(other)} in {faster}, as fast in {equal} and slower in {slower} of {in_all}"
    return f"is {counts}{_bracketed(_details(ratios))}"


def _counts(ratios: dict[tuple[str, str], float]) -> tuple[int, int, int]:
    """Return in how many settings a method is faster, as fast and slower."""
    values = ratios.values()
    return sum(ratio < 1 for ratio in values), sum(ratio == 1 for ratio in values), sum(ratio > 1 for ratio in values)


def _details(ratios: dict[tuple[str, str], float]) -> list[str]:
    both = sorted(ratio for ratio in ratios.values() if 0 < ratio < math.inf)
    neither = sum(map(math.isnan, ratios.values()))
    details = [f"neither reaches the target in {neither}"] if neither else []
    if both:
        spread = f", from {both[0]:.2f} to {both[-1]:.2f}" if len(both) > 1 else ""
        details.append(f"{len(both)} where both reach the target: median {median(both):.2f} times as long{spread}")
    return details


def _bracketed(details: Sequence[str]) -> str:
    return f" ({'; '.join(details)})" if details else ""


def _code(name: str) -> str:
    return f"`{name}`"
