"""The study of the method without a learning rate: its verdicts follow from the committed runs."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from latecomer.experiments.pieces import Pieces
from studies.rate_free.judging import verdicts
from studies.rate_free.plan import METHODS, PROBLEMS, RATES, Goal, plan

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "rate-free"


def test_the_committed_tables_follow_from_the_committed_runs() -> None:
    minimum = json.loads((RESULTS / "logistic-minimum.json").read_text())["minimum"]
    found = verdicts(Pieces(RESULTS / "runs"), {"logistic": minimum})
    for name, table in zip(("verdicts", "methods", "rates"), found, strict=True):
        committed = pl.read_csv(RESULTS / f"{name}.csv", schema=table.schema)
        assert_frame_equal(committed, table)


def test_the_plan_is_the_one_on_the_page() -> None:
    assert {name: setting.steps for name, setting in PROBLEMS.items()} == {
        "quadratic": 3750, "logistic": 3750, "digits": 1000, "text": 1500, "mnist": 3750, "cifar10": 500,
    }  # fmt: skip
    assert len(METHODS) == 14
    assert {len(rates) for rates in RATES.values()} == {7}
    assert {seed for setting in PROBLEMS.values() for seed in setting.seeds} == {2000, 2001, 2002}
    with pytest.raises(ValueError, match="Unknown problem 'imagenet'"):
        plan(("imagenet",))


@pytest.mark.parametrize(
    ("goal", "near", "far"),
    [
        (Goal("score", 0.02, "f1", 0.5), 0.881, 0.879),
        (Goal("loss", 0.02, "loss", 5.5), 0.917, 0.919),
        (Goal("excess", 2.0, "loss", 61.0), 1.79, 1.81),
    ],
)
def test_goals(goal: Goal, near: float, far: float) -> None:
    """Relative to a best value of 0.9; what is not a number is a collapse."""
    assert goal.within(near, 0.9)
    assert not goal.within(far, 0.9)
    assert goal.is_collapse(float("nan"))
    assert not goal.is_collapse(goal.collapsed)
