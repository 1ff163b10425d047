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
from .power import pairs_for_mean, pairs_for_mean_within, pairs_for_share_within, pairs_to_decide
from .statistics import (
    binomial_two_sided,
    holm,
    matched_pairs,
    mcnemar,
    mean_interval,
    sign_flip,
    signed_rank_sum,
    wilcoxon,
    wilson,
)

__all__ = [
    "CLAIMS", "JUDGED_SEEDS", "OURS", "PAPER", "TESTS", "TRAINED", "Claim", "Compared", "Judgement", "Levels", "judge",
    "judge_at", "shares_trained",
]  # fmt: skip

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


class Levels(NamedTuple):
    """Two-sided levels of one look: what a comparison needs to hold, and to refute a claim by Holm's first step."""

    held: float
    refuted: float

    def towards(self, effect: float) -> float:
        """Return the level for an effect of this sign."""
        return self.held if effect > 0 else self.refuted


class Compared(NamedTuple):
    """One method against another.

    Args:
        better: The method that is claimed to be better.
        worse: The other one.
        pairs: How many pairs the test used.
        effect: The difference in favour of the first, with its unadjusted 90 % interval.
        p: Two-sided.
        irrelevant: Whether the interval excludes every difference that matters.
        spread: What the power depends on: the share of pairs against the observed direction, in which only the other
            one trained (McNemar), the share of pairs that are not tied (sign test), or the standard deviation of the
            differences (means).
        favours: 1 if the test favours the first method, -1 if the second. Wilcoxon's test is about ranks: 0 if they and
            the mean point to different methods, and then it decides nothing.
        needed: How many pairs would make it significant with 90 % power, if that can be told.
        alike: How many pairs would exclude every difference that matters with 90 % power, if that can be told.
    """

    better: str
    worse: str
    pairs: int
    effect: Interval
    p: float
    irrelevant: bool
    spread: float
    favours: int
    needed: int | None = None
    alike: int | None = None


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
    test: Callable[[pl.DataFrame, Pair, Levels], Compared]
    looks: tuple[int, ...]
    level: float = _LEVEL
    study: str = "judge"
    whose: str = "paper"

    @property
    def levels(self) -> Levels:
        """The levels of each look."""
        alpha = self.level / len(self.looks)
        return Levels(alpha, alpha / len(self.comparisons))

    @property
    def methods(self) -> set[str]:
        """The methods that it compares."""
        return {method for pair in self.comparisons for method in pair}


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
        return min((each.effect for each in self.compared), key=lambda found: (math.isnan(found.value), found.value))

    @property
    def least(self) -> int | None:
        """How many pairs it takes at the least, where `needed` cannot be told: with fewer no test reaches its level.

        Tests on differences take all signs as equally likely, so n pairs that can be used give no p below 2^(1-n).
        """
        if not self.compared or self.claim.test not in _OF_DIFFERENCES:
            return None
        held, refuted = (
            [
                self.pairs * (1 - math.floor(math.log2(level))) / each.pairs if each.pairs else math.inf
                for each in self.compared
            ]
            for level in self.claim.levels
        )
        fewest = min(max(held), min(refuted))
        return max(self.pairs + 1, math.ceil(fewest)) if math.isfinite(fewest) else None

    @property
    def needed(self) -> tuple[int, str] | None:
        """How many pairs would decide it with 90 % power, if all stays as it is, and how; None if it cannot be told.

        All comparisons significant in its favour, one of them against it, or, at the last look or beyond, all of them
        without a difference that matters: the way that takes the fewest pairs.
        """
        ways: list[tuple[int, str]] = []
        against = [each.needed for each in self.compared if each.favours < 0 and each.needed is not None]
        for verdict, group, pick, least in (
            ("held", [each.needed if each.favours > 0 else None for each in self.compared], max, 0),
            ("refuted", against, min, 0),
            ("no relevant difference", [each.alike for each in self.compared], max, self.claim.looks[-1]),
        ):
            known = [n for n in group if n is not None]
            if group and len(known) == len(group):
                ways.append((max(self.pairs + 1, least, pick(known)), verdict))
        return min(ways) if ways else None


def judge(claim: Claim, rows: pl.DataFrame, trained: float = TRAINED) -> Judgement:
    """Judge a claim at each of its looks, and stop at the first that decides it.

    Args:
        claim: Which.
        rows: One row per run: ``method``, ``seed``, ``f1`` and what the test looks at.
        trained: The F1 from which on a run counts as trained.
    """
    last = Judgement(claim, "not run", 0, ())
    for look in claim.looks:
        if len(_shared_seeds(claim, rows)) < look:
            break
        last = judge_at(claim, rows, look, trained)
        if last.verdict in ("held", "refuted"):
            break
    return last


