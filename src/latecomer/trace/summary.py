"""What a trace looks like, in words and numbers for people."""

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
    """Summarise a trace: delays by group and by worker, shares, what was in flight.

    Examples:
        >>> import latecomer as lc
        >>> print(lc.delays.Constant(workers=2).trace(steps=100, seed=0).describe())
        100 arrivals of 101 tickets, 2 workers, policy async, seed 0
        Constant(workers=2)
        in flight besides the arriving one: 1.00 on average, at most 1
        <BLANKLINE>
        group             arrivals    share   mean delay   median   largest
        all                    100   1.0000         0.99      1.0         1
        <BLANKLINE>
        worker            arrivals    share   mean delay   median   largest
        0                       50   0.5000         0.98      1.0         1
        1                       50   0.5000         1.00      1.0         1
    """
    header = trace.header
    lines = [
        f"{len(trace):,} arrivals of {int(trace.columns['ticket'].max()) + 1:,} tickets, {header.workers:,} workers, "
        f"policy {header.policy}, seed {header.seed}",
        header.model or "recorded",
    ]
    if len(trace) == 0:
        return "\n".join([*lines, "nothing has arrived"])
    out = trace.in_flight
    lines.append(f"in flight besides the arriving one: {out.mean():.2f} on average, at most {out.max():,}")
    codes = trace.columns["status"]
    counts = {word: int((codes == code).sum()) for code, word in enumerate(STATUSES) if (codes == code).any()}
    if set(counts) != {"applied"}:
        lines.append("became: " + ", ".join(f"{word} {count:,}" for word, count in counts.items()))
        if "zero" in counts:
            lines.append(
                "zero: it counted and weighed nothing; so does version 1 under a rule that gives every version one "
                "place, for every worker but the first to return it"
            )
    if header.joined or header.left:
        lines.append(
            f"{len(header.joined):,} joined and {len(header.left):,} left during the run: "
            f"{trace.workers.min():,} to {trace.workers.max():,} workers"
        )
    if header.clock != "none":
        seconds = float(trace.end.max() - np.nanmin(trace.columns["start"]))
        rate = len(trace) / seconds if seconds else np.inf
        lines.append(f"{header.clock} clock: {seconds:,.6g} s, {rate:,.6g} arrivals a second")
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
