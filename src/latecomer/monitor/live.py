"""The page of a run while it goes on: a callback that hands rows over, and a thread that draws them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.warn import warn
from .._util.wording import in_short
from ..core.callbacks import Callback, LiveRun
from ..core.faults import Fault, FaultLog
from ..core.history import History
from ..core.result import Run
from ..policy import Ticket
from ..server import Outcome
from ..trace import Header, Trace
from .page import document, parts, title
from .server import Feed, PageServer
from .view import RunView

__all__ = ["Live"]

_EVERY = 1.0  # seconds between two drawings
_SHARE = 0.05  # of one core: drawing a long run takes longer, so it is drawn less often


@dataclass(frozen=True)
class _Rows:
    """What a run has recorded since the last time, copied in its own thread."""

    first: int
    header: Header
    columns: dict[str, NDArray[Any]]
    history: list[dict[str, Any]]
    faults: FaultLog


class Live(Callback):
    """Serves a page of the run while it goes on: workers over time, delays, influence, loss, throughput, faults.

    The page is drawn in a thread, about once per second, and only while it is open somewhere. A client can only read,
    and none can hold up the run. On any host but loopback a random token is required; it is part of the address.

    Args:
        host: The address to listen on.
        port: The port, 0 for a free one.
        announce: Called with a sentence that has the address of the page, None for nothing.

    Attributes:
        url: Address of the page while the run goes on, else None.

    Examples:
        >>> import latecomer as lc, urllib.request
        >>> live, seen = Live(announce=None), []
        >>> def look(server):
        ...     if server.arrivals == 5:
        ...         seen.append(urllib.request.urlopen(live.url, timeout=5).status)
        >>> callbacks = [live, lc.training.OnArrival(look)]
        >>> _ = lc.fit(lc.problems.quadratic(), lr=0.1, workers=2, engine="inline", steps=20, callbacks=callbacks)
        >>> seen, live.url
        ([200], None)
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, *, announce: Callable[[str], object] | None = print
    ) -> None:
        self.host, self.port, self._announce = host, port, announce
        self.url: str | None = None
        self._server: PageServer | None = None

    # ---- in the thread of the run: as little as possible --------------------------------------------------------

    def started(self, run: LiveRun) -> None:
        """Begin to serve the page."""
        self._feed, self._method, self._options, self._steps = Feed(), run.method, dict(run.options), run.steps
        self._wanted, self._over = threading.Event(), threading.Event()
        self._handed_over, self._taken = threading.Event(), list[_Rows]()
        self._next_row, self._failed = 0, False
        self._arrivals, self._last_arrival = 0, time.monotonic()
        self._columns: dict[str, NDArray[Any]] = {}
        self._result: Run | None = None
        self._tell("Waiting for workers")
        self._server = PageServer(document(None, live=True), self._feed, self.host, self.port)
        self.url = self._server.url
        self._thread = threading.Thread(target=self._draw_for_ever, name="latecomer-live-drawing", daemon=True)
        self._thread.start()
        if self._announce is not None:
            self._announce(f"Live page: {self.url}")

    def arrived(self, run: LiveRun, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        """Hand rows over if the drawing thread wants some."""
        self._arrivals = outcome.arrival
        if self._wanted.is_set():
            self._hand_over(run)

    def faulted(self, run: LiveRun, fault: Fault) -> None:
        """Hand over at once: after a fault nothing may arrive for a while."""
        if self._wanted.is_set():
            self._hand_over(run)

    def _hand_over(self, run: LiveRun) -> None:
        """Copy what is new; whatever goes wrong here ends the page, not the run."""
        self._wanted.clear()
        try:
            header, columns, following = run.server.recorded_since(self._next_row)
            rows = _Rows(self._next_row, header, columns, list(run.history.rows), run.faults.copy())
        except Exception as error:
            self._give_up(error)
            return
        self._next_row = following
        self._taken.append(rows)
        self._handed_over.set()

    def _give_up(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            with contextlib.suppress(Warning):  # where warnings are errors, this one is none
                warn(f"The live page is not drawn any more ({in_short(error)}); the run goes on")

    def ended(self, run: LiveRun, result: Run) -> None:
        """Keep the result, for the last drawing."""
        self._result = result

    def closed(self) -> None:
        """Send the last state to open pages, and stop serving."""
        if self._server is None:
            return
        self._over.set()
        self._handed_over.set()
        self._thread.join(timeout=10.0)
        self._feed.publish({}, over=True, state=self._last_words(), arrivals=self._arrivals)
        self._feed.wait_for_goodbye()
        self._server.close()
        self._server, self.url = None, None

    def _last_words(self) -> str:
        if self._result is None:
            return f"Stopped after {self._arrivals:,} of {self._steps:,} contributions."
        return self._result.trouble or f"Ended after {len(self._result.trace):,} contributions."

    # ---- in the drawing thread ----------------------------------------------------------------------------------

    def _draw_for_ever(self) -> None:
        while not self._over.is_set():
            if not self._feed.wait_for_reader(0.5):
                continue
            self._handed_over.clear()
            self._wanted.set()
            new = self._handed_over.wait(_EVERY)
            if self._over.is_set():
                break
            begun = time.monotonic()
            if new and not self._failed:
                self._draw()
            self._tell(f"Training: {self._arrivals:,} of {self._steps:,} contributions{self._silence(new)}")
            taken = time.monotonic() - begun
            self._over.wait(max(_EVERY if new else 0.0, taken / _SHARE))
        self._draw_the_end()

    def _silence(self, new: bool) -> str:
        """Return for how long nothing has arrived, if that is long."""
        if new:
            self._last_arrival = time.monotonic()
        silent = time.monotonic() - self._last_arrival
        return f"; none for {silent:.0f} s" if silent > 5 else ""

    def _draw(self) -> None:
        try:
            view = self._view()
            if view is not None:
                self._feed.publish(parts(view), title=title(view))
        except Exception as error:  # of numbers that nobody has thought of
            self._give_up(error)

    def _draw_the_end(self) -> None:
        """Draw once more, if anybody looks: the whole run if it has ended, else what is known of it."""
        if self._failed or not self._feed.wait_for_reader(0.0):
            return
        if self._result is None or not len(self._result.trace):
            self._draw()
            return
        try:
            view = replace(RunView.of_run(self._result), steps=self._steps)
            self._feed.publish(parts(view), title=title(view))
        except Exception as error:
            self._give_up(error)

    def _view(self) -> RunView | None:
        """Add what was handed over to what is known, and return the view of it; None before the first arrival."""
        while self._taken:
            rows = self._taken.pop(0)
            if not self._columns:
                self._columns = rows.columns
            else:
                self._columns = {
                    name: np.concatenate([self._columns[name][: rows.first], new]) for name, new in rows.columns.items()
                }
            self._newest = rows
        if not self._columns or not self._columns["arrival"].any():
            return None
        history = History()
        history.rows = self._newest.history
        trace = Trace.unchecked(self._newest.header, self._columns)
        table, faults = history.table(), self._newest.faults
        return RunView(trace, self._method, self._options, table, faults, self._steps)

    def _tell(self, state: str) -> None:
        self._feed.publish({}, state=state, arrivals=self._arrivals, steps=self._steps)
