"""The sections of the reproduction page: figures with captions and tables, one function per experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ..experiments.spec import Sweep
from ..experiments.store import Store
from ..problems.images import Images
from ..report.style import STYLES, Figure
from .claims import Verdict, delay_claims, sensitivity_claims, share_claim, training_claims
from .figures import classes, sensitivity, training
from .labels import class_delays, class_influence, mean_influence, slow_shares
from .presets import preset
from .study import Study, chosen_sweep, curves, final_rows

__all__ = ["Drawn", "Section", "delay_section", "sensitivity_section", "training_section"]

DELAY_SEEDS = range(20)
SETTINGS = ("lr", "beta", "gamma", "threshold")
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


@dataclass(frozen=True)
class Drawn:
    """A figure with its caption."""

    id: str
    figure: Figure
    caption: str
    wide: bool = True


@dataclass(frozen=True)
class Section:
    """One experiment: description, figures, tables, verdicts, and its sweeps."""

    id: str
    title: str
    words: tuple[str, ...]
    drawn: tuple[Drawn, ...]
    tables: Mapping[str, pl.DataFrame]
    """Tables shown on the page, by file name."""
    verdicts: tuple[Verdict, ...]
    sweeps: tuple[Sweep, ...]
    data: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Tables written next to the page, not shown on it."""


def _set_up(sweep: Sweep) -> str:
    options = ", ".join(f"{name} {value}" for name, value in sweep.problem_options.items() if name != "split")
    rule = "the paper's literal rule" if not sweep.delay_options.get("exact", True) else "exact share"
    return (
        f"{sweep.delay_options['workers']} workers, slow share {sweep.delay_options['slow_share']:g} ({rule}), "
        f"{sweep.steps:,} updates of batch 16" + (f"; {options}." if options else ".")
    )


def training_section(made: Study, chosen: Mapping[str, Mapping[str, Any]], problem: Images, store: Store) -> Section:
    """Return the section on scores over updates, from the final runs of a study."""
    name, sweep = NAMES[made.name], chosen_sweep(made, {k: dict(v) for k, v in chosen.items()})
    rows, finals = curves(sweep, store), final_rows(sweep, store)
    influence = class_influence(sweep, problem, chosen, made.fresh[:3])
    label, seeds = "test F1, mean over classes", len(made.fresh)
    best = f"each method's best configuration, {seeds} fresh seeds"
    against = "ordered-momentum"
    drawn = (
        Drawn(
            f"{made.name}-f1",
            training.over_updates(rows, "f1", label, f"{name}: test F1"),
            f"Test F1 over updates, {best}. Lines are means, shaded areas their standard errors. In the paper's figure "
            "the ordered methods are on top.",
        ),
        Drawn(
            f"{made.name}-slow-fast",
            training.slow_against_fast(finals, f"{name}: final F1 of slow and of fast classes"),
            "Final test F1 of the slow and of the fast classes; one dot per seed.",
        ),
        Drawn(
            f"{made.name}-accuracy",
            training.over_updates(rows, "accuracy", "test accuracy", f"{name}: test accuracy"),
            f"Test accuracy over updates, {best}.",
        ),
        Drawn(
            f"{made.name}-panels",
            training.panels(rows, "f1", label),
            f"Test F1 over updates on {name}, one panel per method. Thin lines are seeds, bold lines their means.",
        ),
        Drawn(
            f"{made.name}-differences",
            training.paired_differences(
                finals,
                against,
                "f1",
                f"{name}: final F1 minus the F1 of {against} on the same schedule",
                "difference in test F1",
            ),
            "Paired by seed, on the same schedules. Dots are seeds, diamonds means, and bars their 95 % intervals.",
        ),
        Drawn(
            f"{made.name}-influence",
            classes.influence_by_class(influence),
            "Mean influence (total weight on the parameters) of an image of each class, with the chosen options. "
            "Ordering reduces it for slow classes; momentum, plain asynchronous SGD and catch-up do not.",
        ),
    )
    words = (
        f"{_set_up(sweep)} Each method's configuration is chosen on the validation split, with "
        f"{len(made.grid.runs()):,} runs in total. It is judged on the test set, with {seeds} fresh seeds per method. "
        f"Slow classes: {', '.join(map(str, problem.slow_classes))}.",
    )
    summary = _summary(finals, chosen)
    verdicts = tuple(training_claims(made.name, finals))
    data = {f"{made.name}-final": finals, f"{made.name}-curves": rows, f"{made.name}-influence": influence}
    tables = {f"{made.name}-summary": summary}
    return Section(made.name, name, words, drawn, tables, verdicts, (made.grid, sweep), data)


