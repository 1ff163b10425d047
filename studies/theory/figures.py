"""Figures of the theory: the counter-example, rates, and the parts of the error of the momentum."""

from __future__ import annotations

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from latecomer.report.style import FAST, GREY, INK, SLOW, STYLES, blank, svg
from latecomer.theory.counter_example import METHODS

from .rates import fitted

__all__ = ["block_means", "counter_example", "error_parts", "learning_rates", "rates"]


def counter_example(rows: pl.DataFrame) -> str:
    """Draw the mean squared gradient over Theorem 1's bound against M; one dot per seed."""
    figure, axes = blank(7.4, 4.2, "Theorem 1: measured value over the published bound")
    ratio = rows.with_columns((pl.col("measured") / pl.col("bound")).alias("ratio"))
    for dependent, dash, label in (
        (True, "-", "data-dependent delays"),
        (False, ":", "data-independent delays\n(dotted, also for the other methods)"),
    ):
        for method in METHODS:
            own = ratio.filter((pl.col("method") == method) & (pl.col("dependent") == dependent))
            if own.is_empty():
                continue
            colour = STYLES[method][0]
            means = own.group_by("workers").agg(pl.col("ratio").mean()).sort("workers")
            name = f"{method}, {label}" if method == METHODS[0] else method if dependent else None
            axes.plot(means["workers"], means["ratio"], color=colour, linestyle=dash, linewidth=2, label=name)
            axes.plot(own["workers"], own["ratio"], "o", color=colour, markersize=3.5)
    repaired = ratio.group_by("workers").agg((pl.col("repaired") / pl.col("bound")).mean()).sort("workers")
    axes.plot(repaired["workers"], repaired["repaired"], color=INK, linestyle="--", linewidth=1.2, label="proved bound")
    axes.axhline(1.0, color=GREY, linewidth=1.2)
    axes.text(0.01, 1.06, "published bound", color=GREY, fontsize=9, transform=axes.get_yaxis_transform())
    axes.set_xscale("log")
    axes.set_yscale("log")
    _ticks(axes, rows["workers"].unique().sort())
    axes.set_xlabel("workers M (T grows with M²)")
    axes.set_ylabel("measured / bound")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return svg(figure)


def _ticks(axes: Axes, values: pl.Series) -> None:
    """Label only these values of a log axis."""
    axes.minorticks_off()
    axes.set_xticks(values.to_list(), [f"{value:,}" if isinstance(value, int) else f"{value:.1e}" for value in values])


PANELS = (
    ("nonconvex over T", "steps", "updates T", "Theorem 1, quadratic, M = 4", "mean squared gradient", -0.5),
    ("nonconvex over M", "workers", "M - 1", "Theorem 1, quadratic", "mean squared gradient", 1.0),
    ("convex over T", "steps", "updates T", "Theorem 2, softmax, M = 7", "excess loss", -0.5),
    ("convex over M", "workers", "M - 1", "Theorem 2, softmax", "excess loss", 1.0),
)


def rates(rows: pl.DataFrame) -> str:
    """Draw what the theorems bound against T and M, with fitted and declared powers."""
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    for axes, (study, x, label, title, quantity, declared) in zip(figure.subplots(2, 2).flatten(), PANELS, strict=True):
        for dependent, colour, name in (
            (False, FAST, "data-independent delays"),
            (True, SLOW, "data-dependent delays"),
        ):
            own = rows.filter((pl.col("study") == study) & (pl.col("dependent") == dependent))
            if own.is_empty():
                continue
            own = own.with_columns(pl.col("workers") - 1)  # the bounds are in M - 1
            found, _ = fitted(own, x)
            means = own.group_by(x).agg(pl.col("measured").mean(), pl.col("repaired").mean()).sort(x)
            axes.plot(own[x], own["measured"], "o", color=colour, markersize=3, alpha=0.6)
            axes.plot(means[x], means["measured"], color=colour, linewidth=2, label=f"{name}: power {found}")
            if not dependent:
                axes.plot(means[x], means["repaired"], color=INK, linestyle="--", linewidth=1, label="proved bound")
        axes.set_title(f"{title} (declared power: {declared:g})", fontsize=10, loc="left", color=INK)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel(quantity)
        _ticks(axes, rows.filter(pl.col("study") == study)[x].unique().sort() - (x == "workers"))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.35)
        axes.legend(frameon=False, fontsize=8, loc="upper right")
    return svg(figure)


def learning_rates(rows: pl.DataFrame) -> str:
    """Draw the excess loss of Algorithm 2 over the interval of learning rates that Theorem 2 allows."""
    figure, axes = blank(6.4, 3.6, "Algorithm 2 over the learning rates that Theorem 2 allows")
    own = rows.filter(pl.col("study") == "convex over lr").sort("lr")
    means = (
        own.group_by("lr").agg(pl.col("measured").mean(), pl.col("bound").mean(), pl.col("repaired").mean()).sort("lr")
    )
    axes.plot(own["lr"], own["measured"], "o", color=FAST, markersize=3.5)
    axes.plot(means["lr"], means["measured"], color=FAST, linewidth=2, label="excess loss, measured")
    axes.plot(means["lr"], means["bound"], color=GREY, linestyle="--", label="published bound")
    axes.plot(means["lr"], means["repaired"], color=INK, linestyle="--", label="proved bound")
    axes.set_xscale("log")
    axes.set_yscale("log")
    _ticks(axes, means["lr"].gather([0, len(means) // 2, len(means) - 1]))
    axes.set_xlabel("learning rate, from lr_min to lr_max")
    axes.set_ylabel("excess loss")
    axes.legend(frameon=False, fontsize=9, loc="center right")
    return svg(figure)


def block_means(rows: pl.DataFrame, blocks: int = 150) -> pl.DataFrame:
    """Average the rows of `latecomer.theory.diagnose` over blocks of arrivals; an incomplete last block is dropped.

    Examples:
        >>> rows = pl.DataFrame({"arrival": [1, 2, 3, 4, 5], "error": [1.0, 3.0, 5.0, 7.0, 100.0]})
        >>> block_means(rows, blocks=2).rows()
        [(1, 2, 2.0), (3, 2, 6.0)]
    """
    size = max(1, rows.height // blocks)
    block = (pl.int_range(pl.len()) // size).alias("block")
    means = pl.all().exclude("arrival").mean()
    parts = rows.head(rows.height // size * size).group_by(block, maintain_order=True)
    return parts.agg(pl.col("arrival").first(), pl.len().alias("arrivals"), means).drop("block")


def error_parts(rows: pl.DataFrame) -> str:
    """Draw the parts of the momentum's error along a run, from `block_means`."""
    figure, axes = blank(9, 3.8, "Parts of the error of the ordered momentum")
    shown = (
        ("gradient", GREY, "-", "gradient at x_t"),
        ("error", INK, "-", "error of the momentum"),
        ("virtual", FAST, "-", "error with no gradient missing"),
        ("delay_bias", "#7b52ab", "--", "b: expected gradients in flight"),
        ("delay_limit", "#7b52ab", ":", "bound on b in the paper's proof"),
        ("selection", SLOW, "-", "noise in flight: zero in the paper's proof"),
    )
    for name, colour, dash, label in shown:
        axes.plot(rows["arrival"], rows[name], color=colour, linestyle=dash, linewidth=1.6, label=label)
    axes.set_yscale("log")
    axes.set_xlabel(f"arrival (means over {rows['arrivals'][0]} arrivals)")
    axes.set_ylabel("norm")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return svg(figure)
