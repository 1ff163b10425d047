"""What commands print: a table and remarks for people, or one JSON document alone on stdout."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import tyro
from rich.console import Console
from rich.table import Table

__all__ = ["Json", "JsonConsole", "opened", "print_text", "show", "widen"]

Json = tyro.conf.FlagCreatePairsOff[bool]
"""The type of every command's ``--json``."""


class JsonConsole(Console):
    """A console for remarks and progress on stderr, with the stdout that belongs to the JSON alone."""

    def __init__(self, stdout: TextIO) -> None:
        super().__init__(stderr=True)
        self.stdout = stdout


@contextmanager
def opened(as_json: bool) -> Iterator[Console]:
    """Yield what a command prints to; with ``as_json`` nothing but the document reaches stdout."""
    if not as_json:
        yield Console()
        return
    with _stdout_set_aside() as stdout:
        yield JsonConsole(stdout)


@contextmanager
def _stdout_set_aside() -> Iterator[TextIO]:
    """Yield the real stdout while whatever else is printed, by child processes too, goes to stderr."""
    stdout = sys.stdout
    try:
        is_file = stdout.fileno() == 1
    except (AttributeError, OSError, ValueError):  # replaced by something that is no file
        is_file = False
    with redirect_stdout(sys.stderr):
        if not is_file:
            yield stdout
            return
        stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)  # worker processes inherit 1, and a user's task may print
        try:
            with open(kept, "w", encoding="utf-8", closefd=False) as stream:
                yield stream
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def print_text(console: Console, text: str) -> None:
    """Print text unchanged: not wrapped, not highlighted, and brackets are not markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def widen(console: Console, columns: int = 110) -> None:
    """Give a table some room in a log, which has no edge."""
    if not console.is_terminal:
        console.width = max(console.width, columns)


def show(console: Console, table: Table | str, data: Mapping[str, Any]) -> None:
    """Print a table, or the same as JSON if the command was given ``--json``.

    Args:
        console: What the command was given to print to.
        table: For people: a table, or text.
        data: For programs: ``rows``, with the numbers unrounded, and what else there is to know. Numbers that are not
            finite become null, which JSON has no other word for.
    """
    if isinstance(console, JsonConsole):
        json.dump(_plain(data), console.stdout, indent=2, ensure_ascii=False, allow_nan=False)
        console.stdout.write("\n")
        console.stdout.flush()
    elif isinstance(table, str):
        print_text(console, table)
    else:
        console.print(table)


def _plain(value: Any) -> Any:
    """Return a value in the types of JSON."""
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):  # a number of numpy or torch
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return repr(value)
