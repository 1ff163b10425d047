"""Figures of the research: stability against fairness, who is on the front, and how runs end by learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..research import METRICS
from ..research.board import FIRST, front_of
from .figures import GREY, INK, tidy

__all__ = ["family", "plane", "rate_curves"]

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
NAMES = {
    "screening": "digits, one seed, all candidates",
    "digits": "digits",
    "mnist": "MNIST",
    "text": "text",
    "cifar10": "CIFAR-10",
}
LINES: dict[str, tuple[str, str]] = {
    "momentum": ("#1f77b4", "--"),
    "ordered-momentum": ("#d62728", "--"),
    "catch-up": ("#2ca02c", "--"),
    "clipped-catch-up, fixed 1": ("#8c564b", ":"),
    "clipped-catch-up, c 1.5": ("#7f7f7f", "-."),
    "clipped-catch-up, c 1.5, by lateness": ("#ff7f0e", "-"),
    "clipped-momentum, c 1.5, by lateness": ("#17becf", "-"),
}
"""Colour and dash of every finalist."""


def family(candidate: str) -> str:
    """Return which family a candidate belongs to, by its name.

    Examples:
        >>> family("clipped-momentum, c 1.5, by lateness")
        'adaptive clip, by lateness'
    """
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
    ours = first.startswith(("catch-up-debt", "ordered-filled", "ordered-falling", "ordered-adamw"))
    return "others of ours" if ours else "the paper's, and catch-up"


def plane(table: pl.DataFrame, problems: Sequence[str]) -> Figure:
    """Draw stability against three measures of fairness, a row of panels a problem; the front is numbered.

    Args:
        table: What `latecomer.research.board` returned.
        problems: The screening, and problems with learning rates, that have runs.

    Examples:
        >>> columns = {"candidate": ["momentum"], "stable_digits": [0.5], "seeds_digits": [5]}
        >>> figure = plane(pl.DataFrame({**columns, "excess_far": 0.1, "say_far": 1.0, "theorem": 0.2}), ["digits"])
        >>> figure.axes[0].get_title(loc="left")
        'digits, 5 seeds'
    """
    figure = Figure(figsize=(12.5, 3.9 * len(problems) + 1.6), layout="constrained")
    panels = figure.subplots(len(problems), len(FAIR), squeeze=False)
    numbers: dict[str, int] = {}
    for row, problem in zip(panels, problems, strict=True):
        own, end = table.drop_nulls(f"stable_{problem}"), FIRST if problem == "screening" else ""
        for axes, (column, label) in zip(row, FAIR.items(), strict=True):
            on_front = front_of(own, f"stable_{problem}", column + end)
            for name in on_front:
                numbers.setdefault(name, len(numbers) + 1)
            tidy(axes, NAMES[problem] + ("" if problem == "screening" else f", {_seeds(own[f'seeds_{problem}'])}"))
            _dots(axes, own, f"stable_{problem}", column + end, {name: numbers[name] for name in on_front})
            axes.set_xlabel(label)
        row[0].set_ylabel(f"share of learning rates within\n5 % of the best {_word(problem)}")
    drawn = pl.concat([table.drop_nulls(f"stable_{problem}")["candidate"] for problem in problems])
    there = {family(name) for name in drawn}
    handles = [
        panels[0][0].plot([], [], marker, color=colour, label=name, markersize=_size(marker), linewidth=0)[0]
        for name, (colour, marker) in FAMILIES.items()
        if name in there
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    words = [f"{number}  {name}" for name, number in numbers.items()]
    lines = ["      ".join(words[i : i + 4]) for i in range(0, len(words), 4)]
    figure.supxlabel("On a front:\n" + "\n".join(lines), fontsize=8.5, color=INK, x=0.01, ha="left")
    return figure


def _seeds(counts: pl.Series) -> str:
    """Say how many seeds there are, of candidates that may have more or fewer."""
    found = sorted(set(counts.to_list()))
    if len(found) > 1:
        return f"{found[0]} to {found[-1]} seeds"
    return "1 seed" if found == [1] else f"{found[0]} seeds"


def _word(problem: str) -> str:
    return METRICS[problem].name.replace("f1", "F1")


def _size(marker: str) -> int:
    return 12 if marker == "*" else 6


def _dots(axes: Axes, table: pl.DataFrame, stable: str, fair: str, numbers: dict[str, int]) -> None:
    loss = not fair.startswith("say")
    rows = [row for row in table.select("candidate", stable, fair).iter_rows() if _finite(row[2])]
    for name, share, value in rows:
        colour, marker = FAMILIES[family(name)]
        axes.plot([value], [share], marker, color=colour, markersize=_size(marker), alpha=0.85, markeredgecolor="white")
    line = sorted((value, share) for name, share, value in rows if name in numbers)
    axes.plot([value for value, _ in line], [share for _, share in line], color=GREY, linewidth=1, zorder=0)
    axes.set_ylim(-0.03, 0.15 + max((share for _, share, _ in rows), default=0.9))
    if loss:
        axes.set_xscale("log")
        axes.invert_xaxis()  # to the right is fairer, as in the other panel
    else:
        axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1)
    axes.margins(x=0.08)
    for text, spot in _labels(axes, [(numbers[n], value, share) for n, share, value in rows if n in numbers]):
        on_white = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
        axes.annotate(
            text, spot, xycoords="axes fraction", xytext=(0, 8), textcoords="offset points", fontsize=9, ha="center",
            bbox=on_white,
        )  # fmt: skip


def _labels(axes: Axes, points: Sequence[tuple[int, float, float]]) -> list[tuple[str, tuple[float, float]]]:
    """Give points that are close to each other in the panel one label, above the highest; return where in the panel."""
    axes.get_xlim()  # the limits are only then those of what was drawn
    place = axes.transScale + axes.transLimits
    together: list[list[tuple[int, float, float]]] = []
    for number, value, share in sorted(points, key=lambda one: -one[2]):
        x, y = (float(at) for at in place.transform((value, share)))
        for several in together:
            if any(abs(x - a) < 0.11 and abs(y - b) < 0.06 for _, a, b in several):
                several.append((number, x, y))
                break
        else:
            together.append([(number, x, y)])
    return [
        (
            ", ".join(str(one[0]) for one in sorted(several)),
            (sum(one[1] for one in several) / len(several), several[0][2]),
        )
        for several in together
    ]


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def rate_curves(table: pl.DataFrame) -> Figure:
    """Draw how the finalists end by learning rate, a panel a problem.

    Args:
        table: What `latecomer.research.over_rates` returned.

    Examples:
        >>> ends = {"problem": "text", "candidate": "momentum", "lr": [0.01, 0.1], "value": [3.0, 2.0], "seeds": 1}
        >>> rate_curves(pl.DataFrame(ends)).axes[0].get_ylabel()
        'loss at the end, mean over seeds'
    """
    problems = [name for name in METRICS if name in set(table["problem"])]
    figure = Figure(figsize=(1.0 + 3.9 * max(2, len(problems)), 4.4), layout="constrained")
    panels = figure.subplots(1, max(1, len(problems)), squeeze=False)[0]
    for axes, problem in zip(panels, problems, strict=True):
        tidy(axes, NAMES[problem])
        for name, (colour, dash) in LINES.items():
            own = table.filter((pl.col("problem") == problem) & (pl.col("candidate") == name)).sort("lr")
            axes.plot(own["lr"], own["value"], color=colour, linestyle=dash, linewidth=2)
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel(f"{_word(problem)} at the end, mean over seeds")
        if not METRICS[problem].least:
            axes.set_ylim(-0.02, 1.02)
    handles = [
        panels[0].plot([], [], color=c, linestyle=d, linewidth=2, label=name)[0] for name, (c, d) in LINES.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure
