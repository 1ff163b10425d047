"""What the finished runs say: a verdict per claim, every comparison, and what each test could have seen.

Everything is computed from runs that were made, in a store or in committed pieces. What was not run says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from ..delays import DataDependent
from ..experiments.pieces import FinishedRuns
from .evidence import (
    OURS,
    PAPER,
    TESTS,
    TRAINED,
    Claim,
    Compared,
    Judgement,
    is_steadier,
    judge,
    judge_at,
    paired,
    trains_more_often,
)
from .finetuning import FineTuning, fine_tuned_rows, settled
from .plan import COMMON_CLIP, Choice, chosen, curve_rows, figure_sweep, final_f1, judged_rows
from .power import detectable_difference, detectable_mean, detectable_share
from .readings import reading_rows
from .scale import PLAN, Scale
from .stages import Progress, progress
from .statistics import mean_interval, wilcoxon
from .weights import GIVEN, Weights

__all__ = [
    "THRESHOLDS", "Findings", "collect", "comparison_table", "literal_slow_share", "power_table", "threshold_table",
    "verdict_table",
]  # fmt: skip

THRESHOLDS = (0.5, TRAINED, 0.95)
_RUNS = {"judge": ("mnist", "choose judge"), "curves": ("mnist", "choose curves"), "cifar10": ("cifar10", "cifar10")}
_DELAY_MODEL = "the delay model delays class 9 only and preserves the label distribution"
_SETTINGS = ((7, 0.1), (5, 0.5))
"""Workers and declared slow share of the paper's MNIST and CIFAR-10 experiments."""
_SHARE_MARGIN = 0.005
_ASSUMED = 0.05
"""Share of pairs in which only the lesser of two methods trained, where no run says it."""


@dataclass(frozen=True)
class Findings:
    """What was found; None, or nothing, for what was not run.

    Args:
        choice: Each method's configuration on MNIST.
        judged: One row per judging run on MNIST.
        curves: One row per run over seven learning rates.
        figure: One row per run over nineteen learning rates.
        fine: What the validation split decided on CIFAR-10.
        tuned: One row per judging run on CIFAR-10.
        readings: Rows by reading.
        scale: How large the plan was.
        progress: How far each stage is.
    """

    choice: Choice | None
    judged: pl.DataFrame | None
    curves: pl.DataFrame | None
    figure: pl.DataFrame | None
    fine: FineTuning | None
    tuned: pl.DataFrame | None
    readings: dict[str, pl.DataFrame]
    scale: Scale = PLAN
    progress: Sequence[Progress] = field(default=())

    def rows(self, claim: Claim) -> pl.DataFrame | None:
        """Return the rows that a claim is judged on."""
        return {"judge": self.judged, "curves": self.curves, "cifar10": self.tuned}[claim.study]

    def judgement(self, claim: Claim, trained: float = TRAINED) -> Judgement:
        """Judge a claim."""
        rows = self.rows(claim)
        return Judgement(claim, "not run", 0, ()) if rows is None else judge(claim, rows, trained)

    def worded(self, claim: Claim) -> str:
        """Return the claim, with what its runs differ in from the paper's."""
        width = f"width {self.scale.curve_width or 1:g}"
        if self.fine is not None and self.fine.weights.task == GIVEN:
            start = "the given weights"
        else:
            start = f"a stand-in for ImageNet weights, width {self.scale.tuned_width:g}"
        return claim.text + {"judge": "", "curves": f" (MNIST, {width})", "cifar10": f" (from {start})"}[claim.study]

    @property
    def missing(self) -> list[str]:
        """The stages that are not complete."""
        return [each.stage for each in self.progress if not each.done]


def collect(runs: FinishedRuns, weights: Sequence[Weights] = (), scale: Scale = PLAN) -> Findings:
    """Gather what finished runs say about every stage."""
    choice, fine = chosen(runs, scale), settled(runs, weights, scale)
    tuned = None if fine is None else fine_tuned_rows(runs, fine, scale)
    done = progress(runs, weights, scale)
    if choice is None:
        return Findings(None, None, None, None, fine, tuned, {}, scale, done)
    judged = _at_looks("judge", judged_rows(runs, choice, scale), scale)
    curves = _at_looks("curves", curve_rows(runs, choice, scale), scale)
    figure = final_f1(figure_sweep(choice), runs) if "figure" in scale.stages else None
    readings = reading_rows(runs, choice) if "readings" in scale.stages else {}
    return Findings(choice, judged, curves, figure, fine, tuned, readings, scale, done)


def _at_looks(study: str, rows: pl.DataFrame | None, scale: Scale) -> pl.DataFrame | None:
    """Return the rows of looks that are complete: nothing is shown of a look while its runs are being made.

    None until the first look is complete for all claims of the study.
    """
    if rows is None:
        return None
    claims = [claim for claim in scale.claims if claim.study == study]
    looks = claims[0].looks
    seeds = {method: set(own) for method, own in rows.group_by("method").agg(pl.col("seed")).iter_rows()}
    complete = {
        method: max((look for look in looks if own.issuperset(scale.seeds[:look])), default=0)
        for method, own in seeds.items()
    }
    if any(not complete.get(method) for claim in claims for method in claim.methods):
        return None
    kept = [(pl.col("method") == method) & pl.col("seed").is_in(scale.seeds[:n]) for method, n in complete.items()]
    return rows.filter(pl.any_horizontal(kept))


# ---- claims ---------------------------------------------------------------------------------------------------------


def _rounded(value: float | None, digits: int = 4) -> float | None:
    """Return a number for a table; None where there is none."""
    return None if value is None or not math.isfinite(value) else round(value, digits) + 0.0  # no minus zero


def command_of(study: str, scale: Scale = PLAN) -> str:
    """Return the command that makes the runs of a study."""
    name, stages = _RUNS[study]
    return f"latecomer reproduce {name} --size {scale.size} --stages {stages}"


def _worded(found: Judgement, decides: bool = True) -> str:
    if found.compared and not decides:
        return "none: a miniature decides nothing"
    if found.verdict != "undecided":
        return found.verdict
    used = sorted({each.pairs for each in found.compared})
    few = " to ".join(map(str, dict.fromkeys((used[0], used[-1]))))
    some = f"; {few} of the pairs can be used" if used[0] < found.pairs else ""
    if len(found.compared) > 1:
        level = found.claim.levels.held
        clear = sum(each.p <= level and each.favours > 0 for each in found.compared)
        some += f"; {clear} of {len(found.compared)} comparisons are significant in favour"
    if found.needed is None:
        least = found.least
        told = "how many pairs would decide cannot be told" if least is None else f"at least {least:,} pairs are needed"
        return f"undecided: {told}{some}"
    (needed, verdict), last = found.needed, found.claim.looks[-1]
    beyond = f", and the plan ends at {last}" if needed > last else ""
    return f"undecided: about {needed:,} pairs would decide ({verdict}){beyond}{some}"


def verdict_table(found: Findings) -> pl.DataFrame:
    """Return one row per claim: the paper's twelve, then ours. The effect is that of the comparison least in favour."""
    rows = []
    for claim in found.scale.claims:
        judged = found.judgement(claim)
        effect = judged.effect
        numbers = (_rounded(effect.value), _rounded(effect.low), _rounded(effect.high), judged.pairs)
        rows.append((claim.number, found.worded(claim), claim.whose, *numbers, _worded(judged, found.scale.decides),
                     command_of(claim.study, found.scale)))  # fmt: skip
    rows.append(_delay_model(found.scale))
    columns = ["number", "claim", "whose", "effect", "low", "high", "pairs", "verdict", "command"]
    return pl.DataFrame(sorted(rows), schema=columns, orient="row", infer_schema_length=None)


