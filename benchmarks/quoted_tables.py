"""Fill the tables and lists that pages quote from measured ones, so that no figure is copied by hand.

What is quoted stands between ``<!-- quoted: file.md, Heading -->`` and ``<!-- end of quote -->``; the file is named
from the page's folder, and the heading is that of its part (left out if the file has but one).

Example: python benchmarks/quoted_tables.py
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
QUOTE = re.compile(r"(<!-- quoted: (?P<file>[^,\n]+?)(?:, (?P<title>[^\n]+?))? -->\n).*?(<!-- end of quote -->)", re.S)


def table(file: Path, title: str | None) -> str:
    """Return the table or the list below a heading of a measured page."""
    text = file.read_text(encoding="utf-8")
    if title is not None:
        found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.S | re.M)
        if found is None:
            raise SystemExit(f"{file} has no part called {title}")
        text = found[1]
    lines = [line for line in text.splitlines() if line.startswith(("|", "- "))]
    if not lines:
        raise SystemExit(f"{file} has no table or list below {title or 'its heading'}")
    return "\n".join(lines)


def filled(page: Path) -> str:
    """Return the text of a page with what it quotes as it is now."""

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}\n{table(page.parent / found['file'], found['title'])}\n\n{found[4]}"

    return QUOTE.sub(fill, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path), encoding="utf-8")
