"""The measures of the research, on rows and scores made by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from latecomer.research import Score, TwoCentres, applied_influence, front, measure, stability


def row(method: str, lr: float, seed: int, f1: float | None, **more: Any) -> dict[str, Any]:
    return {"method": method, "lr": lr, "seed": seed, "f1": f1, **more}


def test_the_best_is_that_of_all_candidates_and_what_diverged_is_never_near_it() -> None:
    rows = [
        row("momentum", 0.01, 0, 0.98, beta=0.1),
        row("momentum", 0.1, 0, 0.99, beta=0.1, diverged_at=7),
        row("momentum", 0.2, 0, None, beta=0.1),
        row("catch-up", 0.01, 0, 0.90, beta=0.1),
        row("catch-up", 0.1, 0, 0.94, beta=0.1),
    ]
    found = stability(rows)
    assert (found["momentum beta=0.1"].good, found["momentum beta=0.1"].runs) == (1, 3)
    assert (found["catch-up beta=0.1"].share, found["catch-up beta=0.1"].best) == (0.5, 0.1)
    assert stability(rows, best=0.94)["catch-up beta=0.1"].share == 1.0


def test_a_single_lucky_run_is_not_the_best() -> None:
    rows = [row("async-sgd", 0.1, seed, f1) for seed, f1 in enumerate((1.0, 0.1))]
    rows += [row("async-sgd", 0.01, seed, 0.9) for seed in range(2)]
    assert stability(rows)["async-sgd"].share == 0.75


@pytest.mark.parametrize(("rows", "message"), [([], "no rows"), ([row("async-sgd", 0.1, 0, None)], "No learning rate")])
def test_nothing_to_compare(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stability(rows)


def test_equals_share_the_front_and_nan_is_never_ahead() -> None:
    scores = [Score("a", 0.5, 1.0), Score("b", 0.5, 1.0), Score("c", 0.5, math.nan), Score("d", 0.6, math.nan)]
    assert [score.name for score in front(scores)] == ["d", "a", "b"]


def test_bad_input_of_the_measures() -> None:
    with pytest.raises(ValueError, match="one of each an arrival"):
        applied_influence([1.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="Unknown problem 'nowhere'"):
        measure("nowhere", "momentum")


def test_a_run_that_diverges_is_infinitely_unfair() -> None:
    found = measure("near", "async-sgd", lr=100.0, steps=600)
    assert found.excess == math.inf


def test_heavy_tails_are_the_slow_groups_alone() -> None:
    """The fast group has the plain problem's noise to the bit; the slow one now and then a far larger one."""
    plain, tailed = TwoCentres(), TwoCentres(tail=1.5)
    largest = [0.0, 0.0]
    for sample in range(300):
        for group, found in enumerate((plain.batch(sample, 0)[1], tailed.batch(sample, 0)[1])):
            largest[group] = max(largest[group], float(found.abs().max()))
    assert largest[0] == largest[1]
    assert max(float(tailed.batch(sample, 1)[1].abs().max()) for sample in range(300)) > 4 * largest[0]
