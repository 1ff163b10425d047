"""The demo's page and the figures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..report.html import Markup, render
from ..trace import Trace
from . import figures
from .runs import DemoRun
from .tables import rows

__all__ = ["write_demo"]


def write_demo(results: Sequence[DemoRun], trace: Trace, out: Path, command: str) -> Path:
    """Write the demo's figures and page into a folder and return the page.

    Args:
        results: All runs.
        trace: The schedule to show.
        out: The folder; it must exist.
        command: The command that makes the page again.
    """
    drawn = {
        "timeline": figures.timeline(trace),
        "delays": figures.delays(trace),
        "influence": figures.influence_curves(),
        "relative_influence": figures.relative_influence(results),
        "slow_and_fast": figures.slow_and_fast(results),
        "curves": figures.curves(results),
    }
    for name, text in drawn.items():
        (out / f"{name.replace('_', '-')}.svg").write_text(text, encoding="utf-8")
    slow = trace.group == 1
    text = render(
        "demo.html",
        **{name: Markup(text) for name, text in drawn.items()},
        rows=rows(results),
        workers=trace.header.workers,
        steps=len(trace),
        seeds=len({result.seed for result in results}),
        slow_share=slow.mean(),
        slow_delay=trace.delay[slow].mean(),
        fast_delay=trace.delay[~slow].mean(),
        command=command,
    )
    page = out / "index.html"
    page.write_text(text, encoding="utf-8")
    return page
