"""A folder of results: tables as CSV, figures, and one page with all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from .._util.files import atomic
from .html import Markup, render
from .style import Figure, save_figure

__all__ = ["Drawn", "write_html", "write_tables"]

Drawn = tuple[str, Figure, str]
"""A figure with its name and its caption."""


def write_tables(folder: Path, tables: Mapping[str, pl.DataFrame]) -> None:
    """Write tables as CSV files by their names, each atomically."""
    for name, table in tables.items():
        with atomic(folder / f"{name}.csv") as temporary:
            table.write_csv(temporary)


def write_html(folder: Path, name: str, template: str, figures: Iterable[Drawn], **values: Any) -> Path:
    """Save figures into ``folder/figures``, and write the page that shows them; return it.

    Args:
        folder: The folder; it must exist.
        name: Name of the page.
        template: Its template, which gets the figures by that name.
        figures: The figures.
        values: What else the template needs.
    """
    drawn_in = folder / "figures"
    drawn_in.mkdir(exist_ok=True)
    drawn = [
        {"id": title, "svg": Markup(save_figure(figure, drawn_in, title)), "caption": caption}
        for title, figure, caption in figures
    ]
    page = folder / f"{name}.html"
    with atomic(page) as temporary:
        temporary.write_text(render(template, figures=drawn, **values), encoding="utf-8")
    return page
