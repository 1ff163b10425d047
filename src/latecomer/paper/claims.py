"""The paper's experimental claims, each with a measurement and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from .._util.intervals import Interval, mean

__all__ = [
    "Verdict",
    "delay_claims",
    "differences",
    "paired",
    "sensitivity_claims",
    "share_claim",
    "shares_near_best",
    "training_claims",
]

BASELINES = ("async-sgd", "delay-adaptive", "delay-filtered")
PAPERS = (*BASELINES, "momentum", "mu2", "ordered-momentum", "ordered-mu2")
COLLAPSED = 0.05
"""A final F1 below this is a collapse, or no training at all: a constant prediction has 0.018."""
NEAR = 0.05
"""A learning rate is good if its F1 is within this share of the method's best."""
FEW = 5
"""With fewer measurements and no spread at all, nothing is decided."""
SAME_SHARE, SAME_DELAY = 0.01, 0.1
"""Tolerances of "preserved" and "uniform": one percentage point of the labels, a tenth of the mean delay."""


@dataclass(frozen=True)
class Verdict:
    """One claim with its measurement.

    Args:
        study: Name of the experiment.
        claim: The claim as a sentence.
        difference: The measured difference; above zero it supports the claim.
        unit: Unit of the difference.
        measurements: Number of paired measurements.
        ours: Whether the claim is this library's, not the paper's.
    """

    study: str
    claim: str
    difference: Interval
    unit: str
    measurements: int
    ours: bool = False

    @property
    def verdict(self) -> str:
        """``held`` or ``not held`` if the interval excludes zero, else ``undecided``.

        A few measurements that happen to be equal say nothing about their spread.
        """
        if self.difference.half == 0 and self.measurements < FEW:
            return "undecided"
        if self.difference.low > 0:
            return "held"
        return "not held" if self.difference.high < 0 else "undecided"


def differences(rows: pl.DataFrame, a: str, b: str, column: str) -> list[float]:
    """Return a column of one method minus that of another, seed by seed; both ran on the same schedules."""
    first, second = (rows.filter(pl.col("method") == name).select("seed", column) for name in (a, b))
    both = first.join(second, on="seed", suffix="_other").sort("seed").drop_nulls()
    if both.is_empty() and first["seed"].is_in(second["seed"].to_list()).any():
        return []  # they share seeds, but all values are missing
    if both.is_empty():
        raise ValueError(f"{a} and {b} share no seed")
    return (both[column].fill_nan(0.0) - both[f"{column}_other"].fill_nan(0.0)).to_list()


def paired(rows: pl.DataFrame, a: str, b: str, column: str, comparisons: int = 1) -> Interval:
    """Return the mean difference between two methods over the seeds they share, with its 95 % interval.

    Scores are between 0 and 1, so the interval is cut at 1. Without any pair it is -1 to 1.
    """
    values = differences(rows, a, b, column)
    if not values:
        return Interval(0.0, -1.0, 1.0)
    found = mean(values, comparisons)
    return Interval(found.value, max(-1.0, found.low), min(1.0, found.high))


def training_claims(study: str, rows: pl.DataFrame) -> list[Verdict]:
    """Return the paper's claims about final F1 and stability, from final runs on shared schedules.

    Args:
        study: ``"mnist"`` or ``"cifar10"``.
        rows: The result of `final_rows`.
    """
    seeds = rows["seed"].n_unique()

    def higher(a: str, b: str, claim: str, column: str = "f1", unit: str = "test F1", ours: bool = False) -> Verdict:
        return Verdict(study, claim, paired(rows, a, b, column), unit, seeds, ours)

    def steadier(a: str, b: str) -> Verdict:
        found, pairs = paired(rows, b, a, "restless"), len(differences(rows, b, a, "restless"))
        unit = "deviation of accuracy, where neither collapsed"
        return Verdict(study, f"{a} has a steadier accuracy than {b}", found, unit, pairs)

    ordered = {"ordered-momentum": "momentum", "ordered-mu2": "mu2"}
    table = [higher(a, b, f"{a} reaches a higher F1 than {b}") for a, b in ordered.items()]
    table += [higher(a, b, f"{a} reaches a higher F1 than {b}") for a in ordered for b in BASELINES]
    others = [name for name in PAPERS if name != "ordered-mu2"]
    rival = min(others, key=lambda name: paired(rows, "ordered-mu2", name, "f1").value)
    claim = f"ordered-mu2 is the strongest (against {rival}, the hardest of {len(others)}; interval widened for that)"
    found = paired(rows, "ordered-mu2", rival, "f1", comparisons=len(others))
    table.append(Verdict(study, claim, found, "test F1", seeds))
    table += [steadier(a, b) for a, b in ordered.items()]
    table += [steadier(a, b) for a in ordered for b in BASELINES]
    table += [
        higher("mu2", "momentum", "mu2 performs well without ordering (against momentum)"),
        *(steadier("mu2", b) for b in ("momentum", *BASELINES)),
    ]
    for b in ("momentum", "ordered-momentum", "ordered-mu2"):
        table.append(higher("catch-up", b, f"catch-up reaches a higher F1 than {b}", ours=True))
    slow = "F1 of slow classes"
    table.append(
        higher("catch-up", "ordered-momentum", "catch-up is better on slow classes", "f1_slow", slow, ours=True)
    )
    return table


