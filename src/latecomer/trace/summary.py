"""Summary of a trace as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .schema import STATUSES

if TYPE_CHECKING:
    from .table import Trace

__all__ = ["describe"]


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
    lines += ["", *_table("group", header.groups, trace.group, trace.delay)]
    lines += ["", *_table("worker", range(header.workers), trace.worker, trace.delay)]
    return "\n".join(lines)


def _table(title: str, names: Sequence[object], which: NDArray[np.integer], delay: NDArray[np.int64]) -> list[str]:
    lines = [f"{title:<14}{'arrivals':>12}{'share':>9}{'mean delay':>13}{'median':>9}{'largest':>10}"]
    most = 20
    for index, name in enumerate(names[:most]):
        own = delay[which == index]
        if len(own):
            numbers = f"{own.mean():>13.2f}{np.median(own):>9.1f}{own.max():>10,}"
        else:
            numbers = f"{'-':>13}{'-':>9}{'-':>10}"
        lines.append(f"{str(name)[:14]:<14}{len(own):>12,}{len(own) / len(delay):>9.4f}{numbers}")
    if len(names) > most:
        lines.append(f"... and {len(names) - most:,} more")
    return lines
