"""A measured table as files: for people, with the command that made it, and as numbers."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..files import atomic

__all__ = ["write_table"]


def write_table(
    folder: Path, name: str, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], command: str, data: Any
) -> Path:
    """Write ``name.md`` and ``name.json``, each whole or not at all.

    Args:
        folder: Where.
        name: What the files are called.
        title: The table's heading.
        heads: Names of its columns.
        rows: Its cells.
        command: What anybody can run to get it.
        data: The numbers behind it.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_table(Path(folder), "t", "speed", ["what"], [["fast"]], "latecomer bench speed", [1.0])
        ...     print(path.read_text().splitlines()[0])
        # Speed
    """
    lines = [f"# {title[0].upper()}{title[1:]}", "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    lines += ["", f"`{command}`, Python {platform.python_version()}, torch {torch.__version__}.", ""]
    for kind, text in (("md", "\n".join(lines)), ("json", json.dumps(data, indent=1))):
        with atomic(folder / f"{name}.{kind}") as temporary:
            temporary.write_text(text)
    return folder / f"{name}.md"
