"""What a user may hang into a run: callbacks, TensorBoard, a line of progress."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..policy import Ticket
from ..server import Outcome

if TYPE_CHECKING:
    from .loop import TrainingLoop
    from .result import Result

__all__ = ["Bar", "Callback", "TensorBoard"]


class Callback:
    """Called by a run as it goes, in the server's process; override what you need.

    ``run.server``, ``run.engine`` and ``run.optimizer`` are there to look at; ``run.stop()`` ends the run early.

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

    def arrived(self, run: TrainingLoop, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        """Hear of every arrival; ``loss`` is that of its batch, NaN if unknown."""

    def evaluated(self, run: TrainingLoop, row: Mapping[str, Any]) -> None:
        """Hear of every row of the history."""

    def ended(self, run: TrainingLoop, result: Result) -> None:
        """Hear, once, what `fit` returns."""

    def closed(self) -> None:
        """Give back what the callback holds: the run is over, however it ended."""


class TensorBoard(Callback):
    """Writes the history for TensorBoard, by update.

    Args:
        folder: Where to write.

    Examples:
        >>> TensorBoard("logs")                                                      # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard is not installed: pip install 'latecomer[tensorboard]', or leave tensorboard= out"
            ) from error
        self._writer: Any = SummaryWriter(str(folder))

    def evaluated(self, run: TrainingLoop, row: Mapping[str, Any]) -> None:
        """Write every number of a row."""
        for name, value in row.items():
            if name not in ("update", "arrival", "time") and isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, row["update"])

    def closed(self) -> None:
        """Close the file."""
        self._writer.close()


class Bar(Callback):
    """A line of progress: arrivals, how many a second, mean delay, what is in flight, what went wrong; ten in a log.

    Examples:
        >>> import io, latecomer as lc
        >>> bar = Bar(10, Console(file=io.StringIO()))
        >>> _ = lc.fit(lc.problems.quadratic(), lr=0.1, workers=2, engine="inline", steps=10, callbacks=[bar])
    """

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
        self._task = self._bar.add_task("training", total=steps, now="")
        self._log = None if self._bar.console.is_terminal else self._bar.console
        if self._log is None:
            self._bar.start()
        self._shown = self._since = time.monotonic()
        self._count = self._delays = 0

    def arrived(self, run: TrainingLoop, ticket: Ticket, outcome: Outcome, loss: float) -> None:
        """Redraw five times a second at most."""
        self._count += 1
        self._delays += outcome.delay
        now = time.monotonic()
        tenth = outcome.arrival % max(1, run.steps // 10) == 0
        if not tenth if self._log else now - self._shown < 0.2 and outcome.arrival < run.steps:
            return
        self._shown = now
        rate = self._count / max(now - self._since, 1e-9)
        text = f"{rate:,.0f}/s, delay {self._delays / self._count:.1f}, {len(run.server.in_flight)} in flight"
        if run.deaths:
            text += f", {run.deaths} deaths"
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
