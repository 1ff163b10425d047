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

__all__ = ["counting", "downloading", "watched"]

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
            console.print(words, soft_wrap=True, highlight=False, markup=False)
        yield item


@contextmanager
def counting(title: str, total: int, console: Console) -> Iterator[Callable[[int], None]]:
    """Show how many there are of all there will be; yields what to tell the number to. Silent in a log."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def downloading(name: str, console: Console) -> Iterator[_Told]:
    """Show bytes and their speed; yields what to tell the numbers to."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
