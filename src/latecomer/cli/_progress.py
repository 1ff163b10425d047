"""How commands show that they are at work: runs done, time gone, time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ._output import say

__all__ = ["counting", "downloading", "watched", "working"]

T = TypeVar("T")


class _Told(Protocol):
    def __call__(self, done: int, total: int | None) -> None: ...


def watched(items: Iterable[tuple[str, T]], total: int, console: Console, title: str) -> Iterator[T]:
    """Yield what comes, and show how much of it has come and how long the rest will take.

    Args:
        items: Each with a word on what it was.
        total: How many there will be.
        console: Where to show it.
        title: What is going on.
    """
    if not console.is_terminal:
        yield from _logged(items, total, console, title)
        return
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        for word, item in items:
            bar.update(task, advance=1, description=f"{title}: {word}")
            yield item


def _logged(items: Iterable[tuple[str, T]], total: int, console: Console, title: str) -> Iterator[T]:
    """Tell a log: at most twenty lines, each with the time gone and the time left."""
    start, every = time.monotonic(), max(1, -(-total // 20))
    for count, (_, item) in enumerate(items, start=1):
        if count % every == 0 or count == total:
            gone = time.monotonic() - start
            left = timedelta(seconds=round(gone * (total - count) / count))
            words = f"{title}: {count:,} of {total:,} runs after {timedelta(seconds=round(gone))}, about {left} left"
            say(console, words)
        yield item


@contextmanager
def counting(title: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show how many there are of all there will be; yields what to tell both numbers to."""
    if not console.is_terminal:
        yield _log_of_counts(title, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _log_of_counts(title: str, console: Console) -> Callable[[int, int], None]:
    """Tell a log: a line when two seconds and a twentieth of the work have passed since the last one."""
    start = shown = time.monotonic()
    counted = 0

    def told(done: int, total: int) -> None:
        nonlocal shown, counted
        now = time.monotonic()
        if now - shown >= 2.0 and 20 * (done - counted) >= total:
            shown, counted = now, done
            say(console, f"{title}: {done:,} of {total:,} after {timedelta(seconds=round(now - start))}")

    return told


@contextmanager
def working(title: str, console: Console) -> Iterator[None]:
    """Say what is going on where it cannot be counted: a spinner, or one line in a log."""
    if console.is_terminal:
        with console.status(f"{title} ..."):
            yield
    else:
        say(console, f"{title} ...")
        yield


@contextmanager
def downloading(name: str, console: Console) -> Iterator[_Told]:
    """Show bytes and their speed; yields what to tell the numbers to."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
