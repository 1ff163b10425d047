"""What the demo writes: figures, a page, and the table and the text as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .._util.defaults import DEFAULT_METHOD
from ..report.html import Markup, guide, marked_up, render
from ..trace import Trace
from . import figures
from .runs import COST, METHOD_OPTIONS, SYNCHRONOUS, WORKERS, DemoRun
from .tables import COLUMNS, TARGET, cells, rows, story

__all__ = ["write_demo"]


def write_demo(results: Sequence[DemoRun], waiting: Trace, late: Trace, out: Path, command: str) -> Path:
    """Write the demo's figures, its page and ``results.md`` into a folder and return the page.

    Args:
        results: All runs.
        waiting: A synchronous schedule to show.
        late: An asynchronous one.
        out: The folder; it must exist.
        command: The command that makes the page again.
    """
    drawn = {
        "waiting-and-dropping": figures.main_figure(results),
        "timeline": figures.timeline(waiting, late),
        "learning-rates": figures.learning_rates(results),
    }
    for name, text in drawn.items():
        (out / f"{name}.svg").write_text(text, encoding="utf-8")
    found, paragraphs = [cells(row) for row in rows(results)], story(results)
    slow = late.group == 1
    text = render(
        "demo.html",
        **{name.replace("-", "_"): Markup(text) for name, text in drawn.items()},
        columns=COLUMNS,
        rows=found,
        story=[marked_up(paragraph) for paragraph in paragraphs],
        target=TARGET,
        workers=WORKERS,
        cost=COST,
        threshold=METHOD_OPTIONS["delay-filtered"]["threshold"],
        default=DEFAULT_METHOD,
        has_rate="lr" in METHOD_OPTIONS[DEFAULT_METHOD],
        synchronous=SYNCHRONOUS,
        steps=len(late),
        seconds=float(late.end[-1]),
        seeds=len({result.seed for result in results}),
        slow_share=slow.mean(),
        slow_delay=late.delay[slow].mean() if slow.any() else 0.0,
        fast_delay=late.delay[~slow].mean(),
        command=command,
        choosing=guide("choosing", "How to choose", out),
        rate_free=guide("rate-free", "Training without a learning rate", out),
    )
    page = out / "index.html"
    page.write_text(text, encoding="utf-8")
    lines = ["# Results of the demo", "", f"`{command}`", "", "## In words", ""]
    lines += [f"- {paragraph}" for paragraph in paragraphs]
    lines += ["", "## Table", "", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row)} |" for row in found]
    (out / "results.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return page
