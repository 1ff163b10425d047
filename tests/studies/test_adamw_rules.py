"""The comparison of AdamW rules: its plan, its measures on rows made by hand, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from latecomer.experiments import RunSpec, Store
from studies.stable_and_fair import ADAMW, Size, adamw_curves, adamw_plan, adamw_table, plans, size_of
from studies.stable_and_fair.__main__ import main
from studies.stable_and_fair.adamw import RATES, SEEDS
from studies.stable_and_fair.figures import ADAMW_STYLES
from studies.stable_and_fair.hard import HELD_OUT

pytestmark = pytest.mark.usefixtures("registry")


def put(store: Store, run: RunSpec, f1: float | None, **outcome: Any) -> None:
    ended = {"update": [run.steps], "f1": [f1], "f1_slow": [f1]}
    measured = {"diverged_at": None, "slow_over_fast": 1.0, "clipped_slow": 0.0, "clipped_fast": 0.0}
    store.put(run, pl.DataFrame(ended), {**measured, **outcome}, 0.0)


def test_the_plan_has_seeds_of_its_own_and_each_kind_its_learning_rates() -> None:
    sweeps = adamw_plan(size_of("standard"))
    assert list(sweeps) == ["digits", "mnist", "text", "far"]
    assert not set(SEEDS) & {*plans.CHOOSING, *HELD_OUT}
    assert sweeps.pop("far").seeds == SEEDS[:3]
    for problem, sweep in sweeps.items():
        runs = sweep.runs()
        assert {run.seed for run in runs} == set(SEEDS[:3] if problem == "mnist" else SEEDS)
        for each in ADAMW.values():
            assert {run.options["lr"] for run in runs if run.method == each.method} == set(RATES[each.kind])
    assert ADAMW.keys() == ADAMW_STYLES.keys()


@pytest.mark.parametrize(
    ("problem", "key"), [("digits", "9ebc1a4e832b"), ("mnist", "d78a0fd531ee"), ("text", "b768ffd2cbdc")]
)
def test_the_runs_that_were_made_are_still_found(problem: str, key: str) -> None:
    assert adamw_plan(size_of("standard"))[problem].runs()[0].key.startswith(key)


def test_bands_collapses_and_differences(tmp_path: Path) -> None:
    """By hand: balanced is good at rates 2 to 5, catch-up at 2, 3 and 6; seed 1 of it collapses above that."""
    size, store = Size("quick", (), 2, 1, 60, 3, ("mlp", 20)), Store(tmp_path)
    ends = {
        "balanced-adamw": [0.1, 0.1, *[0.9] * 4, *[0.5] * 4],
        "catch-up-adamw": [0.1, 0.1, 0.9, 0.9, 0.2, 0.2, 0.9, 0.2, 0.2, 0.2],
    }
    sweep = adamw_plan(size)["digits"]
    for run in sweep.runs():
        if run.method in ends:
            f1 = ends[run.method][RATES["adam"].index(run.options["lr"])]
            lost = run.method == "catch-up-adamw" and run.seed == SEEDS[1] and run.options["lr"] > 0.02
            put(store, run, 0.02 if lost else f1, slow_over_fast=0.5 if run.method == "balanced-adamw" else 1.0)
    table = adamw_table(size, store).rows_by_key("candidate", named=True, unique=True)
    ours, theirs = table["balanced-adamw"], table["catch-up-adamw"]
    assert (ours["stable"], ours["decades"], ours["guessing"], ours["influence"]) == (
        0.4, pytest.approx(4 / 3), 0, 0.5,
    )  # fmt: skip
    assert (theirs["stable"], theirs["decades"], theirs["guessing"]) == (0.3, pytest.approx(2 / 3), 3)
    assert theirs["lead_decades"] == pytest.approx(2 / 3)
    assert theirs["lead_best"] == 0.0
    assert ours["lead_best"] is None
    curves = adamw_curves(size, store).filter(pl.col("candidate") == "catch-up-adamw")
    assert curves["guessing"].to_list() == [0] * 7 + [1] * 3
    assert (curves["low"][9], curves["value"][9]) == (0.02, pytest.approx(0.11))


def test_the_command_runs_and_draws_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SIZES", {"quick": Size("quick", (), 1, 1, 60, 3, ("mlp", 20))})
    where = ["--store", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main(["adamw", "--as-is", *where]) == 2
    assert main(["adamw", "--processes", "1", *where]) == 0
    files = [tmp_path / "out" / f"adamw-quick.{end}" for end in ("svg", "csv", "md")]
    first = [file.read_bytes() for file in files]
    assert main(["adamw", "--as-is", *where]) == 0
    assert [file.read_bytes() for file in files] == first
    table = pl.read_csv(files[1])
    assert table.select("problem", "candidate").rows() == [(name, each) for name in ("digits", "far") for each in ADAMW]