def literal_slow_share(workers: int, share: float) -> float:
    """Return the share of slow arrivals that the paper's rule makes, exactly.

    Worker i makes a share p_i of the arrivals, and its wait exceeds w with probability (1 - p_i)^w.

    Examples:
        >>> round(literal_slow_share(7, 0.1), 4), round(literal_slow_share(5, 0.5), 4)
        (0.1084, 0.5767)
    """
    p = DataDependent(workers=workers, slow_share=share).probabilities
    longest = np.floor(np.log(share) / np.log1p(-p) * (1 + 1e-12))  # waits up to this are fast
    return float((p * (1.0 - p) ** longest).sum())


def _delay_model(scale: Scale) -> tuple[Any, ...]:
    """Return the row of claim 12: the largest deviation of the computed share from the declared one."""
    away = [literal_slow_share(workers, share) - share for workers, share in _SETTINGS]
    largest = max(away, key=abs)
    verdict = "held" if all(abs(each) <= _SHARE_MARGIN for each in away) else "refuted"
    value, command = _rounded(largest), f"latecomer reproduce mnist --size {scale.size} --from-store"
    return (12, _DELAY_MODEL, "paper", value, value, value, 0, verdict, command)


# ---- comparisons ----------------------------------------------------------------------------------------------------


def _p(value: float) -> float:
    return float(f"{value:.3g}")


def _where_both_trained(rows: pl.DataFrame, pair: tuple[str, str]) -> tuple[float | None, float | None, int]:
    """Return the mean difference of F1 where both trained, Wilcoxon's p of it, and the number of pairs."""
    first, second = paired(rows, pair, "f1")
    a, b = (each["f1"].fill_null(0.0).fill_nan(0.0).to_numpy() for each in (first, second))
    both = (a >= TRAINED) & (b >= TRAINED)
    differences = (a - b)[both].tolist()
    if not differences:
        return None, None, 0
    return _rounded(mean_interval(differences).value), _p(wilcoxon(differences)), len(differences)


def _ours_against(rows: pl.DataFrame) -> Iterator[Judgement]:
    """Yield each of ours against each of the paper's and the common clip, on all seeds that both have, to describe."""
    for ours in (method for method in OURS if method in set(rows["method"])):
        for other in (method for method in (*PAPER, COMMON_CLIP) if method in set(rows["method"])):
            pair = Claim(0, "", ((ours, other),), trains_more_often, (1,), whose="ours")
            seeds = [set(rows.filter(pl.col("method") == method)["seed"]) for method in (ours, other)]
            yield judge_at(pair, rows, len(seeds[0] & seeds[1]))


