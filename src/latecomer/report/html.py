"""HTML pages that need no network: everything is in one file."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from .._util.extras import needs

with needs("report", "jinja2", "Writing an HTML page"):
    import jinja2
    from markupsafe import Markup, escape

__all__ = ["Markup", "TablePart", "cell", "guide", "marked_up", "render"]

_DOCS = Path(__file__).resolve().parents[3] / "docs"
_LONG = 40  # characters of a text from which on it is broken into lines


@dataclass(frozen=True)
class TablePart:
    """A table on a page, and its file.

    Args:
        id: Its place on the page, and the name of its CSV file.
        title: Its heading.
        words: Text before it.
        table: The table.

    Examples:
        >>> TablePart("t", "Times", "", pl.DataFrame({"method": ["a"], "time": [math.inf]})).rows
        [[('method', 'a'), ('time', '∞')]]
    """

    id: str
    title: str
    words: str
    table: pl.DataFrame

    @property
    def rows(self) -> list[list[tuple[str, str]]]:
        """Names and cells of every row."""
        return [[(name, cell(value)) for name, value in row.items()] for row in self.table.iter_rows(named=True)]

    def left(self, name: str) -> Markup:
        """Return the attribute that aligns a column of text to the left; one with long texts is broken into lines."""
        if self.table.schema[name] != pl.String:
            return Markup("")
        longest = self.table[name].str.len_chars().max()
        return Markup(' class="words"' if isinstance(longest, int) and longest > _LONG else ' class="text"')


def cell(value: Any) -> str:
    """Return a value as people read it: four digits, ∞ for infinity, nothing for what is not known."""
    if value is None:
        return ""
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def marked_up(text: str) -> Markup:
    """Return a paragraph with its code and its bold words marked up.

    Examples:
        >>> marked_up("**Fast**: `a` < b")
        Markup('<strong>Fast</strong>: <code>a</code> &lt; b')
    """
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", text))


def guide(name: str, title: str, folder: Path | None) -> Markup:
    """Return a link to a page of the documentation, or its title where the documentation is not at hand.

    It is at hand in a checkout. A page that is served over a network has no folder, and no link.

    Args:
        name: Name of the page.
        title: Its title.
        folder: Where the page with the link will be.

    Examples:
        >>> guide("choosing", "How to choose", None)
        Markup('<em>How to choose</em>')
    """
    page = _DOCS / f"{name}.md"
    if folder is None or not page.is_file():
        return Markup("<em>{}</em>").format(title)
    target = Path(os.path.relpath(page, folder.resolve())).as_posix()
    return Markup('<a href="{}">{}</a>').format(target, title)


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.PackageLoader("latecomer.report")
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader)


def render(template: str, **values: Any) -> str:
    """Fill in a template of this package; a missing value raises.

    Examples:
        >>> render("base.html").startswith("<!doctype html>")
        True
    """
    return _environment().get_template(template).render(**values)
