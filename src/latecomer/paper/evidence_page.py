"""Writes the evidence: verdicts, tables as CSV, figures, and one page with all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from ..report.html import TablePart
from ..report.page import Drawn, write_html, write_tables
from .evidence import OURS, PAPER, TESTS, TRAINED
from .figures import evidence as figures
from .plan import COMMON_CLIP
from .readings import reading_table
from .summaries import band_table, fine_tuning_table, method_table
from .verdicts import (
    THRESHOLDS,
    Findings,
    comparison_table,
    power_table,
    threshold_table,
    verdict_table,
)

__all__ = ["write_evidence"]

_ALL = (*PAPER, *OURS, COMMON_CLIP)
_DOTS = "One dot per seed; black bars are medians of all runs, the dashed line is the F1 from which on a run trained."
_GROUPS = (
    ("The paper's, with momentum", ("momentum", "mu2", "ordered-momentum", "ordered-mu2")),
    ("Baselines and ordering", ("async-sgd", "delay-adaptive", "delay-filtered", "ordered-momentum", "ordered-mu2")),
    ("Ours and ordering", (*OURS, "ordered-momentum", "ordered-mu2")),
)


def write_evidence(found: Findings, folder: Path, made_by: str, goes_on: str) -> Path:
    """Write everything into a folder and return the page.

    Args:
        found: What the runs say.
        folder: The folder; it must exist.
        made_by: The command that wrote it.
        goes_on: The command that makes the missing runs.
    """
    verdicts, power, parts = verdict_table(found), power_table(found), _parts(found)
    write_tables(folder, {"verdicts": verdicts, "power": power, **{part.id: part.table for part in parts}})
    return write_html(
        folder,
        "evidence",
        "evidence.html",
        _figures(found),
        verdicts=list(verdicts.iter_rows(named=True)),
        counts=_counts(verdicts),
        missing=found.missing,
        progress=found.progress,
        scale=found.scale,
        power=_shortened(power, found),
        parts=parts,
        made_by=made_by,
        goes_on=goes_on,
    )


def _counts(verdicts: pl.DataFrame) -> str:
    """Return how the paper's claims ended, in words."""
    theirs = [verdict.partition(":")[0] for verdict in verdicts.filter(pl.col("whose") == "paper")["verdict"]]
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(theirs).most_common())


def _shortened(power: pl.DataFrame, found: Findings) -> list[dict[str, Any]]:
    """Return one row per claim: the effect that all its comparisons would have shown, look by look."""
    rows = []
    for claim in found.scale.claims:
        own = power.filter(pl.col("number") == claim.number)
        cells = []
        for look in claim.looks:
            effects = own.filter(pl.col("pairs") == look)["effect"].to_list()
            known = None if None in effects else f"{max(effects):.3g}"
            cells.append({"pairs": look, "effect": known or "none"})
        rows.append({"number": claim.number, "unit": TESTS[claim.test][1], "looks": cells})
    return rows


