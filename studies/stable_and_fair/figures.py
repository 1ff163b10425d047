"""Figures of the study: stability against fairness with the Pareto front, and final scores by learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from latecomer.report.style import GREY, tidy

from .board import front_of
from .candidates import CANDIDATES
from .plans import METRICS

__all__ = ["adamw_figure", "plane", "rate_curves"]

FAIR = {
    "excess_far": "excess loss, centres 10 apart (fairer →)",
    "influence_far": "relative influence, centres 10 apart (1 is fair)",
    "theorem": "counter-example: measured / bound (fairer →)",
}
NAMES = {
    "digits": "digits",
    "mnist": "MNIST",
    "text": "text",
    "cifar10": "CIFAR-10",
}
CANDIDATE_STYLES: dict[str, tuple[str, str, str]] = {
    "momentum": ("#1f77b4", "--", "s"),
    "ordered-momentum": ("#d62728", "--", "D"),
    "catch-up": ("#2ca02c", "--", "o"),
    "catch-up-adamw": ("#e377c2", "--", "X"),
    "clipped-catch-up, fixed 1": ("#8c564b", ":", "v"),
    "clipped-catch-up, c 1.5": ("#7f7f7f", "-.", "^"),
    "balanced-catch-up": ("#ff7f0e", "-", "*"),
    "balanced-momentum": ("#17becf", "-", "P"),
}
"""Colour, dash and marker of every candidate."""
ADAMW_STYLES: dict[str, tuple[str, str]] = {
    "balanced-adamw": ("#7b52ab", "-"),
    "catch-up-adamw": CANDIDATE_STYLES["catch-up-adamw"][:2],
    "torch-adamw": ("#7f7f7f", ":"),
    "balanced-catch-up": CANDIDATE_STYLES["balanced-catch-up"][:2],
}
"""Colour and dash of the candidates of the comparison of AdamW rules."""


def plane(table: pl.DataFrame, problems: Sequence[str]) -> Figure:
    """Draw stability against three measures of fairness, one row of panels per problem; a line joins the Pareto front.

    Args:
        table: The result of `studies.stable_and_fair.board`.
        problems: Problems that have runs over learning rates.

    Examples:
        >>> columns = {"candidate": ["momentum"], "stable_digits": [0.5], "seeds_digits": [5]}
        >>> columns |= {"low_digits": [0.4], "high_digits": [0.6]}
        >>> columns |= {"excess_far": [0.1], "influence_far": [1.0], "theorem": [0.2]}
        >>> figure = plane(pl.DataFrame(columns), ["digits"])
        >>> figure.axes[0].get_title(loc="left")
        'digits, 5 seeds'
    """
    drawn = [(problem, column) for problem in problems for column in _columns(table, problem)]
    figure = Figure(figsize=(12.5, 3.6 * len(drawn) + 1.2), layout="constrained")
    panels = figure.subplots(len(drawn), len(FAIR), squeeze=False)
    for row, (problem, shares) in zip(panels, drawn, strict=True):
        own, note = table.drop_nulls(f"stable_{problem}"), ", within its kind" if shares != problem else ""
        for axes, (column, label) in zip(row, FAIR.items(), strict=True):
            tidy(axes, f"{NAMES[problem]}, {_seeds(own[f'seeds_{problem}'])}{note}")
            _dots(axes, own, shares, column)
            axes.set_xlabel(label)
        whose = "its kind's" if note else "the"
        row[0].set_ylabel(f"share of learning rates within\n5 % of {whose} best {_word(problem)}")
    handles = [
        panels[0][0].plot([], [], marker, color=colour, label=name, markersize=_size(marker), linewidth=0)[0]
        for name, (colour, _, marker) in CANDIDATE_STYLES.items()
        if name in set(table["candidate"])
    ]
    handles += panels[0][0].plot([], [], color=GREY, linewidth=1, label="Pareto front")
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False, fontsize=9)
    return figure


def _columns(table: pl.DataFrame, problem: str) -> list[str]:
    """Return the columns to draw: also the shares within each kind if a whole kind is never near the overall best."""
    shares: dict[str, float] = {}
    for name, share in table.select("candidate", f"stable_{problem}").drop_nulls().iter_rows():
        kind = CANDIDATES[name].kind
        shares[kind] = max(shares.get(kind, 0.0), share)
    return [problem] if all(shares.values()) else [problem, f"kind_{problem}"]


def _seeds(counts: pl.Series) -> str:
    """Return the number of seeds in words; it may differ between candidates."""
    found = sorted(set(counts.to_list()))
    if len(found) > 1:
        return f"{found[0]} to {found[-1]} seeds"
    return "1 seed" if found == [1] else f"{found[0]} seeds"


def _word(problem: str) -> str:
    return METRICS[problem].name.replace("f1", "F1")


def _size(marker: str) -> int:
    return 12 if marker == "*" else 6


def _dots(axes: Axes, table: pl.DataFrame, shares: str, fair: str) -> None:
    on_front = front_of(table, f"stable_{shares}", fair)
    columns = ("candidate", f"stable_{shares}", f"low_{shares}", f"high_{shares}", fair)
    rows = [row for row in table.select(columns).iter_rows() if _finite(row[-1])]
    for name, share, low, high, value in rows:
        colour, _, marker = CANDIDATE_STYLES[name]
        if low is not None and high is not None:
            axes.plot([value, value], [low, high], color=colour, linewidth=1, alpha=0.6)
        axes.plot([value], [share], marker, color=colour, markersize=_size(marker), alpha=0.9, markeredgecolor="white")
    line = sorted((value, share) for name, share, _, _, value in rows if name in on_front)
    axes.plot([value for value, _ in line], [share for _, share in line], color=GREY, linewidth=1, zorder=0)
    axes.set_ylim(-0.03, 1.03)
    if fair.startswith("influence"):
        axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1)
    else:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.invert_xaxis()  # fairer to the right, as in the other panels
    axes.margins(x=0.08)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def rate_curves(table: pl.DataFrame) -> Figure:
    """Draw the final score of every candidate by learning rate, one panel per problem.

    Args:
        table: One row per problem, candidate and learning rate, with the mean final score.

    Examples:
        >>> ends = {"problem": "text", "candidate": "momentum", "lr": [0.01, 0.1], "value": [3.0, 2.0], "seeds": 1}
        >>> rate_curves(pl.DataFrame(ends)).axes[0].get_ylabel()
        'final loss, mean over seeds'
    """
    problems = [name for name in METRICS if name in set(table["problem"])]
    figure = Figure(figsize=(1.0 + 3.9 * max(2, len(problems)), 4.4), layout="constrained")
    panels = figure.subplots(1, max(1, len(problems)), squeeze=False)[0]
    for axes, problem in zip(panels, problems, strict=True):
        tidy(axes, NAMES[problem])
        for name, (colour, dash, _) in CANDIDATE_STYLES.items():
            own = table.filter((pl.col("problem") == problem) & (pl.col("candidate") == name)).sort("lr")
            axes.plot(own["lr"], own["value"], color=colour, linestyle=dash, linewidth=2, marker=".", markersize=5)
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel(f"final {_word(problem)}, mean over seeds")
        if not METRICS[problem].least:
            axes.set_ylim(-0.02, 1.02)
    handles = [
        panels[0].plot([], [], color=c, linestyle=d, linewidth=2, label=name)[0]
        for name, (c, d, _) in CANDIDATE_STYLES.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def adamw_figure(table: pl.DataFrame) -> Figure:
    """Draw the final score by learning rate, of all samples and of slow ones; the area is from worst to best seed.

    Args:
        table: The result of `studies.stable_and_fair.adamw_curves`.

    Examples:
        >>> ends = {"problem": "digits", "candidate": "balanced-adamw", "lr": [0.01, 0.1], "value": [0.9, 0.5]}
        >>> ends |= {"low": [0.8, 0.1], "high": [0.95, 0.8], "slow": [0.7, 0.2]}
        >>> [axes.get_ylabel() for axes in adamw_figure(pl.DataFrame(ends)).axes]
        ['final F1', 'final F1, slow samples']
    """
    problems = [name for name in METRICS if name in set(table["problem"])]
    figure = Figure(figsize=(1.0 + 3.9 * len(problems), 6.6), layout="constrained")
    panels = figure.subplots(2, len(problems), squeeze=False)
    for column, problem in enumerate(problems):
        top, bottom = panels[0][column], panels[1][column]
        tidy(top, NAMES[problem])
        tidy(bottom, "")
        for name, (colour, dash) in ADAMW_STYLES.items():
            own = table.filter((pl.col("problem") == problem) & (pl.col("candidate") == name)).sort("lr")
            for axes, values in ((top, own["value"]), (bottom, own["slow"])):
                axes.plot(own["lr"], values, color=colour, linestyle=dash, linewidth=2, marker=".", markersize=5)
            top.fill_between(own["lr"], own["low"], own["high"], color=colour, alpha=0.12, linewidth=0)
        for axes, of in ((top, ""), (bottom, ", slow samples")):
            axes.set_xscale("log")
            axes.set_ylabel(f"final {_word(problem)}{of}")
            if not METRICS[problem].least:
                axes.set_ylim(-0.02, 1.02)
        bottom.set_xlabel("learning rate")
    handles = [
        panels[0][0].plot([], [], color=c, linestyle=d, linewidth=2, label=name)[0]
        for name, (c, d) in ADAMW_STYLES.items()
        if name in set(table["candidate"])
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure
