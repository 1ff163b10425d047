"""The study of the method without a learning rate: its verdicts follow from the committed runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from latecomer.experiments import RunSpec
from latecomer.experiments.pieces import Pieces
from studies.rate_free.judging import verdicts
from studies.rate_free.limits import LIMITS, SEEDS, USUAL, limit_table
from studies.rate_free.parts import SETTINGS as PARTS_SETTINGS
from studies.rate_free.parts import VARIANTS, end_of, parts
from studies.rate_free.plan import METHODS, PROBLEMS, RATES, Goal, plan

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "rate-free"


def test_the_committed_tables_follow_from_the_committed_runs() -> None:
    minimum = json.loads((RESULTS / "logistic-minimum.json").read_text())["minimum"]
    runs = Pieces(RESULTS / "runs")
    found = (*verdicts(runs, {"logistic": minimum}), limit_table(runs))
    if found[0].is_empty():  # a plan whose runs have not been made
        assert not (RESULTS / "verdicts.csv").exists()
        return
    for name, table in zip(("verdicts", "methods", "rates", "limits"), found, strict=True):
        committed = pl.read_csv(RESULTS / f"{name}.csv", schema=table.schema)
        assert_frame_equal(committed, table)


def test_the_plan_is_the_one_on_the_page() -> None:
    assert {name: setting.steps for name, setting in PROBLEMS.items()} == {
        "quadratic": 3750, "logistic": 3750, "digits": 1000, "text": 1500, "mnist": 3750, "cifar10": 500,
    }  # fmt: skip
    assert len(METHODS) == 14
    assert {len(rates) for rates in RATES.values()} == {7}
    assert {seed for setting in PROBLEMS.values() for seed in setting.seeds} == set(range(2012, 2021))
    assert not {seed for setting in PROBLEMS.values() for seed in setting.seeds} & set(SEEDS)
    with pytest.raises(ValueError, match="Unknown problem 'imagenet'"):
        plan(("imagenet",))


class Ends:
    """Runs that end with what a function of the spec says."""

    def __init__(self, end: Callable[[RunSpec], float | None]) -> None:
        self._runs = {
            spec.key: {"final": {limit.metric: end(spec)}, "outcome": {"relative_influence": 1.0 - spec.seed / 1e4}}
            for limit in LIMITS
            for spec in limit.sweep().runs()
        }

    def __contains__(self, key: object) -> bool:
        return key in self._runs

    def record(self, key: str) -> dict[str, Any]:
        return self._runs[key]


def test_a_learning_rate_is_carried_over_from_the_usual_setting() -> None:
    """The best one of the usual setting, which is another one with 31 workers; what is not a number is the worst."""

    def end(spec: RunSpec) -> float | None:
        lr = spec.options.get("lr")
        good = 0.003 if spec.delay_options["workers"] == 31 else 0.03
        return 0.7 if lr is None else None if lr == 0.1 else 1.0 - abs(lr - good)

    rows = limit_table(Ends(end)).filter(pl.col("method") == "catch-up-adamw")  # type: ignore[arg-type]
    usual, crowded = (
        rows.row(by_predicate=pl.col("setting") == name, named=True) for name in (USUAL["digits"], "31 workers")
    )
    assert (usual["ours"], usual["lr"], usual["best"], usual["carried"]) == (0.7, 0.03, 1.0, 1.0)
    assert (usual["worst"], usual["influence"]) == (0.7, 1.0 - max(SEEDS) / 1e4)
    assert (crowded["lr"], crowded["best"], crowded["carried"]) == (0.003, 1.0, pytest.approx(0.973))


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


def test_a_variant_differs_from_the_rule() -> None:
    rule, same, other = (
        end_of(variant, "digits, 7 workers", 11, steps=60)
        for variant in ("the rule", "the rule", "step over the mean wait")
    )
    assert rule == same
    assert rule["value"] is not None
    assert rule["distance"] != other["distance"]


def test_the_committed_page_of_variants_follows_from_its_numbers() -> None:
    rows = json.loads((RESULTS / "parts.json").read_text())
    assert len(rows) == len(VARIANTS) * len(PARTS_SETTINGS) * 3
    assert "\n".join(line for part in parts(rows) for line in part.lines()) in (RESULTS / "parts.md").read_text()


def test_a_variant_that_diverges_is_the_worst() -> None:
    rows = [
        {"variant": variant, "setting": setting, "value": None, "distance": None}
        for variant in VARIANTS
        for setting in PARTS_SETTINGS
    ]
    ends, distances = ([list(row) for row in part.rows] for part in parts(rows))
    assert ends[0][1:] == ["0.000 (0.000)"] * 4 + ["inf (inf)"] * 2
    assert distances[0][1:] == ["inf (inf)"] * 6
