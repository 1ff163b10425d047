"""Claims are judged as the plan says, on rows made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from latecomer.paper import evidence as e

BY_NUMBER = {claim.number: claim for claim in e.CLAIMS}


def runs(shares: dict[str, float], seeds: int, seed: int = 0, spread: float = 0.002) -> pl.DataFrame:
    """Runs that train with a given probability and then score about 0.95."""
    draws, rows = np.random.default_rng(seed), []
    for method, share in shares.items():
        for each in range(1000, 1000 + seeds):
            trained = draws.random() < share
            f1 = 0.95 + draws.normal(0, spread) if trained else 0.1
            slow = {"f1": f1, "f1_fast": f1 + 0.01, "f1_slow": f1 - 0.05, "variation": abs(draws.normal(0.02, 0.005))}
            rows.append({"method": method, "seed": each, **slow})
    return pl.DataFrame(rows)


def test_twelve_claims_and_ours_with_their_levels() -> None:
    assert [c.number for c in e.CLAIMS] == [*range(1, 12), 13, 14]  # the twelfth is computed
    assert sum(c.level for c in e.CLAIMS if c.whose == "paper") == pytest.approx(0.05)
    assert BY_NUMBER[1].level / 4 == pytest.approx(0.001136, abs=1e-6)
    assert BY_NUMBER[8].level / 3 == pytest.approx(0.001515, abs=1e-6)
    methods = {m for c in e.CLAIMS for pair in c.comparisons for m in pair}
    assert methods <= {*e.PAPER, *e.OURS, "clipped-catch-up"}
    assert len(BY_NUMBER[5].comparisons) == 6
    assert len(BY_NUMBER[10].comparisons) == 10


@pytest.mark.parametrize(
    ("ordered", "plain", "verdict"),
    [(0.98, 0.3, "held"), (0.3, 0.98, "refuted"), (0.99, 0.99, "no relevant difference"), (0.75, 0.6, "undecided")],
)
def test_a_claim_about_training(ordered: float, plain: float, verdict: str) -> None:
    found = e.judge(BY_NUMBER[1], runs({"ordered-momentum": ordered, "momentum": plain}, 120))
    assert found.verdict == verdict
    if verdict == "undecided":
        assert found.needed is not None
        assert found.needed[0] > 120
    if verdict in ("held", "refuted"):
        assert found.pairs == 20  # it stops at the look that decides it


def test_a_difference_in_score_that_matters_is_not_called_irrelevant() -> None:
    rows = runs({"ordered-momentum": 1.0, "momentum": 1.0}, 120)
    lower = pl.when(pl.col("method") == "momentum").then(pl.col("f1") - 0.03).otherwise(pl.col("f1"))
    assert e.judge(BY_NUMBER[1], rows.with_columns(lower.alias("f1"))).verdict == "undecided"


def test_all_comparisons_must_hold_and_one_is_enough_to_refute() -> None:
    shares = {"ordered-momentum": 0.95, "async-sgd": 0.2, "delay-adaptive": 0.9, "delay-filtered": 0.2}
    assert e.judge(BY_NUMBER[3], runs(shares, 120)).verdict == "undecided"
    assert e.judge(BY_NUMBER[3], runs({**shares, "delay-adaptive": 0.3}, 120)).verdict == "held"
    weak = {"ordered-momentum": 0.4, "async-sgd": 0.05, "delay-adaptive": 0.98, "delay-filtered": 0.05}
    assert e.judge(BY_NUMBER[3], runs(weak, 120)).verdict == "refuted"


def test_too_few_runs_are_not_judged_and_a_look_uses_its_seeds_only() -> None:
    rows = runs({"ordered-momentum": 1.0, "momentum": 0.0}, 19)
    assert e.judge(BY_NUMBER[1], rows).verdict == "not run"
    rows = runs({"ordered-momentum": 1.0, "momentum": 0.0}, 39)
    assert e.judge(BY_NUMBER[1], rows).pairs == 20


def test_a_collapsed_run_is_the_least_steady() -> None:
    methods = {m: 1.0 for pair in BY_NUMBER[6].comparisons for m in pair}
    rows = runs(methods, 20)
    calm = pl.when(pl.col("method").str.starts_with("ordered")).then(0.001).otherwise(0.05)
    rows = rows.with_columns(calm.alias("variation"))
    assert e.judge(BY_NUMBER[6], rows).verdict == "held"
    collapsed = pl.when(pl.col("method") == "ordered-mu2").then(0.05).otherwise(pl.col("f1"))
    assert e.judge(BY_NUMBER[6], rows.with_columns(collapsed.alias("f1"))).verdict == "refuted"


def curves(levels: dict[str, Any], seeds: int) -> pl.DataFrame:
    draws, rows = np.random.default_rng(1), []
    for method, level in levels.items():
        for seed in range(1000, 1000 + seeds):
            for lr in (0.001, 0.01, 0.1):
                rows.append({"method": method, "seed": seed, "lr": lr, "f1": level + draws.normal(0, 0.02)})
    return pl.DataFrame(rows)


def test_areas_are_means_over_log_rates_and_compared_in_pairs() -> None:
    flat = pl.DataFrame({"lr": [0.001, 0.01, 0.1], "f1": [0.5, 0.5, 0.5]})
    assert e.area(flat) == pytest.approx(0.5)
    assert e.area(flat.with_columns(pl.Series("f1", [0.0, 1.0, 0.0]))) == pytest.approx(0.5)
    better = {"ordered-momentum": 0.8, "momentum": 0.6, "ordered-mu2": 0.7, "mu2": 0.5}
    assert e.judge(BY_NUMBER[8], curves(better, 60)).verdict == "held"
    same = dict.fromkeys(better, 0.7)
    assert e.judge(BY_NUMBER[8], curves(same, 60)).verdict == "no relevant difference"


def test_gaps_are_those_of_pairs_in_which_both_trained() -> None:
    methods = {m: 1.0 for pair in BY_NUMBER[11].comparisons for m in pair}
    rows = runs(methods, 40)
    worse = (
        pl.when(pl.col("method").str.starts_with("delay")).then(pl.col("f1_slow") - 0.1).otherwise(pl.col("f1_slow"))
    )
    noise = np.random.default_rng(2).normal(0, 0.001, rows.height)
    rows = rows.with_columns((worse + noise).alias("f1_slow"))
    found = e.judge(BY_NUMBER[11], rows)
    assert found.verdict == "held"
    assert found.effect.value == pytest.approx(0.1, abs=0.01)
    none = rows.with_columns(
        pl.when(pl.col("method") == "delay-filtered").then(0.1).otherwise(pl.col("f1")).alias("f1")
    )
    lost = e.judge(BY_NUMBER[11], none)
    assert {c.pairs for c in lost.compared if c.worse == "delay-filtered"} == {0}
    assert not np.isnan(lost.effect.value)  # that of the comparisons that have pairs
    few = rows.with_columns(pl.when(pl.col("seed") >= 1006).then(0.1).otherwise(pl.col("f1")).alias("f1"))
    told = e.judge_at(BY_NUMBER[11], few, 20)
    assert {c.pairs for c in told.compared} == {6}
    assert (told.needed, told.least) == (None, 37)  # eleven that can be used reach 0.00114: 2^-10, and 2^-9 does not


def test_ranks_and_mean_that_disagree_decide_nothing() -> None:
    """Of 40 pairs 37 favour the claim by a little and three are against it by so much that the mean is too."""
    differences = [0.001 * (1 + i / 100) for i in range(37)] + [-0.2] * 3
    for rows, verdict in ((differences, 0), (differences[:37], 1), ([-d for d in differences[:37]], -1)):
        found = e._by_mean(e.wilcoxon, ("a", "b"), rows, e.Levels(0.00114, 0.00114), len(rows))
        assert found.p < 0.00114
        assert found.favours == verdict
    assert e._by_mean(e.sign_flip, ("a", "b"), differences, e.Levels(0.1, 0.1), 40).favours == -1  # about the mean


def test_no_relevant_difference_is_counted_from_the_last_look_on() -> None:
    found = e.judge_at(BY_NUMBER[1], runs({"ordered-momentum": 1.0, "momentum": 1.0}, 20), 20)
    assert (found.verdict, found.needed) == ("undecided", (120, "no relevant difference"))


def test_other_seeds_are_not_compared() -> None:
    rows = runs({"ordered-momentum": 1.0, "momentum": 1.0}, 3)
    with pytest.raises(ValueError, match="other seeds"):
        e.paired(
            rows.filter((pl.col("seed") > 1000) | (pl.col("method") == "momentum")), ("momentum", "ordered-momentum")
        )