def _summary(finals: pl.DataFrame, chosen: Mapping[str, Mapping[str, Any]]) -> pl.DataFrame:
    table = []
    for method, options in chosen.items():
        own = finals.filter(pl.col("method") == method)
        settings = {"configuration": ", ".join(f"{name} {options[name]:g}" for name in SETTINGS if name in options)}
        scores = {
            "F1": f"{own['f1'].to_numpy().mean():.4f}",
            "lowest to highest": f"{own['f1'].to_numpy().min():.4f} to {own['f1'].to_numpy().max():.4f}",
            "slow F1": f"{own['f1_slow'].to_numpy().mean():.4f}",
            "fast F1": f"{own['f1_fast'].to_numpy().mean():.4f}",
            "accuracy": f"{own['accuracy'].to_numpy().mean():.4f}",
            "accuracy std": "" if own["collapsed"].all() else f"{own['restless'].drop_nulls().to_numpy().mean():.4f}",
            "collapsed": f"{own['collapsed'].sum()} of {own.height}",
        }
        table.append({"method": method, **settings, **scores})
    return pl.DataFrame(table)


def sensitivity_section(made: Study, store: Store) -> Section:
    """Return the section on learning rates."""
    rows = final_rows(made.grid, store)
    influence = {
        (method, seed): mean_influence(made.grid, method, _first_options(made.grid, method), seed)
        for method, seed in rows.select("method", "seed").unique().iter_rows()
    }
    step = [lr * influence[method, seed] for method, seed, lr in rows.select("method", "seed", "lr").iter_rows()]
    rows = rows.with_columns(pl.Series("effective", step, dtype=pl.Float64))
    every = "Final test F1 at each learning rate (beta 0.05, gamma 0.1, threshold 2M). Dots are seeds."
    drawn = (
        Drawn(
            "lr-momentum",
            sensitivity.over_rates(rows, sensitivity.MOMENTUM_METHODS, "lr", "Methods with momentum", "learning rate"),
            every,
            wide=False,
        ),
        Drawn(
            "lr-others",
            sensitivity.over_rates(rows, sensitivity.OTHERS, "lr", "Ordered methods and baselines", "learning rate"),
            every,
            wide=False,
        ),
        Drawn(
            "lr-effective",
            sensitivity.over_rates(
                rows,
                list(STYLES),
                "effective",
                "By effective step",
                "learning rate times mean influence",
                width=9.6,
            ),
            "The same runs against the effective step: the learning rate times the mean influence of a gradient. "
            "Ordering shrinks the step, so curves that differ by learning rate may coincide here.",
        ),
        Drawn(
            "lr-bands",
            sensitivity.bands(rows),
            "Share of the learning rates that end within 5 % of the method's best F1, and share that collapse.",
        ),
    )
    seeds = len(made.grid.seeds)
    words = (f"MNIST, {_set_up(made.grid)} {seeds} seeds per learning rate, on the test set; nothing is chosen.",)
    verdicts = tuple(sensitivity_claims(rows))
    return Section(
        "lr-sensitivity", "Learning rates", words, drawn, {}, verdicts, (made.grid,), {"lr-sensitivity": rows}
    )


def _first_options(sweep: Sweep, method: str) -> dict[str, Any]:
    """Return the options other than the learning rate; each has one value."""
    grid = next(grid for grid in sweep.grids if grid.method == method)
    return {name: values[0] for name, values in grid.values.items() if name != "lr"}


def delay_section(made: Study, problem: Images) -> Section:
    """Return the section on the delay model: schedules and labels only, no training."""
    rows = class_delays(made.grid, problem, DELAY_SEEDS)
    shown = rows.filter("dependent")
    slow = shown.filter(pl.col("label").is_in(list(problem.slow_classes)))
    share = slow["appearances"].to_numpy().sum() / shown["appearances"].to_numpy().sum()
    other_shares = slow_shares(preset("cifar10", made.size), DELAY_SEEDS)
    other = sum(other_shares) / len(other_shares)
    words = (
        f"MNIST, {_set_up(made.grid)} {len(DELAY_SEEDS)} schedules. The share of slow labels is {share:.3f}.",
        f"On CIFAR-10's schedules (5 workers, slow share 0.5) the share of slow batches is {other:.3f}.",
    )
    drawn = (
        Drawn(
            "delay-by-class",
            classes.delay_by_class(rows),
            "Mean delay by label, with delays that depend on the data, and with the same arrivals but labels that are "
            "independent of the delay.",
            wide=False,
        ),
        Drawn("labels-by-class", classes.labels_by_class(rows), "How often each label appears.", wide=False),
    )
    verdicts = (*delay_claims(rows, problem.slow_classes), share_claim("CIFAR-10", 0.5, other_shares))
    return Section("delay-model", "The delay model", words, drawn, {}, verdicts, (made.grid,), {"delay-by-class": rows})
