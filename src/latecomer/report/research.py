"""Figures of the research: stability against fairness, and who is on the front."""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..research.board import front_of
from .figures import GREY, INK, tidy

__all__ = ["family", "plane"]

FAMILIES: dict[str, tuple[str, str]] = {
    "the paper's, and catch-up": ("#7f7f7f", "s"),
    "fixed clip": ("#8c564b", "v"),
    "adaptive clip": ("#1f77b4", "o"),
    "adaptive clip, by delay or tensor": ("#17becf", "D"),
    "adaptive clip, by lateness": ("#d62728", "*"),
    "adaptive clip with feedback": ("#ff7f0e", "^"),
    "others of ours": ("#7b52ab", "P"),
}
"""Colour and marker of every family of candidates."""
FAIR = {
    "excess_far": "excess loss, centres 10 apart",
    "say_far": "influence of slow over fast, centres 10 apart",
    "theorem": "counter-example: measured over the bound",
}
NAMES = {"digits": "digits", "mnist": "MNIST", "cifar10": "CIFAR-10", "text": "text"}


def family(candidate: str) -> str:
    """Return which family a candidate belongs to, by its name."""
    first, _, rest = candidate.partition(", ")
    if "feedback" in rest:
        return "adaptive clip with feedback"
    if "lateness" in rest:
        return "adaptive clip, by lateness"
    if "by " in rest:
        return "adaptive clip, by delay or tensor"
    if "fixed" in rest:
        return "fixed clip"
    if first.startswith("clipped-"):
        return "adaptive clip"
    ours = first.startswith(("catch-up-debt", "ordered-filled", "ordered-adamw"))
    return "others of ours" if ours else "the paper's, and catch-up"


def plane(table: pl.DataFrame, problems: Sequence[str]) -> Figure:
    """Draw stability against three measures of fairness, a row of panels a problem; the front is numbered.

    Args:
        table: What `latecomer.research.board` returned.
        problems: Problems with learning rates that have runs.
    """
    figure = Figure(figsize=(12.5, 3.9 * len(problems) + 1.6), layout="constrained")
    panels = figure.subplots(len(problems), len(FAIR), squeeze=False)
    numbers: dict[str, int] = {}
    for row, problem in zip(panels, problems, strict=True):
        own = table.drop_nulls(f"stable_{problem}")
        for axes, (column, label) in zip(row, FAIR.items(), strict=True):
            on_front = front_of(own, f"stable_{problem}", column)
            for name in on_front:
                numbers.setdefault(name, len(numbers) + 1)
            tidy(axes, NAMES[problem])
            _dots(axes, own, f"stable_{problem}", column, {name: numbers[name] for name in on_front})
            axes.set_xlabel(label)
        row[0].set_ylabel("share of learning rates within 5 % of the best F1")
    handles = [
        panels[0][0].plot([], [], marker, color=colour, label=name, markersize=10 if marker == "*" else 6, linewidth=0)[
            0
        ]
        for name, (colour, marker) in FAMILIES.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    words = [f"{number}  {name}" for name, number in numbers.items()]
    lines = ["      ".join(words[i : i + 4]) for i in range(0, len(words), 4)]
    figure.supxlabel("On a front:\n" + "\n".join(lines), fontsize=8.5, color=INK, x=0.01, ha="left")
    return figure


def _dots(axes: Axes, table: pl.DataFrame, stable: str, fair: str, numbers: dict[str, int]) -> None:
    loss = not fair.startswith("say")
    rows = [row for row in table.select("candidate", stable, fair).iter_rows() if _finite(row[2])]
    labels: dict[tuple[float, float], list[tuple[int, float, float]]] = {}
    for name, share, value in rows:
        colour, marker = FAMILIES[family(name)]
        size = 13 if marker == "*" else 6
        axes.plot([value], [share], marker, color=colour, markersize=size, alpha=0.85, markeredgecolor="white")
        if name in numbers:  # those on the same spot share a label
            place = (round(math.log10(max(value, 1e-9)) if loss else value, 1), round(share, 1))
            labels.setdefault(place, []).append((numbers[name], value, share))
    for several in labels.values():
        _, value, share = max(several, key=lambda one: one[2])
        text = ", ".join(str(number) for number, _, _ in sorted(several))
        axes.annotate(text, (value, share), xytext=(0, 6), textcoords="offset points", fontsize=9, ha="center")
    line = sorted((value, share) for name, share, value in rows if name in numbers)
    axes.plot([value for value, _ in line], [share for _, share in line], color=GREY, linewidth=1, zorder=0)
    if loss:
        axes.set_xscale("log")
        axes.invert_xaxis()  # to the right is fairer, as in the other panel
    else:
        axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1)
    axes.set_ylim(-0.03, 0.12 + max((share for _, share, _ in rows), default=0.9))


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