def comparison_table(found: Findings) -> pl.DataFrame:
    """Return every comparison of every claim at the look that judged it, then ours against the paper's."""
    judgements = [found.judgement(claim) for claim in found.scale.claims]
    if found.judged is not None:
        judgements += _ours_against(found.judged)
    table = []
    for judged in judgements:
        test, unit = TESTS[judged.claim.test]
        for each in judged.compared:
            row: dict[str, Any] = {
                "number": judged.claim.number or None, "whose": judged.claim.whose, "better": each.better,
                "worse": each.worse, "test": test, "unit": unit, "effect": _rounded(each.effect.value),
                "low": _rounded(each.effect.low), "high": _rounded(each.effect.high), "p": _p(each.p),
                "level": _p(judged.claim.levels.held) if judged.claim.number else None, "pairs": each.pairs,
                "look": judged.pairs, "needed": each.needed if judged.claim.number else None,
            }  # fmt: skip
            if judged.claim.test is trains_more_often and found.judged is not None:
                seeds = sorted(set(found.judged["seed"]))[: judged.pairs]
                here = found.judged.filter(pl.col("seed").is_in(seeds))
                names = ("f1_both_trained", "wilcoxon_both_trained", "pairs_both_trained")
                row |= dict(
                    zip(names, _where_both_trained(_shared(here, each), (each.better, each.worse)), strict=True)
                )
            table.append(row)
    schema: dict[str, Any] = {
        "number": pl.Int64, "whose": pl.String, "better": pl.String, "worse": pl.String, "test": pl.String,
        "unit": pl.String, "effect": pl.Float64, "low": pl.Float64, "high": pl.Float64, "p": pl.Float64,
        "level": pl.Float64, "pairs": pl.Int64, "look": pl.Int64, "needed": pl.Int64, "f1_both_trained": pl.Float64,
        "wilcoxon_both_trained": pl.Float64, "pairs_both_trained": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame([{**dict.fromkeys(schema), **row} for row in table], schema=schema)


def _shared(rows: pl.DataFrame, each: Compared) -> pl.DataFrame:
    """Return the rows of two methods on the seeds that both have."""
    own = rows.filter(pl.col("method").is_in([each.better, each.worse]))
    return own.filter(pl.len().over("seed") == 2)


# ---- power and thresholds -------------------------------------------------------------------------------------------


def power_table(found: Findings) -> pl.DataFrame:
    """Return the smallest effect that each comparison would have shown with 90 % power, at each look.

    What the power depends on is measured where the claim was run, and assumed elsewhere.
    """
    table = []
    for claim in found.scale.claims:
        judged = found.judgement(claim)
        measured = {(each.better, each.worse): each for each in judged.compared}
        for pair in claim.comparisons:
            for look in claim.looks:
                effect, assumes = _detectable(claim, measured.get(pair), judged.pairs, look)
                table.append((claim.number, *pair, look, _p(claim.levels.held), _rounded(effect), TESTS[claim.test][1],
                              assumes))  # fmt: skip
    columns = ["number", "better", "worse", "pairs", "level", "effect", "unit", "assumes"]
    return pl.DataFrame(table, schema=columns, orient="row", infer_schema_length=None)


def _detectable(claim: Claim, measured: Compared | None, judged: int, look: int) -> tuple[float | None, str]:
    """Return the smallest effect that would have been shown, and what that assumes."""
    level = claim.levels.held
    if claim.test is trains_more_often:
        other = _ASSUMED if measured is None else round(measured.spread, 3)
        source = "assumed" if measured is None else "measured"
        return detectable_difference(
            look, other, level
        ), f"only the lesser one trained in {other:.3f} of pairs ({source})"
    if claim.test is is_steadier:
        untied = 1.0 if measured is None else measured.spread
        source = "assumed" if measured is None else "measured"
        return detectable_share(look, level, round(untied, 3)), f"{untied:.2f} of pairs are not tied ({source})"
    if measured is None:
        return None, "not run: the spread of the differences is not known"
    used = look * measured.pairs / judged
    words = f"standard deviation {measured.spread:.4f}, {measured.pairs / judged:.2f} of pairs can be used (measured)"
    ranks = TESTS[claim.test][0] == "Wilcoxon test"
    return detectable_mean(measured.spread, used, level, ranks=ranks), words


_BY_THRESHOLD: tuple[Callable[..., Compared], ...] = tuple(
    test for test, (_, unit) in TESTS.items() if "trained" in unit or test is is_steadier
)


def _threshold_verdict(judged: Judgement, found: Findings) -> str:
    return judged.verdict if found.scale.decides else _worded(judged, decides=False)


def threshold_table(found: Findings) -> pl.DataFrame:
    """Return the verdicts of the claims about *trained* at three thresholds, on the runs that are there."""
    table = []
    for claim in (claim for claim in found.scale.claims if claim.test in _BY_THRESHOLD):
        for trained in THRESHOLDS:
            judged = found.judgement(claim, trained)
            numbers = [_rounded(value) for value in (judged.effect.value, judged.effect.low, judged.effect.high)]
            table.append(
                (claim.number, found.worded(claim), trained, *numbers, judged.pairs, _threshold_verdict(judged, found))
            )
    columns = ["number", "claim", "threshold", "effect", "low", "high", "pairs", "verdict"]
    return pl.DataFrame(table, schema=columns, orient="row", infer_schema_length=None)
