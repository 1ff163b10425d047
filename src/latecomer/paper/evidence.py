"""The twelve claims of the paper's experiments, and ours: how each is tested, and when it counts as decided.

Everything here was fixed before the runs that judge: docs/evidence.md is the same plan in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from .._util.intervals import Interval
from .statistics import (
    binomial_two_sided,
    holm,
    matched_pairs,
    mcnemar,
    mean_interval,
    pairs_to_decide,
    sign_flip,
    wilcoxon,
    wilson,
)

__all__ = ["CLAIMS", "JUDGED_SEEDS", "OURS", "PAPER", "TRAINED", "Claim", "Judgement", "judge"]

PAPER = ("async-sgd", "delay-adaptive", "delay-filtered", "momentum", "mu2", "ordered-momentum", "ordered-mu2")
OURS = ("catch-up", "balanced-catch-up", "balanced-momentum")
SGD = PAPER[:3]
TRAINED = 0.9
"""A run on MNIST trained if its last test F1 is at least this; 0.5 and 0.95 are shown beside it."""
JUDGED_SEEDS = range(1000, 1120)
CHOOSING_SEEDS = range(15)
_LEVEL = 0.05 / 11
_OUR_LEVEL = 0.05 / 2
_SHARE, _SCORE = 0.15, 0.02
"""Differences that do not matter: of a share of runs, and of F1."""

Pair = tuple[str, str]


class Compared(NamedTuple):
    """One method against another.

    Args:
        better: The method that is claimed to be better.
        worse: The other one.
        pairs: How many seeds both have.
        effect: The difference in favour of the first, with its unadjusted 90 % interval.
        p: Two-sided.
        irrelevant: Whether the interval excludes every difference that matters.
        needed: How many pairs would decide, if that can be told.
    """

    better: str
    worse: str
    pairs: int
    effect: Interval
    p: float
    irrelevant: bool
    needed: int | None = None


@dataclass(frozen=True)
class Claim:
    """What is claimed and how it is tested.

    Args:
        number: 1 to 12 are the paper's.
        text: The claim.
        comparisons: Pairs (better, worse); all must hold.
        test: Compares two methods over some seeds.
        looks: Numbers of pairs at which it is judged; it ends at the look that decides it.
        level: Error probability of the whole claim, split evenly over the looks.
        study: Whose runs it needs: ``"judge"``, ``"curves"`` or ``"cifar10"``.
        whose: ``"paper"`` or ``"ours"``.
    """

    number: int
    text: str
    comparisons: tuple[Pair, ...]
    test: Callable[[pl.DataFrame, Pair, float], Compared]
    looks: tuple[int, ...]
    level: float = _LEVEL
    study: str = "judge"
    whose: str = "paper"


@dataclass(frozen=True)
class Judgement:
    """What became of a claim.

    Args:
        claim: Which.
        verdict: ``"held"``, ``"refuted"``, ``"no relevant difference"``, ``"undecided"`` or ``"not run"``.
        pairs: At how many pairs.
        compared: Every comparison there.
    """

    claim: Claim
    verdict: str
    pairs: int
    compared: tuple[Compared, ...]

    @property
    def effect(self) -> Interval:
        """The comparison that is least in favour of the claim."""
        if not self.compared:
            return Interval(math.nan, math.nan, math.nan)
        return min((each.effect for each in self.compared), key=lambda effect: effect.value)

    @property
    def needed(self) -> int | None:
        """How many pairs would decide it, as far as that can be told."""
        known = [each.needed for each in self.compared if each.needed is not None]
        return max(known) if known else None


def judge(claim: Claim, rows: pl.DataFrame) -> Judgement:
    """Judge a claim at each of its looks, and stop at the first that decides it.

    Args:
        claim: Which.
        rows: One row per run: ``method``, ``seed``, ``f1`` and what the test looks at.
    """
    alpha = claim.level / len(claim.looks)
    methods = {method for pair in claim.comparisons for method in pair}
    seeds = sorted(set.intersection(*(set(rows.filter(pl.col("method") == m)["seed"]) for m in methods)))
    last: Judgement = Judgement(claim, "not run", 0, ())
    for look in claim.looks:
        if len(seeds) < look:
            break
        here = rows.filter(pl.col("seed").is_in(seeds[:look]))
        compared = tuple(claim.test(here, pair, alpha) for pair in claim.comparisons)
        if all(each.p <= alpha and each.effect.value > 0 for each in compared):
            return Judgement(claim, "held", look, compared)
        adjusted = holm([each.p for each in compared])
        if any(p <= alpha and each.effect.value < 0 for p, each in zip(adjusted, compared, strict=True)):
            return Judgement(claim, "refuted", look, compared)
        final = look == claim.looks[-1]
        nothing = final and all(each.irrelevant for each in compared)
        last = Judgement(claim, "no relevant difference" if nothing else "undecided", look, compared)
    return last


# ---- the tests ----------------------------------------------------------------------------------------------------


def paired(rows: pl.DataFrame, pair: Pair, *columns: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of both methods, seed by seed, in the same order."""
    first, second = (rows.filter(pl.col("method") == method).sort("seed").select("seed", *columns) for method in pair)
    if first["seed"].to_list() != second["seed"].to_list():
        raise ValueError(f"{pair[0]} and {pair[1]} have other seeds: they cannot be compared in pairs")
    return first, second


