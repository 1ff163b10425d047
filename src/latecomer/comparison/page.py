"""Writes a comparison: one table as CSV and Markdown, figures, and one page with all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from .._util.wording import counted, percent
from ..report.html import TablePart, cell, marked_up
from ..report.markdown import Part, write_page
from ..report.page import Drawn, write_html, write_tables
from . import figures
from .results import Results
from .settings import DELAYS, TUNING_SEED
from .words import conclusion, fastest

__all__ = ["write_comparison"]

_COLUMNS = {
    "method": "method", "options": "chosen", "reached": "reached", "time": "time", "ratio": "time / fastest",
    "updates": "updates", "final": "last {metric}", "loss_fast": "fast loss", "loss_slow": "slow loss",
    "wasted": "thrown away", "idle": "idle", "delay": "delay",
}  # fmt: skip
_WAITS = 0.05
"""A method waits if its workers are idle for more than this share of the time."""
_SHOWN = (
    "Medians over seeds, in seconds of the virtual clock. Smallest, largest: the chosen learning rate is at an end of "
    "the range that was tried. ∞: half of the runs or more missed the target. Fast and slow "
    "loss: the last loss of the fastest and the slowest group; on quadratic, unlike the last loss, not reduced by the "
    "smallest possible one. Thrown away: share of the workers' busy time that went "
    "into contributions that were dropped, cancelled or counted as zero."
)


def write_comparison(found: Results, folder: Path, made_by: str, goes_on: str) -> Path:
    """Write everything into a folder and return the page.

    Args:
        found: What the runs say.
        folder: The folder; it must exist.
        made_by: The command that wrote it.
        goes_on: The command that makes the missing runs.
    """
    summary = found.summary()
    write_tables(folder, {"comparison": summary, "runs": found.runs, "profiles": found.profiles()})
    parts = [_overall(found), *_slow_samples(found), *_parts(found, summary)]
    in_markdown = [
        Part(part.table.columns, [[text for _, text in row] for row in part.rows], part.title, part.words)
        for part in parts
    ]
    words = conclusion(found)
    small = ["**The quick size**: short runs, few configurations and seeds. It ranks nothing."]
    told = [*(small if words and found.comparison.size == "quick" else ()), *words]
    write_page(folder, "comparison", "methods on one clock", in_markdown, made_by, words=told)
    plan = found.comparison
    return write_html(
        folder,
        "comparison",
        "compare.html",
        _figures(found),
        plan=plan,
        counts=", ".join(
            counted(len(several), what)
            for several, what in ((plan.methods, "method"), (plan.problems, "problem"), (plan.delays, "delay model"))
        )
        + f", {plan.workers} workers",
        tuning_seed=TUNING_SEED,
        delays=[(name, (DELAYS[name].__doc__ or "").strip()) for name in plan.delays],
        complete=found.complete,
        hours=f"{sum(found.there.values()):,} runs took {found.cpu / 3600:.2g} CPU-hours",
        progress=[{"stage": s, "planned": found.planned[s], "there": found.there[s]} for s in found.planned],
        words=[marked_up(sentence) for sentence in words],
        winners=_winners(summary),
        parts=parts,
        shown=_SHOWN,
        made_by=made_by,
        goes_on=goes_on,
    )


def _overall(found: Results) -> TablePart:
    """Return the table of all problems and delay models together."""
    table = found.overall()
    words = (
        "Share of the instances (problem, delay model, seed) on which a method is the fastest, reaches the target "
        "within 1.5 and 2 times the fastest method's time, and reaches it at all; of problems that every method was "
        "run on. The last column is a doubt: the share of problems and delay models in which the chosen learning rate "
        "is the smallest or the largest that was tried, so that a wider range might serve the method."
    )
    shares = pl.selectors.exclude("method")
    return TablePart("overall", "All together", words, table.with_columns(shares.map_elements(percent, pl.String)))


def _slow_samples(found: Results) -> Iterator[TablePart]:
    """Yield the table of what delays that follow the data do to slow samples, one column per problem."""
    slow = found.slow_losses()
    if slow.is_empty():
        return
    ratio = pl.col("ratio").map_elements("{:.2f}".format, pl.String)
    cell_of = pl.format("{} ({} of {})", ratio, "above", "pairs").alias("cell")
    table = slow.select("method", "problem", cell_of).pivot("problem", index="method", values="cell")
    table = table.fill_null("–").sort("method")
    words = (
        "The last loss of the slow group if delays follow the data, over that if the same durations are drawn "
        "independently of it, with the same seed: the median, and on how many seeds it is above 1. Only seeds count on "
        "which both runs came half of the way to their target; methods without one are left out. Each of the two was "
        "tuned by itself."
    )
    yield TablePart("slow", "Slow samples", words, table)


def _parts(found: Results, summary: pl.DataFrame) -> list[TablePart]:
    """Return one table per cell that has judging runs."""
    parts = []
    for each, target in found.targets.items():
        own = summary.filter(problem=each.problem, delays=each.delays)
        if own.is_empty():
            continue
        setting = found.comparison.setting(each)
        goal = "none" if target is None else f"{'at least' if setting.higher else 'at most'} {target:.4g}"
        own = own.with_columns(
            (pl.col("reached").cast(pl.String) + " of " + pl.col("runs").cast(pl.String)).alias("reached"),
            *(pl.col(name).map_elements(percent, return_dtype=pl.String) for name in ("wasted", "idle")),
            pl.col("ratio", "delay").round(2),
            pl.col("time").round(1),
            pl.concat_str("options", pl.format(" ({})", "rate").fill_null("")).alias("options"),
        )
        table = own.select(pl.col(name).alias(new.format(metric=setting.metric)) for name, new in _COLUMNS.items())
        title = f"{each.problem}, {each.delays}"
        words = f"Target: {setting.metric} {goal}. {setting.arrivals:,} arrivals where every arrival is an update."
        parts.append(TablePart(f"{each.problem}-{each.delays}", title, words, table))
    return parts


def _winners(summary: pl.DataFrame) -> list[dict[str, Any]]:
    """Return per cell the fastest methods, several if they tie, and the fastest of those that wait."""
    found = []
    for (problem, delays), own in summary.group_by(["problem", "delays"], maintain_order=True):
        reach = own.filter(pl.col("time").is_finite())
        waiting = reach.filter(pl.col("idle") > _WAITS)
        behind = "" if waiting.is_empty() else f", {waiting['ratio'][0]:.3g} times"
        found.append(
            {
                "problem": problem, "delays": delays, "methods": fastest(reach) or "none",
                "waiting": (fastest(waiting) or "none") + behind,
                "time": "∞" if reach.is_empty() else cell(reach["time"][0]),
                "reached": f"{reach.height} of {own.height}",
            }
        )  # fmt: skip
    return found


def _figures(found: Results) -> Iterator[Drawn]:
    if found.runs.is_empty():
        return
    yield (
        "profiles", figures.profiles(found),
        "Share of the instances (problem, delay model, seed) that a method solves within a factor of the fastest "
        "method's time. The eight best have colours, the others are grey.",
    )  # fmt: skip
    for problem in found.runs["problem"].unique(maintain_order=True):
        yield (
            f"times-{problem}", figures.times(found, problem),
            f"{problem}: time to target over the fastest method's median. One dot per seed, bars are medians; a cross "
            "and a number: so many runs missed the target.",
        )  # fmt: skip
        if found.runs.filter(problem=problem)["loss_slow"].is_not_null().any():
            yield (
                f"groups-{problem}", figures.group_losses(found, problem),
                f"{problem}: the last loss of the fastest and of the slowest group of samples, medians over seeds.",
            )  # fmt: skip
    drawn = figures.work(found)
    if drawn is not None:
        caption = "Idle time and thrown-away work, means over problems and seeds. Methods without either are left out."
        yield "work", drawn, caption