def judge_at(claim: Claim, rows: pl.DataFrame, pairs: int, trained: float = TRAINED) -> Judgement:
    """Judge a claim at one number of pairs, at the level of one look.

    Args:
        claim: Which.
        rows: As in `judge`.
        pairs: The first so many seeds are used.
        trained: As in `judge`.
    """
    levels = claim.levels
    here = rows.filter(pl.col("seed").is_in(_shared_seeds(claim, rows)[:pairs]))
    here = here.with_columns((_score() >= trained).alias("trained"))
    compared = tuple(claim.test(here, pair, levels) for pair in claim.comparisons)
    verdict = "undecided"
    adjusted = holm([each.p for each in compared])
    if all(each.p <= levels.held and each.favours > 0 for each in compared):
        verdict = "held"
    elif any(p <= levels.held and each.favours < 0 for p, each in zip(adjusted, compared, strict=True)):
        verdict = "refuted"
    elif pairs >= claim.looks[-1] and all(each.irrelevant for each in compared):
        verdict = "no relevant difference"
    return Judgement(claim, verdict, pairs, compared)


def _shared_seeds(claim: Claim, rows: pl.DataFrame) -> list[int]:
    return sorted(set.intersection(*(set(rows.filter(pl.col("method") == m)["seed"]) for m in claim.methods)))


def _score() -> pl.Expr:
    """F1, where a run that has none has zero."""
    return pl.col("f1").fill_null(0.0).fill_nan(0.0)


def shares_trained(rows: pl.DataFrame, trained: float = TRAINED) -> dict[str, Interval]:
    """Return the share of each method's runs that trained, with Wilson's 95 % interval."""
    counted = rows.group_by("method").agg((_score() >= trained).sum().alias("trained"), pl.len().alias("runs"))
    return {method: wilson(count, runs, 0.95) for method, count, runs in counted.iter_rows()}


# ---- the tests ----------------------------------------------------------------------------------------------------


