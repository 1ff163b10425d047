"""Measured tables as files: Markdown with the command that made them, and JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._util.files import atomic

__all__ = ["Part", "write_page", "write_table"]


@dataclass(frozen=True)
class Part:
    """One table of a page.

    Args:
        heads: Names of its columns.
        rows: Its cells.
        title: Its heading, if the page has several.
        words: Text before the table.

    Examples:
        >>> Part(["what"], [["fast"]]).lines()
        ['', '| what |', '|---|', '| fast |']
    """

    heads: Sequence[str]
    rows: Iterable[Sequence[str]]
    title: str = ""
    words: str = ""

    def lines(self) -> list[str]:
        """Return the table as Markdown."""
        lines = ["", f"## {self.title}"] if self.title else []
        lines += ["", self.words] if self.words else []
        lines += ["", "| " + " | ".join(self.heads) + " |", "|" + "---|" * len(self.heads)]
        return lines + ["| " + " | ".join(row) + " |" for row in self.rows]


def write_page(
    folder: Path,
    name: str,
    title: str,
    parts: Iterable[Part],
    command: str,
    data: Any = None,
    words: Sequence[str] = (),
) -> Path:
    """Write ``name.md`` atomically: tables one below the other; with data ``name.json`` too.

    Args:
        folder: The folder.
        name: Name of the file.
        title: Heading of the page.
        parts: The tables.
        command: The command that makes the page.
        data: The numbers, for JSON.
        words: What they show, one sentence or a few per point; comes first.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_page(Path(folder), "t", "speed", [Part(["what"], [["fast"]])], "latecomer bench speed")
        ...     print(path.read_text().splitlines()[2])
        | what |
    """
    if data is not None:
        with atomic(folder / f"{name}.json") as temporary:
            temporary.write_text(json.dumps(data, indent=1))
    lines = [f"# {title[0].upper()}{title[1:]}"]
    lines += ["", "## In words", "", *(f"- {each}" for each in words)] if words else []
    lines += [line for part in parts for line in part.lines()]
    lines += ["", f"`{command}`, Python {platform.python_version()}, torch {torch.__version__}.", ""]
    with atomic(folder / f"{name}.md") as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")
    return folder / f"{name}.md"


def write_table(
    folder: Path, name: str, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], command: str, data: Any
) -> Path:
    """Write ``name.md`` and ``name.json``, each atomically.

    Args:
        folder: The folder.
        name: Name of the files.
        title: Heading of the table.
        heads: Names of its columns.
        rows: Its cells.
        command: The command that makes the table.
        data: The numbers, for JSON.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_table(Path(folder), "t", "speed", ["what"], [["fast"]], "latecomer bench speed", [1.0])
        ...     print(path.read_text().splitlines()[0])
        # Speed
    """
    return write_page(folder, name, title, [Part(heads, rows)], command, data)
