"""What a user may hang into a run: callbacks, TensorBoard, a line of progress."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .._util.extras import needs
from ..optim import AsyncOptimizer
from ..policy import Ticket
from ..server import Outcome, Server

if TYPE_CHECKING:
    from .result import Run

__all__ = ["Callback", "LiveRun", "OnArrival", "ProgressBar", "TensorBoard", "all_callbacks"]

ProgressLike = bool | Console | Callable[[int, int], None] | None
"""What ``progress=`` takes."""


class LiveRun(Protocol):
    """What a callback sees of a run that is going on; on real workers there is more, see `latecomer.training`."""

    steps: int

    @property
    def server(self) -> Server:
        """The server; look, and do not touch."""

    @property
    def optimizer(self) -> AsyncOptimizer:
        """The optimizer."""

    @property
    def now(self) -> float | None:
        """The run's clock."""

    def stop(self) -> None:
        """End the run after this arrival."""


class Callback:
    """Called by a run as it goes, in the server's process; override what you need.

    ``run.server`` and ``run.optimizer`` are there to look at, on real workers ``run.engine`` too; ``run.stop()`` ends
    the run early.

    Examples:
        >>> import latecomer as lc
        >>> class Patience(Callback):
        ...     def arrived(self, run, ticket, outcome, loss):
        ...         if outcome.arrival == 7:
        ...             run.stop()
        >>> problem = lc.problems.quadratic()
        >>> lc.fit(problem, lr=0.1, workers=2, engine="inline", steps=50, callbacks=[Patience()]).server.arrivals
        7
    """

    def arrived(self, run: LiveRun, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        """Hear of every arrival; ``loss`` is that of its batch, NaN if unknown."""

    def evaluated(self, run: LiveRun, row: Mapping[str, Any]) -> None:
        """Hear of every row of the history."""

    def ended(self, run: LiveRun, result: Run) -> None:
        """Hear, once, what the run returns."""

    def closed(self) -> None:
        """Give back what the callback holds: the run is over, however it ended."""


class OnArrival(Callback):
    """Calls a function with the server after every arrival; it may look, and must not touch.

    Args:
        function: What to call.

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
        """Call it."""
        self._function(run.server)


class TensorBoard(Callback):
    """Writes the history for TensorBoard, by update.

    Args:
        folder: Where to write.

    Examples:
        >>> TensorBoard("logs")                                                      # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        with needs("tensorboard", "tensorboard", "Writing for TensorBoard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer: Any = SummaryWriter(str(folder))

    def evaluated(self, run: LiveRun, row: Mapping[str, Any]) -> None:
        """Write every number of a row."""
        for name, value in row.items():
            if name not in ("update", "arrival", "time") and isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, row["update"])

    def closed(self) -> None:
        """Close the file."""
        self._writer.close()


class ProgressBar(Callback):
    """A line of progress: arrivals, how many a second, mean delay, what is in flight, what went wrong; ten in a log."""

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
        self._shown = self._since = 0.0
        self._count = self._delays = 0

    def arrived(self, run: LiveRun, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        """Redraw five times a second at most."""
        now = time.monotonic()
        if not self._since:  # starting the workers is not part of the rate
            self._since = now
            self._bar.start_task(self._task)
            return
        self._count += 1
        self._delays += outcome.delay
        tenth = outcome.arrival % max(1, run.steps // 10) == 0
        if not tenth if self._log else now - self._shown < 0.2 and outcome.arrival < run.steps:
            return
        self._shown = now
        rate = self._count / max(now - self._since, 1e-9)
        text = f"{rate:,.0f}/s, delay {self._delays / self._count:.1f}, {len(run.server.in_flight)} in flight"
        deaths = getattr(run, "deaths", 0)
        if deaths:
            text += f", {deaths} deaths"
        if self._log is not None:
            words = f"training: {outcome.arrival:,} of {run.steps:,}, {text}"
            self._log.print(words, soft_wrap=True, highlight=False, markup=False)
        else:
            self._bar.update(self._task, completed=outcome.arrival, now=text)
            self._bar.refresh()
        if self._count > 1000:  # the rate of lately
            self._since, self._count, self._delays = now, 0, 0

    def closed(self) -> None:
        """Take the line away."""
        self._bar.stop()


class _Tell(Callback):
    """Calls a function with the arrivals so far and their total at every evaluation."""

    def __init__(self, function: Callable[[int, int], None]) -> None:
        self._function = function

    def evaluated(self, run: LiveRun, row: Mapping[str, Any]) -> None:
        self._function(int(row["arrival"]), run.steps)


def all_callbacks(callbacks: Sequence[Callback], progress: ProgressLike, steps: int) -> list[Callback]:
    """Check what a user has given, and return everybody who is to be told.

    Args:
        callbacks: The user's own.
        progress: True or a console for a line of progress, a function of (arrivals so far, total), or nothing.
        steps: How many arrivals there will be.
    """
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(f"Invalid callbacks: {callback!r} (expected instances of latecomer.training.Callback)")
    if progress is None or progress is False:
        return list(callbacks)
    if progress is True or isinstance(progress, Console):
        return [*callbacks, ProgressBar(steps, None if progress is True else progress)]
    if callable(progress):
        return [*callbacks, _Tell(progress)]
    raise TypeError(f"Invalid progress: {progress!r} (expected True, a rich Console, or a function of two numbers)")