def paired(rows: pl.DataFrame, pair: Pair, *columns: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of both methods, seed by seed, in the same order."""
    first, second = (rows.filter(pl.col("method") == method).sort("seed").select("seed", *columns) for method in pair)
    if first["seed"].to_list() != second["seed"].to_list():
        raise ValueError(f"{pair[0]} and {pair[1]} have other seeds: they cannot be compared in pairs")
    return first, second


def trains_more_often(rows: pl.DataFrame, pair: Pair, levels: Levels) -> Compared:
    """Compare how many runs trained, by McNemar's exact test."""
    first, second = paired(rows, pair, "f1", "trained")
    a, b = first["trained"].to_numpy(), second["trained"].to_numpy()
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    effect = matched_pairs(only_first, only_second, len(a))
    both = a & b
    scores = (first["f1"].to_numpy()[both] - second["f1"].to_numpy()[both]).tolist()
    irrelevant = effect.within(_SHARE) and mean_interval(scores, most=1.0).within(_SCORE)
    needed = pairs_to_decide(only_first, only_second, len(a), levels.towards(effect.value))
    alike = [
        pairs_for_share_within(only_first, only_second, len(a), _SHARE),
        _of_all(pairs_for_mean_within(scores, _SCORE), len(scores), len(a)),
    ]
    p, against = mcnemar(only_first, only_second), min(only_first, only_second) / len(a)
    return Compared(*pair, len(a), effect, p, irrelevant, against, _sign(effect.value), needed, _largest(alike))


def _sign(value: float) -> int:
    return int(value > 0) - int(value < 0)


def _of_all(pairs: int | None, used: int, of: int) -> int | None:
    """Return how many pairs it takes to have so many that can be used, if their share stays."""
    return None if pairs is None else math.ceil(pairs * of / used)


def _largest(several: Sequence[int | None]) -> int | None:
    known = [each for each in several if each is not None]
    return max(known) if len(known) == len(several) else None


def is_steadier(rows: pl.DataFrame, pair: Pair, levels: Levels) -> Compared:
    """Compare in how many pairs the accuracy varies less over the second half; a run that did not train varies most."""
    a, b = (
        np.where(each["trained"].to_numpy(), each["variation"].fill_null(math.inf).to_numpy(), math.inf)
        for each in paired(rows, pair, "trained", "variation")
    )
    wins, losses = int((a < b).sum()), int((b < a).sum())
    share = wilson(wins, wins + losses)
    effect = Interval(share.value - 0.5, share.low - 0.5, share.high - 0.5)
    needed = pairs_to_decide(wins, losses, len(a), levels.towards(effect.value))
    alike = pairs_for_share_within(wins, losses, len(a), _SHARE, sign=True)
    p = binomial_two_sided(wins, wins + losses)
    untied = (wins + losses) / len(a)
    return Compared(*pair, len(a), effect, p, effect.within(_SHARE), untied, _sign(effect.value), needed, alike)


def _by_mean(
    test: Callable[[Sequence[float]], float],
    pair: Pair,
    differences: Sequence[float],
    levels: Levels,
    of: int,
    most: float = math.inf,
) -> Compared:
    """Compare by a test on paired differences, of so many pairs in all; none can be larger than ``most``."""
    effect, used, ranks = mean_interval(differences, most=most), len(differences), test is wilcoxon
    favours = _sign(effect.value)
    if ranks and _sign(signed_rank_sum(differences)) != favours:
        favours = 0
    needed = pairs_for_mean(differences, levels.towards(effect.value), ranks=ranks) if favours else None
    alike = pairs_for_mean_within(differences, _SCORE)
    spread = float(np.std(differences, ddof=1)) if used > 1 else math.nan
    irrelevant = effect.within(_SCORE)
    several = (_of_all(needed, used, of), _of_all(alike, used, of))
    return Compared(*pair, used, effect, test(differences), irrelevant, spread, favours, *several)


def has_larger_area(rows: pl.DataFrame, pair: Pair, levels: Levels) -> Compared:
    """Compare the area under F1 over the logarithm of the learning rate, by changes of sign."""
    areas = []
    for method in pair:
        own = rows.filter(pl.col("method") == method)
        areas.append([area(own.filter(pl.col("seed") == seed)) for seed in sorted(set(own["seed"]))])
    return _by_mean(sign_flip, pair, (np.array(areas[0]) - np.array(areas[1])).tolist(), levels, len(areas[0]), 1.0)


def area(rows: pl.DataFrame) -> float:
    """Return the mean F1 over the logarithm of the learning rate: the area under the curve, by its width."""
    ordered = rows.sort("lr")
    rates, f1 = np.log(ordered["lr"].to_numpy()), ordered.select(_score())["f1"].to_numpy()
    return float(np.trapezoid(f1, rates) / (rates[-1] - rates[0]))


def scores_higher(rows: pl.DataFrame, pair: Pair, levels: Levels) -> Compared:
    """Compare F1 by changes of sign."""
    scores = [each.select(_score())["f1"].to_numpy() for each in paired(rows, pair, "f1")]
    return _by_mean(sign_flip, pair, (scores[0] - scores[1]).tolist(), levels, len(scores[0]), 1.0)


def has_smaller_gap(rows: pl.DataFrame, pair: Pair, levels: Levels) -> Compared:
    """Compare fast minus slow F1 of pairs in which both trained, by Wilcoxon's test."""
    first, second = paired(rows, pair, "trained", "f1_slow", "f1_fast")
    both = first["trained"].to_numpy() & second["trained"].to_numpy()
    gaps = [(each["f1_fast"].to_numpy() - each["f1_slow"].to_numpy())[both] for each in (first, second)]
    return _by_mean(wilcoxon, pair, (gaps[1] - gaps[0]).tolist(), levels, len(both), 2.0)


def has_more_even_influence(rows: pl.DataFrame, pair: Pair, levels: Levels) -> Compared:
    """Compare how far the relative influence of slow samples is from 1, by Wilcoxon's test."""
    first, second = paired(rows, pair, "relative_influence")
    away = [np.abs(each["relative_influence"].to_numpy() - 1.0) for each in (first, second)]
    return _by_mean(wilcoxon, pair, (away[1] - away[0]).tolist(), levels, len(away[0]))


TESTS: dict[Callable[..., Compared], tuple[str, str]] = {
    trains_more_often: ("exact McNemar test", "share of runs that trained"),
    is_steadier: ("sign test", "share of pairs that are steadier, minus a half"),
    has_larger_area: ("sign-flip permutation test", "mean F1 over log learning rate"),
    scores_higher: ("sign-flip permutation test", "F1"),
    has_smaller_gap: ("Wilcoxon test", "fast minus slow F1, where both trained"),
    has_more_even_influence: ("Wilcoxon test", "distance of the relative influence from 1"),
}
"""What each test is called, and the unit of its effect."""


_OF_DIFFERENCES = (has_larger_area, scores_higher, has_smaller_gap, has_more_even_influence)


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
    Claim(9, "ordered momentum methods are less sensitive to it than the SGD baselines", (*_THREE, *_FOUR),
          has_larger_area, _SEEDS, study="curves"),
    Claim(10, "the trends are the same on CIFAR-10 (claims 1 to 5)",
          tuple(dict.fromkeys((*_ONE, *_TWO, *_THREE, *_FOUR, *_FIVE))), scores_higher, (20,), study="cifar10"),
    Claim(11, "slow classes suffer less under ordering than under methods that shrink or drop late gradients",
          tuple((a, b) for a in ("ordered-momentum", "ordered-mu2") for b in ("delay-adaptive", "delay-filtered")),
          has_smaller_gap, _PAIRS),
    Claim(13, "the balanced rules are stable over more learning rates than ordering (ordered momentum, ordered mu2)",
          tuple((rule, other) for rule in _BALANCED for other in ("ordered-momentum", "ordered-mu2")),
          has_larger_area, _SEEDS, _OUR_LEVEL, "curves", "ours"),
    Claim(14, "the balanced rules are fairer to slow samples than ordered momentum and than one common clip",
          tuple((rule, other) for rule in _BALANCED for other in ("ordered-momentum", "clipped-catch-up")),
          has_more_even_influence, _PAIRS, _OUR_LEVEL, whose="ours"),
)  # fmt: skip
"""Claim 12 is computed from the delay model and needs no runs: see `latecomer.paper.verdicts`."""
