"""Writes the reproduction: the page, figures in three formats, tables as CSV and LaTeX, the specs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from ..report.html import render
from ..report.style import save_figure
from .claims import Verdict
from .sections import Section

__all__ = ["tex", "verdict_table", "write_reproduction"]


@dataclass(frozen=True)
class _Shown:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def verdict_table(verdicts: Sequence[Verdict], commands: dict[str, str]) -> pl.DataFrame:
    """Return the verdicts as a table, one row per claim, with the command that reproduces it."""
    return pl.DataFrame(
        [
            {
                "experiment": row.study,
                "claim": row.claim,
                "whose": "ours" if row.ours else "the paper's",
                "difference": row.difference.value,
                "low": row.difference.low,
                "high": row.difference.high,
                "of": row.unit,
                "pairs": row.measurements,
                "verdict": row.verdict,
                "command": commands[row.study],
            }
            for row in verdicts
        ]
    )


def tex(table: pl.DataFrame) -> str:
    """Return a table as LaTeX with booktabs rules."""
    escapes = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#"}

    def cell(value: Any) -> str:
        text = f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)
        return "".join(escapes.get(letter, letter) for letter in text)

    kinds = "".join("r" if dtype.is_numeric() else "l" for dtype in table.schema.values())
    lines = [" & ".join(map(cell, row)) + r" \\" for row in table.iter_rows()]
    head = " & ".join(map(cell, table.columns)) + r" \\"
    return "\n".join(
        [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""]
    )


def _inline(section: Section) -> str:
    """Return a section's title for use within a sentence: MNIST stays MNIST."""
    return section.title if section.title[1].isupper() else section.title.lower()


def write_reproduction(sections: Sequence[Section], out: Path, size: str, commands: dict[str, str]) -> Path:
    """Write everything into a folder and return the page.

    Args:
        sections: One per experiment.
        out: The folder; it must exist.
        size: Size of the study.
        commands: The command that reproduces each experiment.
    """
    figures, tables, specs = (out / name for name in ("figures", "tables", "specs"))
    for folder in (figures, tables, specs):
        folder.mkdir(exist_ok=True)
    verdicts = [row for section in sections for row in section.verdicts]
    table = verdict_table(verdicts, commands)
    table.write_csv(tables / "verdict.csv")
    (tables / "verdict.tex").write_text(tex(table.drop("command")), encoding="utf-8")
    shown = []
    for section in sections:
        for sweep in section.sweeps:
            (specs / f"{sweep.name}.toml").write_text(sweep.to_toml(), encoding="utf-8")
        for name, data in {**section.tables, **section.data}.items():
            data.write_csv(tables / f"{name}.csv")
            if name in section.tables:
                (tables / f"{name}.tex").write_text(tex(data), encoding="utf-8")
        drawn = [
            {
                "id": d.id,
                "svg": Markup(save_figure(d.figure, figures, d.id)),
                "caption": d.caption,
                "wide": d.wide,
            }
            for d in section.drawn
        ]
        parts = [_Shown(t.columns, t.rows()) for t in section.tables.values()]
        shown.append(
            {"id": section.id, "title": section.title, "words": section.words, "drawn": drawn, "tables": parts}
        )
    theirs = [row for row in verdicts if not row.ours]
    text = render(
        "reproduction.html",
        size=size,
        titles=", ".join(map(_inline, sections)),
        commands=list(commands.values()),
        command_of=commands,
        sections=shown,
        theirs=theirs,
        ours=[row for row in verdicts if row.ours],
        counts={"held": 0, "not held": 0, "undecided": 0, **Counter(row.verdict for row in theirs)},
    )
    page = out / "index.html"
    page.write_text(text, encoding="utf-8")
    return page
