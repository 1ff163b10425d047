"""Progress of commands: runs done, time elapsed, time left."""

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

from ._output import print_text

__all__ = ["counting", "downloading", "watched", "working"]

T = TypeVar("T")


class _OnBytes(Protocol):
    def __call__(self, done: int, total: int | None) -> None: ...


def watched(items: Iterable[tuple[str, T]], total: int, console: Console, title: str) -> Iterator[T]:
    """Yield the items, and show how many are done and how long the rest will take.

    Args:
        items: Each with a short description.
        total: Number of items.
        console: Where to print.
        title: Name of the task.
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
    """Print at most twenty lines to a log, each with the time elapsed and the time left."""
    start, every = time.monotonic(), max(1, -(-total // 20))
    for count, (_, item) in enumerate(items, start=1):
        if count % every == 0 or count == total:
            elapsed = time.monotonic() - start
            left = timedelta(seconds=round(elapsed * (total - count) / count))
            words = f"{title}: {count:,} of {total:,} runs after {timedelta(seconds=round(elapsed))}, about {left} left"
            print_text(console, words)
        yield item


@contextmanager
def counting(title: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show a count; yields the function to call with the count so far and the total."""
    if not console.is_terminal:
        yield _log_of_counts(title, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _log_of_counts(title: str, console: Console) -> Callable[[int, int], None]:
    """Print to a log: a line two seconds and a twentieth of the work after the last one, or twenty seconds after it."""
    start = shown = time.monotonic()
    counted = 0

    def on_progress(done: int, total: int) -> None:
        nonlocal shown, counted
        now = time.monotonic()
        if now - shown >= (2.0 if 20 * (done - counted) >= total else 20.0):
            shown, counted = now, done
            print_text(console, f"{title}: {done:,} of {total:,} after {timedelta(seconds=round(now - start))}")

    return on_progress


@contextmanager
def working(title: str, console: Console) -> Iterator[None]:
    """Show that a task without a count is running: a spinner, or one line in a log."""
    if console.is_terminal:
        with console.status(f"{title} ..."):
            yield
    else:
        print_text(console, f"{title} ...")
        yield


@contextmanager
def downloading(name: str, console: Console) -> Iterator[_OnBytes]:
    """Show bytes and their speed; yields the function to call with the bytes so far and the total."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
