"""Callbacks of a run: the base class, a function per arrival, progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .._util.checks import several
from ..optim import AsyncOptimizer
from ..policy import Ticket
from ..server import Outcome, Server

if TYPE_CHECKING:
    from .faults import Fault, FaultLog
    from .history import History
    from .result import Run

__all__ = ["Callback", "LiveRun", "OnArrival", "ProgressBar", "all_callbacks"]

ProgressLike = bool | Console | Callable[[int, int], None] | None
"""Type of the argument ``progress=``."""


class LiveRun(Protocol):
    """What a callback may use of a run in progress; a run on real workers has more, see `latecomer.training`."""

    steps: int

    @property
    def method(self) -> str:
        """Name of the method."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Its hyper-parameters."""

    @property
    def server(self) -> Server:
        """The server, read-only."""

    @property
    def optimizer(self) -> AsyncOptimizer:
        """The optimizer, read-only."""

    @property
    def now(self) -> float | None:
        """Time on the run's clock."""

    @property
    def history(self) -> History:
        """The rows of the history so far, read-only."""

    @property
    def faults(self) -> FaultLog:
        """What went wrong so far, read-only; empty in a simulation."""

    def stop(self) -> None:
        """End the run after this arrival."""


class Callback:
    """Called by a run in the server's process; override the methods you need.

    ``run.server`` and ``run.optimizer``, and on real workers ``run.engine``, are read-only. ``run.stop()`` ends the
    run early.

    Examples:
        >>> import latecomer as lc
        >>> class StopAtSeven(Callback):
        ...     def arrived(self, run, ticket, outcome, loss):
        ...         if outcome.arrival == 7:
        ...             run.stop()
        >>> problem = lc.problems.quadratic()
        >>> lc.fit(problem, lr=0.1, workers=2, engine="inline", steps=50, callbacks=[StopAtSeven()]).server.arrivals
        7
    """

    def started(self, run: LiveRun) -> None:
        """Handle the start of the run, once, before its workers start."""

    def arrived(self, run: LiveRun, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        """Handle an arrival; ``loss`` is the loss of its batch, NaN if unknown."""

    def faulted(self, run: LiveRun, fault: Fault) -> None:
        """Handle a fault on real workers that did not end the run: a death, a job that raised, a NaN."""

    def evaluated(self, run: LiveRun, row: Mapping[str, Any]) -> None:
        """Handle a new row of the history, after every evaluation."""

    def ended(self, run: LiveRun, result: Run) -> None:
        """Handle the result of the run, once."""

    def closed(self) -> None:
        """Release files and other resources; called when the run is over, also after an error."""


class OnArrival(Callback):
    """Calls a function with the server after every arrival; the function must not change the server.

    Args:
        function: The function.

    Examples:
        >>> import latecomer as lc
        >>> trace, seen = lc.delays.Constant(workers=2).trace(steps=3, seed=0), []
        >>> watch = OnArrival(lambda server: seen.append(server.arrivals))
        >>> _ = lc.simulate(lc.problems.quadratic(), "momentum", trace, lr=0.1, callbacks=[watch])
        >>> seen
        [1, 2, 3]
    """

    def __init__(self, function: Callable[[Server], None]) -> None:
        self._function = function

    def arrived(self, run: LiveRun, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        """Call the function."""
        self._function(run.server)


class ProgressBar(Callback):
    """A line of progress on a terminal, ten lines in a log: arrivals per second, mean delay, jobs in flight, deaths."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
        )
        self._bar = Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True, auto_refresh=False
        )
        self._task = self._bar.add_task("training", total=steps, now="", start=False)
        self._log = None if self._bar.console.is_terminal else self._bar.console
        if self._log is None:
            self._bar.start()
        self._last_drawn = self._since = 0.0
        self._count = self._delays = 0

    def arrived(self, run: LiveRun, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        """Redraw at most five times per second."""
        now = time.monotonic()
        if not self._since:  # starting the workers is not part of the rate
            self._since = now
            self._bar.start_task(self._task)
            return
        self._count += 1
        self._delays += outcome.delay
        tenth = outcome.arrival % max(1, run.steps // 10) == 0
        if not tenth if self._log else now - self._last_drawn < 0.2 and outcome.arrival < run.steps:
            return
        self._last_drawn = now
        rate = self._count / max(now - self._since, 1e-9)
        text = f"{rate:,.0f}/s, delay {self._delays / self._count:.1f}, {len(run.server.in_flight)} in flight"
        deaths = getattr(run, "deaths", 0)
        if deaths:
            text += f", {deaths} deaths"
        if self._log is not None:
            line = f"training: {outcome.arrival:,} of {run.steps:,}, {text}"
            self._log.print(line, soft_wrap=True, highlight=False, markup=False)
        else:
            self._bar.update(self._task, completed=outcome.arrival, now=text)
            self._bar.refresh()
        if self._count > 1000:  # show a recent rate, not the mean over the run
            self._since, self._count, self._delays = now, 0, 0

    def closed(self) -> None:
        """Remove the line."""
        self._bar.stop()


class _ProgressFunction(Callback):
    """Calls a function of (arrivals so far, total) at every evaluation."""

    def __init__(self, function: Callable[[int, int], None]) -> None:
        self._function = function

    def evaluated(self, run: LiveRun, row: Mapping[str, Any]) -> None:
        self._function(int(row["arrival"]), run.steps)


def all_callbacks(callbacks: Iterable[Callback], progress: ProgressLike, steps: int) -> list[Callback]:
    """Check the user's callbacks, and add one for ``progress``.

    Args:
        callbacks: The user's callbacks.
        progress: True or a console for a line of progress, a function of (arrivals so far, total), or None.
        steps: Number of arrivals of the run.
    """
    callbacks = several("callbacks", callbacks, "latecomer.training.Callback")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(f"Invalid callbacks: {callback!r} (expected instances of latecomer.training.Callback)")
    if progress is None or progress is False:
        return list(callbacks)
    if progress is True or isinstance(progress, Console):
        return [*callbacks, ProgressBar(steps, None if progress is True else progress)]
    if callable(progress) and not isinstance(progress, type):
        return [*callbacks, _ProgressFunction(progress)]
    raise TypeError(f"Invalid progress: {progress!r} (expected True, a rich Console, or a function of two numbers)")
