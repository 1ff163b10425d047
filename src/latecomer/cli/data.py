"""The ``latecomer data`` commands: fetch datasets, and say which are there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ._progress import downloading

__all__ = ["DataCommand", "Get", "List", "look_in"]


def look_in(data_dir: Path | None) -> None:
    """Have datasets looked for in this folder first, here and in processes that are started from here."""
    if data_dir is not None:
        os.environ["LATECOMER_DATA"] = str(data_dir)


@dataclass(frozen=True)
class Get:
    """Fetch a dataset, or check the one that is there.

    Example: latecomer data get mnist
    """

    name: tyro.conf.Positional[Literal["mnist", "cifar10"]]
    """Which dataset."""
    data_dir: Path | None = None
    """Folder to keep it in; $LATECOMER_DATA or the user's cache if left out."""

    def run(self, console: Console) -> None:
        """Fetch, check, say where it is."""
        from .. import data

        before = data.where(self.name, self.data_dir)
        was_there = before.is_dir()
        fetched = False
        with downloading(self.name, console) as tell:

            def told(done: int, total: int | None) -> None:
                nonlocal fetched
                fetched = True
                tell(done, total)

            folder = data.get(self.name, self.data_dir, told)
        if was_there and fetched and folder == before:
            words = (
                f"What was in {folder} was broken and has been fetched again: runs made with it are not to be trusted"
            )
            console.print(words, soft_wrap=True, highlight=False, markup=False)
        entry = next(entry for entry in data.listing(folder.parent) if entry.name == self.name)
        words = f"{self.name} is in {folder}: {entry.size / 1e6:,.0f} MB, every byte checked"
        console.print(words, soft_wrap=True, highlight=False, markup=False)


@dataclass(frozen=True)
class List:
    """Say which datasets are there, and where.

    Example: latecomer data list
    """

    data_dir: Path | None = None
    """Folder to look in first; then $LATECOMER_DATA and the user's cache."""

    def run(self, console: Console) -> None:
        """Look and print; nothing is read but sizes and stamps."""
        from .. import data

        table = Table()
        for name in ("dataset", "state"):
            table.add_column(name, no_wrap=True)
        table.add_column("MB", justify="right", no_wrap=True)
        table.add_column("folder", overflow="fold")
        entries = data.listing(self.data_dir)
        for entry in entries:
            table.add_row(entry.name, entry.state, f"{entry.size / 1e6:,.0f}", Text(str(entry.folder)))
        console.print(table)
        for entry in entries:
            if entry.fault:
                words = f"{entry.folder}: {entry.fault}"
                console.print(words, soft_wrap=True, highlight=False, markup=False)


@dataclass(frozen=True)
class DataCommand:
    """Fetch datasets, and say which are there.

    Example: latecomer data get mnist
    """

    command: Annotated[Get, tyro.conf.subcommand("get")] | Annotated[List, tyro.conf.subcommand("list")]

    def run(self, console: Console) -> None:
        """Hand on."""
        self.command.run(console)