def _parts(found: Findings) -> list[TablePart]:
    scale = found.scale
    cifar = "CIFAR-10 was not run."
    if found.fine is not None:
        fine = found.fine
        reached = "" if fine.reached is None else f" It reaches F1 {fine.reached:.3f} without delays (validation)."
        cifar = (
            f"Fine-tuned from: {fine.weights.task}, width {fine.weights.width:g}, SHA-256 {fine.weights.sha256[:12]}."
            f"{reached} BatchNorm keeps the averages of the pre-training: {'yes' if fine.frozen else 'no'}. "
            f"A run trained from F1 {fine.trained:g} on. Every method has a configuration of its own, so a method "
            "and its unordered twin may differ in more than ordering. The last column has what is at an end of the "
            "values that were tried: a better one may lie beyond it, and momentum with beta 1 is async SGD."
        )
    if found.tuned is not None:
        higher = int((found.tuned["f1_slow"] > found.tuned["f1_fast"]).sum())
        cifar += f" Slow classes score higher than fast ones in {higher} of {found.tuned.height} runs."
    chosen = (
        f"Configurations were chosen on the validation split, seeds 0 to {scale.final[1] - 1}. Shares are of all "
        "judging runs; low and high are the 95 % interval at 0.9. Slow and fast F1 are means over runs that trained."
    )
    compared = (
        "Effects are in favour of the first method, with unadjusted 90 % intervals. Rows without a number describe and "
        "decide nothing, and so do the columns about pairs in which both trained."
    )
    band = (
        f"Decades of the learning rate with F1 of at least {TRAINED:g}, from {min(scale.rates):g} to "
        f"{max(scale.rates):g}, with 90 % intervals; and the share of the {len(scale.rates)} rates."
    )
    reading = (
        "One factor at a time, ten seeds, the chosen configurations. The direction of a claim is that of the "
        "comparison least in its favour. Where such a gamma was chosen anyway, the runs are the judging runs."
    )
    other = "The same claims if a run counts as trained from another F1 on."
    parts = [
        TablePart("methods", "Methods on MNIST", chosen, method_table(found)),
        TablePart("comparisons", "Every comparison", compared, comparison_table(found)),
        TablePart("thresholds", "Other thresholds", other, threshold_table(found)),
        TablePart("bands", "Width of the good band", band, band_table(found)),
        TablePart("cifar10", "CIFAR-10", cifar, fine_tuning_table(found)),
    ]
    if "readings" in scale.stages:
        parts.append(TablePart("readings", "Other readings of the paper", reading, reading_table(found.readings)))
    return parts


def _figures(found: Findings) -> list[Drawn]:
    drawn: list[Drawn] = []
    if found.judged is not None:
        ours = sum(method not in PAPER for method in set(found.judged["method"]))
        drawn += [
            ("trained", figures.trained_shares(found.judged, _ALL, THRESHOLDS, ours),
             "Share of the judging runs that trained. Bars are 95 % intervals. Below the dotted line: ours, and the "
             "common clip they are compared with."),
            ("f1-by-seed", figures.by_seed(found.judged, _ALL, TRAINED, "Last F1 of every judging run (MNIST)"),
             _DOTS),
        ]  # fmt: skip
        if (found.judged["f1"].fill_null(0.0).fill_nan(0.0) >= TRAINED).any():
            title = "Slow and fast classes (MNIST)"
            drawn.append(("slow-fast", figures.slow_and_fast(found.judged, _ALL, TRAINED, title),
                          "Only runs that trained: a selected set, of another size for every method."))  # fmt: skip
    if found.curves is not None and not found.curves.is_empty():
        seeds = found.curves["seed"].n_unique()
        title = f"F1 over the learning rate, width {found.scale.curve_width or 1.0:g}, {seeds} seeds"
        drawn.append(("curves", figures.over_rates(found.curves, _GROUPS, title, TRAINED),
                      "Lines are means over seeds, bars their standard errors. A mean between 0 and 1 is mostly a "
                      "share of runs that trained. From the dashed line on a run trained."))  # fmt: skip
    if found.figure is not None:
        title = "F1 over the paper's 19 learning rates, full width, 3 seeds"
        drawn.append(
            (
                "rates",
                figures.over_rates(found.figure, _GROUPS, title, TRAINED),
                "Dots are seeds, lines their means. This figure decides nothing.",
            )
        )
    if found.tuned is not None and found.fine is not None:
        trained, title = found.fine.trained, "Last F1 of every judging run (CIFAR-10)"
        drawn.append(("cifar10-by-seed", figures.by_seed(found.tuned, PAPER, trained, title), _DOTS))
        if (found.tuned["f1"].fill_null(0.0).fill_nan(0.0) >= trained).any():
            title = "Slow and fast classes (CIFAR-10)"
            drawn.append(("cifar10-slow-fast", figures.slow_and_fast(found.tuned, PAPER, trained, title),
                          "Classes 5 to 9 are slow."))  # fmt: skip
    return drawn
