"""The page of a run: the same parts for a recorded run, in one offline file, and for one in progress."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._util.files import atomic
from ..core.result import Run
from ..report.html import Markup, guide, render
from ..report.timeline import timeline
from ..trace import STATUSES
from ..trace.summary import group_rows
from . import figures
from .view import RunView, short

__all__ = ["document", "parts", "report", "title"]

_CLOSE = 60  # arrivals of the closer look
_DRAWN_ONE_BY_ONE = 400  # runs with fewer arrivals need none
_FAULTS = 50
_METRICS = 5
_GROUPS = 20


def report(
    run: str | os.PathLike[str] | Run | RunView,
    out: str | os.PathLike[str],
    other: Run | RunView | None = None,
    remark: str = "",
) -> Path:
    """Write a page of a run, one HTML file that needs no network, and return its path.

    Args:
        run: The record that ``fit(record=...)`` wrote, a trace that was saved, or the result of `latecomer.fit` or
            `latecomer.simulate`.
        out: The file to write.
        other: Another method on the same arrivals, shown beside it: ``replay(...).run``.
        remark: A sentence to show under the heading.

    Examples:
        >>> import latecomer as lc, tempfile
        >>> trace = lc.delays.DataDependent(workers=3, slow_share=0.2).trace(steps=100, seed=0)
        >>> problem = lc.problems.two_centres()
        >>> one, two = (lc.simulate(problem, name, trace, lr=0.01) for name in ("momentum", "ordered-momentum"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = report(one, f"{folder}/run.html", other=two)
        ...     "ordered-momentum" in path.read_text()
        True
    """
    view = _view(run)
    path = Path(out)
    text = document(view, None if other is None else _view(other), remark=remark, folder=path.parent)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def _view(run: Any) -> RunView:
    if isinstance(run, RunView):
        return run
    if isinstance(run, Run):
        return RunView.of_run(run)
    if isinstance(run, (str, os.PathLike)):
        return RunView.of_record(run)
    raise TypeError(f"Invalid run: {run!r} (expected the name of a recorded trace, or the result of fit or simulate)")


def document(
    view: RunView | None,
    other: RunView | None = None,
    *,
    remark: str = "",
    live: bool = False,
    folder: Path | None = None,
) -> str:
    """Return the whole page; a live one gets its parts later if there is no view yet, and has no folder."""
    empty = dict.fromkeys(_ORDER, "")
    found = empty if view is None else empty | parts(view, other)
    marked = {name: Markup(text) for name, text in found.items()}
    link = guide("seeing-a-run", "Seeing a run", folder)
    return render("run.html", parts=marked, remark=remark, live=live, title=title(view, other), guide=link)


def title(view: RunView | None, other: RunView | None = None) -> str:
    """Return the heading of the page."""
    if view is None:
        return "A run is starting"
    workers = f"{view.trace.header.workers:,} worker{'s' if view.trace.header.workers != 1 else ''}"
    words = f"{view.method}, {workers}" if view.method else f"A schedule of {workers}"
    return words if other is None else f"{words}, and {other.method} on the same arrivals"


_ORDER = ("summary", "notes", "beside", "timeline", "loss", "throughput", "groups", "faults")


def parts(view: RunView, other: RunView | None = None) -> dict[str, str]:
    """Return the parts of the page as HTML, by name."""
    return {
        "summary": _pairs(view.summary()),
        "notes": "".join(f"<p>{Markup.escape(note)}</p>" for note in _notes(view, other)),
        "beside": _beside(view, other) if other is not None else "",
        "timeline": _timeline(view),
        "loss": _curves(view, other),
        "throughput": _section("Throughput", _figure("throughput", figures.throughput(view), wide=True)),
        "groups": _groups(view, other),
        "faults": _faults(view),
    }


# ---- parts ------------------------------------------------------------------------------------------------------


def _notes(view: RunView, other: RunView | None) -> list[str]:
    """Return what a reader should know before the figures."""
    notes = []
    if view.diverged_at is not None:
        notes.append(f"The run diverged at arrival {view.diverged_at:,}.")
    if view.history is None and other is None:
        notes.append(
            "This file has no history, so there is no loss to show: it is a trace alone, or a record of a version "
            "before 0.2."
        )
    for each in (view, other):
        for name in [] if each is None else ["train_loss", *each.metrics]:
            x, y = each.series(name) if each is not None else (np.zeros(0), np.zeros(0))
            bad = ~np.isfinite(y) & (x > 0)
            if name != "train_loss" and bad.any():
                notes.append(
                    f"{name} of {each.method if each else ''} is missing or not finite in {int(bad.sum()):,} of "
                    f"{len(x):,} evaluations, first at arrival {int(x[bad][0]):,}."
                )
    return notes


def _beside(view: RunView, other: RunView | None) -> str:
    """Return the last numbers of both runs side by side."""
    if other is None:
        return ""
    here, there = view.last, other.last
    rows = [[name, short(here.get(name)), short(there.get(name))] for name in here | there]
    first, second = view.influence(), other.influence()
    for group, name in enumerate(view.trace.header.groups[:_GROUPS]):
        cells = ["" if found is None else short(float(found[group])) for found in (first, second)]
        if any(cells):
            rows.append([f"influence of {name}", *cells])
    for status, words in (("zero", "of weight zero"), ("dropped", "dropped"), ("held", "held")):
        counts = [int((each.trace.columns["status"] == STATUSES.index(status)).sum()) for each in (view, other)]
        if any(counts):
            rows.append([f"arrivals {words}", *(f"{count:,}" for count in counts)])
    options = ", ".join(f"{name}={short(value)}" for name, value in other.options.items()) or "its defaults"
    words = f"{other.method} ({options}) was replayed on the same arrivals and the same samples."
    heads = ["", view.method or "recorded", other.method]
    return _section("Another method on the same arrivals", f"<p>{Markup.escape(words)}</p>{_table(heads, rows)}")


def _timeline(view: RunView) -> str:
    trace = view.trace
    marks = None
    if view.faults is not None:
        times = ((fault.time if view.clock else fault.arrival, fault.worker) for fault in view.faults)
        marks = [(float(time), worker) for time, worker in times if time is not None and worker is not None]
    shown = _figure("timeline", timeline(trace, "Who computed what, over the whole run", marks=marks), wide=True)
    if len(trace) > _DRAWN_ONE_BY_ONE:
        last = min(len(trace) - 1, max(_CLOSE, 12 * trace.header.workers))
        at = float(trace.end[-last - 1]) if view.clock else float(len(trace) - last)
        shown += _figure("closer", timeline(trace, f"The last {last:,} arrivals", low=at, marks=marks), wide=True)
    return _section("Workers", shown)


def _curves(view: RunView, other: RunView | None) -> str:
    names = list(dict.fromkeys([*view.metrics, *(other.metrics if other is not None else [])]))
    drawn = [("loss", figures.metric(view, other, *(["loss"] if "loss" in names else []), "train_loss"))]
    rest = [name for name in names if name != "loss"]
    drawn += [(f"metric-{index}", figures.metric(view, other, name)) for index, name in enumerate(rest[:_METRICS])]
    shown = "".join(_figure(name, svg) for name, svg in drawn if svg)
    more = f"<p>Not drawn: {Markup.escape(', '.join(rest[_METRICS:]))}.</p>" if rest[_METRICS:] else ""
    return _section("Loss and metrics", f'<div class="figures">{shown}</div>{more}' if shown else "")


def _groups(view: RunView, other: RunView | None) -> str:
    drawn = _figure("delays", figures.delays(view)) + _figure("influence", figures.influence(view, other))
    found = {each.method: each.influence() for each in (view, other) if each is not None}
    heads = ["group", "arrivals", "share", "mean delay", "median", "largest"]
    heads += [f"influence, {name}" for name, weight in found.items() if weight is not None]
    rows = []
    for group, row in enumerate(group_rows(view.trace, _GROUPS)):
        cells = [str(row["name"]), f"{row['arrivals']:,}", f"{row['share']:.1%}"]
        cells += [short(row[key]) for key in ("mean_delay", "median_delay", "largest_delay")]
        rows.append(cells + [short(float(weight[group])) for weight in found.values() if weight is not None])
    more = len(view.trace.header.groups) - len(rows)
    rest = f"<p>and {more:,} more groups</p>" if more > 0 else ""
    for name in (name for name, weight in found.items() if weight is None):
        rest += f"<p>{Markup.escape(name)} declares no influence that follows from delays alone.</p>"
    return _section("Delay and influence by group", f'<div class="figures">{drawn}</div>{_table(heads, rows)}{rest}')


def _faults(view: RunView) -> str:
    lost = int((view.trace.columns["status"] == STATUSES.index("lost")).sum())
    jobs = "job was" if lost == 1 else "jobs were"
    reissued = f"{lost:,} {jobs} lost and issued again." if lost else "No job was lost."
    if view.faults is None:
        return _section("Faults", f"<p>This file has no list of faults. {reissued}</p>")
    kept = list(view.faults)
    total = sum(view.faults.counts.values())
    if not total:
        return _section("Faults", f"<p>None. {reissued}</p>")
    rows = [
        [
            "" if fault.time is None else f"{fault.time:,.2f} s",
            f"{fault.arrival:,}",
            fault.kind,
            *("" if number is None else f"{number:,}" for number in (fault.worker, fault.ticket)),
            fault.reason,
        ]
        for fault in kept[: -_FAULTS - 1 : -1]
    ]
    counted = ", ".join(f"{count:,} {kind}" for kind, count in view.faults.counts.items())
    more = f" The newest {len(rows)} of {total:,} are listed." if total > len(rows) else " Newest first."
    words = f"<p>{Markup.escape(counted)}. {reissued}{more}</p>"
    return _section("Faults", words + _table(["time", "arrivals", "what", "worker", "ticket", "reason"], rows, words=5))


# ---- pieces of HTML ---------------------------------------------------------------------------------------------


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}" if content else ""


def _figure(name: str, svg: str, wide: bool = False) -> str:
    return f'<figure class="drawn{" wide" if wide else ""}" id="{name}">{svg}</figure>' if svg else ""


def _pairs(rows: Mapping[str, str]) -> str:
    cells = "".join(f"<div><dt>{Markup.escape(k)}</dt><dd>{Markup.escape(v)}</dd></div>" for k, v in rows.items())
    return f"<dl>{cells}</dl>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = -1) -> str:
    """Return a table; the column with this number is text."""

    def cells(row: Sequence[str], tag: str) -> str:
        kinds = [' class="words"' if index == words else "" for index in range(len(row))]
        return "".join(f"<{tag}{kind}>{Markup.escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    narrow = ' class="narrow"' if len(heads) <= 3 else ""
    head = f"<thead><tr>{cells(heads, 'th')}</tr></thead>"
    return f'<div class="table"><table{narrow}>{head}<tbody>{body}</tbody></table></div>'