def _trained(rows: pl.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return rows["f1"].fill_null(0.0).fill_nan(0.0).to_numpy() >= TRAINED


def trains_more_often(rows: pl.DataFrame, pair: Pair, alpha: float) -> Compared:
    """Compare how many runs trained, by McNemar's exact test."""
    first, second = paired(rows, pair, "f1")
    a, b = _trained(first), _trained(second)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    effect = matched_pairs(only_first, only_second, len(a))
    both = a & b
    scores = mean_interval((first["f1"].to_numpy()[both] - second["f1"].to_numpy()[both]).tolist())
    irrelevant = effect.within(_SHARE) and scores.within(_SCORE)
    needed = pairs_to_decide(only_first, only_second, len(a), alpha)
    return Compared(*pair, len(a), effect, mcnemar(only_first, only_second), irrelevant, needed)


def is_steadier(rows: pl.DataFrame, pair: Pair, alpha: float) -> Compared:
    """Compare in how many pairs the accuracy varies less over the second half; a collapsed run varies most."""
    first, second = paired(rows, pair, "f1", "variation")
    a, b = (
        np.where(_trained(each), each["variation"].fill_null(math.inf).to_numpy(), math.inf) for each in (first, second)
    )
    wins, losses = int((a < b).sum()), int((b < a).sum())
    share = wilson(wins, wins + losses)
    effect = Interval(share.value - 0.5, share.low - 0.5, share.high - 0.5)
    needed = pairs_to_decide(wins, losses, len(a), alpha)
    p = binomial_two_sided(wins, wins + losses)
    return Compared(*pair, len(a), effect, p, effect.within(_SHARE), needed)


def _by_mean(test: Callable[[Sequence[float]], float], pair: Pair, differences: Sequence[float]) -> Compared:
    effect = mean_interval(differences)
    return Compared(*pair, len(differences), effect, test(differences), effect.within(_SCORE))


def has_larger_area(rows: pl.DataFrame, pair: Pair, alpha: float) -> Compared:
    """Compare the area under F1 over the logarithm of the learning rate, by changes of sign."""
    areas = []
    for method in pair:
        own = rows.filter(pl.col("method") == method)
        areas.append([area(own.filter(pl.col("seed") == seed)) for seed in sorted(set(own["seed"]))])
    return _by_mean(sign_flip, pair, (np.array(areas[0]) - np.array(areas[1])).tolist())


def area(rows: pl.DataFrame) -> float:
    """Return the mean F1 over the logarithm of the learning rate: the area under the curve, by its width."""
    ordered = rows.sort("lr")
    rates, f1 = np.log(ordered["lr"].to_numpy()), ordered["f1"].fill_null(0.0).fill_nan(0.0).to_numpy()
    return float(np.trapezoid(f1, rates) / (rates[-1] - rates[0]))


def scores_higher(rows: pl.DataFrame, pair: Pair, alpha: float) -> Compared:
    """Compare F1 by changes of sign."""
    first, second = paired(rows, pair, "f1")
    scores = [each["f1"].fill_null(0.0).fill_nan(0.0).to_numpy() for each in (first, second)]
    return _by_mean(sign_flip, pair, (scores[0] - scores[1]).tolist())


def has_smaller_gap(rows: pl.DataFrame, pair: Pair, alpha: float) -> Compared:
    """Compare fast minus slow F1 of pairs in which both trained, by Wilcoxon's test."""
    first, second = paired(rows, pair, "f1", "f1_slow", "f1_fast")
    both = _trained(first) & _trained(second)
    gaps = [(each["f1_fast"].to_numpy() - each["f1_slow"].to_numpy())[both] for each in (first, second)]
    return _by_mean(wilcoxon, pair, (gaps[1] - gaps[0]).tolist())


def has_more_even_influence(rows: pl.DataFrame, pair: Pair, alpha: float) -> Compared:
    """Compare how far the relative influence of slow samples is from 1, by Wilcoxon's test."""
    first, second = paired(rows, pair, "relative_influence")
    away = [np.abs(each["relative_influence"].to_numpy() - 1.0) for each in (first, second)]
    return _by_mean(wilcoxon, pair, (away[1] - away[0]).tolist())


# ---- the claims -----------------------------------------------------------------------------------------------------


def _against(method: str, others: Sequence[str]) -> tuple[Pair, ...]:
    return tuple((method, other) for other in others)


_PAIRS, _SEEDS = (20, 40, 80, 120), (20, 40, 60)
_ONE = (("ordered-momentum", "momentum"),)
_TWO = (("ordered-mu2", "mu2"),)
_THREE, _FOUR = _against("ordered-momentum", SGD), _against("ordered-mu2", SGD)
_FIVE = _against("ordered-mu2", [method for method in PAPER if method != "ordered-mu2"])
_AREAS = (*_ONE, *_TWO)
_BALANCED = ("balanced-catch-up", "balanced-momentum")

CLAIMS: tuple[Claim, ...] = (
    Claim(1, "ordered momentum is better than momentum (MNIST)", _ONE, trains_more_often, _PAIRS),
    Claim(2, "ordered mu2 is better than mu2 (MNIST)", _TWO, trains_more_often, _PAIRS),
    Claim(3, "ordered momentum is better than async SGD, delay-adaptive and delay-filtered SGD", _THREE,
          trains_more_often, _PAIRS),
    Claim(4, "ordered mu2 is better than those three", _FOUR, trains_more_often, _PAIRS),
    Claim(5, "ordered mu2 is the strongest of all seven", _FIVE, trains_more_often, _PAIRS),
    Claim(6, "ordered methods have steadier accuracy than their unordered twins and the baselines",
          (*_ONE, *_THREE, *_TWO, *_FOUR), is_steadier, _PAIRS),
    Claim(7, "mu2 is notably stable without ordering", (("mu2", "momentum"),), trains_more_often, _PAIRS),
    Claim(8, "ordered momentum methods are less sensitive to the learning rate than their unordered twins", _AREAS,
          has_larger_area, _SEEDS, study="curves"),
    Claim(9, "they are less sensitive than the SGD baselines", (*_THREE, *_FOUR), has_larger_area, _SEEDS,
          study="curves"),
    Claim(10, "the trends are the same on CIFAR-10 (claims 1 to 5)",
          tuple(dict.fromkeys((*_ONE, *_TWO, *_THREE, *_FOUR, *_FIVE))), scores_higher, (20,), study="cifar10"),
    Claim(11, "slow classes suffer less under ordering than under methods that shrink or drop late gradients",
          tuple((a, b) for a in ("ordered-momentum", "ordered-mu2") for b in ("delay-adaptive", "delay-filtered")),
          has_smaller_gap, _PAIRS),
    Claim(13, "the balanced rules are stable over more learning rates than ordering",
          tuple((rule, "ordered-momentum") for rule in _BALANCED), has_larger_area, _SEEDS, _OUR_LEVEL, "curves",
          "ours"),
    Claim(14, "the balanced rules are fairer to slow samples than ordering and than one common clip",
          tuple((rule, other) for rule in _BALANCED for other in ("ordered-momentum", "clipped-catch-up")),
          has_more_even_influence, _PAIRS, _OUR_LEVEL, whose="ours"),
)  # fmt: skip
"""Claim 12 is computed from the delay model and needs no runs: see `latecomer.paper.claims`."""
