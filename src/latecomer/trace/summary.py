"""Summary of a trace as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .schema import STATUSES

if TYPE_CHECKING:
    from .table import Trace

__all__ = ["describe", "group_rows", "summary"]


def describe(trace: Trace) -> str:
    """Summarise a trace: delays by group and by worker, shares, tickets in flight."""
    header = trace.header
    lines = [
        f"{len(trace):,} arrivals of {int(trace.columns['ticket'].max()) + 1:,} tickets, {header.workers:,} workers, "
        f"policy {header.policy}, seed {header.seed}",
        header.model or "recorded",
    ]
    if len(trace) == 0:
        return "\n".join([*lines, "no arrivals"])
    out = trace.in_flight
    lines.append(f"in flight besides the arriving one: {out.mean():.2f} on average, at most {out.max():,}")
    codes = trace.columns["status"]
    counts = {status: int((codes == code).sum()) for code, status in enumerate(STATUSES) if (codes == code).any()}
    if set(counts) != {"applied"}:
        lines.append("status: " + ", ".join(f"{status} {count:,}" for status, count in counts.items()))
        if "zero" in counts:
            lines.append(
                "zero: it counted with weight zero; rules that count every version once also give weight zero to "
                "version 1, except for its first arrival"
            )
    if header.joined or header.left:
        lines.append(
            f"{len(header.joined):,} joined and {len(header.left):,} left during the run: "
            f"{trace.workers.min():,} to {trace.workers.max():,} workers"
        )
    if header.clock != "none":
        seconds = float(trace.end.max() - np.nanmin(trace.columns["start"]))
        rate = len(trace) / seconds if seconds else np.inf
        lines.append(f"{header.clock} clock: {seconds:,.6g} s, {rate:,.6g} arrivals per second")
    lines += ["", *_table("group", header.groups, trace.group, trace)]
    lines += ["", *_table("worker", range(header.workers), trace.worker, trace)]
    return "\n".join(lines)


def summary(trace: Trace) -> dict[str, Any]:
    """Return what `describe` says as data.

    Examples:
        >>> import latecomer as lc
        >>> found = summary(lc.delays.Constant(workers=2).trace(steps=100, seed=0))
        >>> found["arrivals"], found["groups"][0]["mean_delay"]
        (100, 0.99)
    """
    header, codes = trace.header, trace.columns["status"]
    found: dict[str, Any] = {
        "arrivals": len(trace),
        "tickets": int(trace.columns["ticket"].max()) + 1,
        "workers": header.workers,
        "policy": header.policy,
        "seed": header.seed,
        "model": header.model,
        "clock": header.clock,
        "statuses": {word: int((codes == code).sum()) for code, word in enumerate(STATUSES)},
    }
    if len(trace):
        found["mean_in_flight"] = float(trace.in_flight.mean())
        if header.clock != "none":
            found["seconds"] = float(trace.end.max() - np.nanmin(trace.columns["start"]))
    found["groups"] = group_rows(trace)
    found["rows"] = [_row(i, trace.delay[trace.worker == i], trace) for i in range(header.workers)]
    return found


def group_rows(trace: Trace, most: int | None = None) -> list[dict[str, Any]]:
    """Return the statistics of the arrivals of each group, or of the first ``most`` of them."""
    names = trace.header.groups[:most]
    return [_row(name, trace.delay[trace.group == i], trace) for i, name in enumerate(names)]


def _row(name: object, own: NDArray[np.int64], trace: Trace) -> dict[str, Any]:
    """Return the statistics of the arrivals of one group or one worker; null where there are none."""
    found: dict[str, Any] = {"name": name, "arrivals": len(own), "share": len(own) / max(1, len(trace))}
    found |= dict.fromkeys(("mean_delay", "median_delay", "largest_delay"))
    if len(own):
        found |= {"mean_delay": own.mean().item(), "median_delay": np.median(own).item()}
        found["largest_delay"] = int(own.max())
    return found


def _table(title: str, names: Sequence[object], which: NDArray[np.integer], trace: Trace) -> list[str]:
    lines = [f"{title:<14}{'arrivals':>12}{'share':>9}{'mean delay':>13}{'median':>9}{'largest':>10}"]
    most = 20
    for index, name in enumerate(names[:most]):
        row = _row(name, trace.delay[which == index], trace)
        numbers = f"{'-':>13}{'-':>9}{'-':>10}"
        if row["arrivals"]:
            numbers = f"{row['mean_delay']:>13.2f}{row['median_delay']:>9.1f}{row['largest_delay']:>10,}"
        lines.append(f"{str(name)[:14]:<14}{row['arrivals']:>12,}{row['share']:>9.4f}{numbers}")
    if len(names) > most:
        lines.append(f"... and {len(names) - most:,} more")
    return lines
