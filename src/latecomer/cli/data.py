"""The ``latecomer data`` commands: download datasets, and list those that are there."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from ._output import Json, print_text, show

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Get", "List", "look_in"]


def look_in(data_dir: Path | None) -> None:
    """Have datasets looked for in this folder first, here and in processes that are started from here."""
    if data_dir is None:
        return
    if not data_dir.expanduser().is_dir():
        raise ValueError(f"Invalid --data-dir value: there is no folder {str(data_dir)!r} (expected one that exists)")
    os.environ["LATECOMER_DATA"] = str(data_dir)


@dataclass(frozen=True)
class Get:
    """Download a dataset, or check the one that is there.

    Example: latecomer data get mnist
    """

    name: tyro.conf.Positional[Literal["mnist", "cifar10"]]
    """Which dataset."""
    data_dir: Path | None = None
    """Folder to keep it in, made if needed; $LATECOMER_DATA or the user's cache if left out."""

    def run(self, console: Console) -> None:
        """Download, check, and print the folder."""
        from .. import data
        from ._progress import downloading

        before = data.where(self.name, self.data_dir)
        was_there = before.is_dir()
        fetched = False
        with downloading(self.name, console) as on_progress:

            def watch(done: int, total: int | None) -> None:
                nonlocal fetched
                fetched = True
                on_progress(done, total)

            folder = data.get(self.name, self.data_dir, watch)
        if was_there and fetched and folder == before:
            print_text(
                console,
                f"The files in {folder} were damaged and have been downloaded again: do not trust runs made with them",
            )
        if folder != before and not fetched:
            print_text(console, f"{self.name} was in {before}, and has been copied")
        entry = next(entry for entry in data.listing(folder.parent) if entry.name == self.name)
        print_text(console, f"{self.name} is in {folder}: {entry.size / 1e6:,.0f} MB, every byte checked")


@dataclass(frozen=True)
class List:
    """List the datasets that are there, and where they are.

    Example: latecomer data list
    """

    data_dir: Path | None = None
    """Folder to look in first; then $LATECOMER_DATA and the user's cache."""
    json: Json = False
    """Print the list as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Look and print; nothing is read but sizes and stamps."""
        from rich.table import Table
        from rich.text import Text

        from .. import data

        if self.data_dir is not None and not self.data_dir.expanduser().is_dir():
            raise ValueError(f"Invalid --data-dir value: there is no folder {str(self.data_dir)!r}")
        table = Table()
        for name in ("dataset", "state"):
            table.add_column(name, no_wrap=True)
        table.add_column("MB", justify="right", no_wrap=True)
        table.add_column("folder", overflow="fold")
        entries = data.listing(self.data_dir)
        for entry in entries:
            table.add_row(entry.name, entry.state, f"{entry.size / 1e6:,.0f}", Text(str(entry.folder)))
        show(console, table, {"rows": [asdict(entry) for entry in entries]})
        for entry in entries:
            if entry.fault:
                print_text(console, f"{entry.folder}: {entry.fault}")