def shares_near_best(rows: pl.DataFrame) -> pl.DataFrame:
    """Return, for each method and seed, the share of learning rates with an F1 within 5 % of its best.

    A collapsed run is never near the best, even if all have collapsed.
    """
    f1 = pl.col("f1").fill_nan(0.0)
    near = (f1 >= (1 - NEAR) * f1.max().over("method", "seed")) & (f1 >= COLLAPSED)
    return rows.group_by("method", "seed").agg(near.mean().alias("share")).sort("method", "seed")


def sensitivity_claims(rows: pl.DataFrame) -> list[Verdict]:
    """Return the paper's claims about learning rates, from runs over a grid of them."""
    shares = shares_near_best(rows)
    seeds, unit = shares["seed"].n_unique(), "share of learning rates within 5 % of the best"
    pairs = [("ordered-momentum", "momentum"), ("ordered-mu2", "mu2")]
    pairs += [(a, b) for a in ("ordered-momentum", "ordered-mu2") for b in BASELINES]
    ours = [("catch-up", "momentum"), ("catch-up", "ordered-momentum")]

    def wider(a: str, b: str) -> Verdict:
        claim = f"{a} is stable over more learning rates than {b}" + (" (gamma 0.1)" if "mu2" in a else "")
        return Verdict("lr-sensitivity", claim, paired(shares, a, b, "share"), unit, seeds, ours=(a, b) in ours)

    return [wider(a, b) for a, b in pairs + ours]


def delay_claims(rows: pl.DataFrame, slow: Sequence[int]) -> list[Verdict]:
    """Return the paper's claims about its delay model, from `class_delays`.

    Args:
        rows: The result of `class_delays`.
        slow: The slow classes.
    """
    dependent = rows.filter("dependent").with_columns(pl.col("label").is_in(list(slow)).alias("slow"))
    parts = dependent.partition_by("seed", maintain_order=True)
    fast_delay = np.array([part.filter(~pl.col("slow"))["delay"].to_numpy().mean() for part in parts])
    slow_delay = np.array([part.filter("slow")["delay"].to_numpy().mean() for part in parts])
    deviations = [
        mean(dependent.filter(pl.col("label") == label).sort("seed")["delay"].to_numpy() / fast_delay - 1.0)
        for label in dependent.filter(~pl.col("slow"))["label"].unique()
    ]
    share_errors = [
        part.filter("slow")["appearances"].to_numpy().sum() / part["appearances"].to_numpy().sum() - len(slow) / 10
        for part in parts
    ]
    claims = [
        ("slow classes are later than fast ones", mean(slow_delay - fast_delay), "updates"),
        (
            "delays are uniform over the fast classes (within a tenth)",
            _margin(SAME_DELAY, max(deviations, key=lambda found: abs(found.value))),
            "of the mean delay, to a tenth",
        ),
        (
            "the label distribution is preserved on MNIST (within a percentage point)",
            _margin(SAME_SHARE, mean(share_errors)),
            "share, to 0.01",
        ),
    ]
    return [Verdict("delay-model", claim, found, unit, len(parts)) for claim, found, unit in claims]


def share_claim(data: str, wanted: float, shares: Sequence[float]) -> Verdict:
    """Return whether the schedules of a dataset preserve the share of slow labels."""
    claim = f"the label distribution is preserved on {data} (within a percentage point)"
    found = mean([share - wanted for share in shares])
    return Verdict("delay-model", claim, _margin(SAME_SHARE, found), "share, to 0.01", len(shares))


def _margin(allowed: float, found: Interval) -> Interval:
    """Return the margin between a deviation of either sign and the tolerance."""
    left = allowed - abs(found.value)
    return Interval(left, left - found.half, left + found.half)
