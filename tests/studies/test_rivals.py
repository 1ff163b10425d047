"""Ringmaster's quadratic: the problem is the published one, and the committed table is what the curves say."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from latecomer.comparison import planned
from latecomer.comparison.results import collect
from latecomer.experiments.pieces import Pieces
from latecomer.policy import Policy, RennalaStop, RingmasterStop
from studies.rivals import rates
from studies.rivals.__main__ import table
from studies.rivals.public_code import FOUND
from studies.rivals.ringmaster import METHODS, NEAR, SquareRootTimes, Tridiagonal, curves

FOLDER = Path(__file__).parents[2] / "docs" / "rivals"


def test_the_quadratic_is_that_of_the_public_code() -> None:
    d = 9
    problem = Tridiagonal(d, noise=0.0)
    a = (np.diag([2.0] * d) - np.diag([1.0] * (d - 1), 1) - np.diag([1.0] * (d - 1), -1)) / 4
    b = np.zeros(d)
    b[0] = -0.25
    x = torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(x)
    problem.gradient(x, problem.batch(0, 0), out)
    np.testing.assert_allclose(out.numpy(), a @ x.numpy() - b, atol=1e-14)
    best = np.linalg.solve(a, b)
    assert problem.least == pytest.approx(best @ a @ best / 2 - b @ best)
    assert problem.evaluate(problem.model(0))["loss"] == pytest.approx(d / 4 + math.sqrt(d) / 4 - problem.least)


def test_workers_have_their_times_whatever_their_number() -> None:
    few, many = (SquareRootTimes(n).jobs(3) for n in (5, 500))
    assert [few(0, i) for i in (0, 3, 3)] == [many(0, i) for i in (0, 3, 3)]
    assert min(many(0, 400)[0] for _ in range(50)) >= 21.0


@pytest.mark.parametrize("policy", [RingmasterStop, RennalaStop])
def test_the_fastest_workers_are_enough_for_methods_with_stops(policy: type[Policy]) -> None:
    """The argument by which the others are left out, tried: with more workers the same arrivals."""
    found = []
    for workers in (NEAR, 4 * NEAR):
        trace = SquareRootTimes(workers).trace(120, 1, policy=policy(workers, 6))
        found.append((trace.worker.tolist(), trace.end.tolist()))
    assert found[0] == found[1]


def test_a_short_run_has_the_order_of_the_publication() -> None:
    ends = {row["method"]: row["loss"] for row in curves(0, seconds=60.0, workers=300)}
    assert ends["ringmaster-stop"] < ends["rennala"] < ends["delay-adaptive"]


def test_the_committed_table_is_what_the_curves_say() -> None:
    text = (FOLDER / "ringmaster.md").read_text()
    for file, whose in (("ringmaster.csv", "ours"), ("public_code.csv", "public")):
        rows = pl.read_csv(FOLDER / file)
        assert set(rows["method"]) == set(METHODS if whose == "ours" else FOUND)
        for (method,), own in rows.group_by(["method"]):
            last = [one.sort("time")["loss"][-1] for _, one in own.group_by("seed")]
            line = next(line for line in text.splitlines() if re.match(rf"\| `{method}`.*\| {whose} \|", line))
            cells = [cell.strip() for cell in line.split("|")]
            assert int(cells[3]) == len(last)
            stated = [float(number) for number in re.findall(r"[\d.]+", cells[6])]
            assert stated == pytest.approx([statistics.median(last), min(last), max(last)], rel=0.02)


def test_the_table_takes_the_loss_at_a_time_between_two_points() -> None:
    curve = {"seed": [0, 0], "time": [400.0, 600.0], "loss": [4.0, 1.0], "update": [7, 9]}
    rows = pl.DataFrame({"method": ["rennala"] * 2, **curve})
    assert table(rows, rows.clear()) == [
        ["`rennala`, lr = 1, S = 6", "ours", "1", "2 (2 to 2)", "1 (1 to 1)", "1 (1 to 1)", "9"]
    ]


def test_in_hindsight_the_chosen_rate_takes_the_time_of_the_study() -> None:
    runs = Pieces(FOLDER.parent / "results" / "compare" / "runs")
    plan = planned("standard")
    plan = replace(plan, problems=plan.problems[:1], delays=("slow-workers",))
    summary, cell = collect(plan, runs), plan.cells[0]
    committed = dict(summary.summary().select("method", "time").iter_rows())
    found = rates.hindsight(plan, cell, "momentum", summary.targets[cell], runs, factors=(1.0, 0.01))
    assert found == {1.0: committed["momentum"], 0.01: math.inf}


def test_the_table_of_rates_has_the_best_factor_nearest_to_the_chosen_rate() -> None:
    own = {1.0: 8.0, 0.5: 4.0, 2.0: 4.0, 4.0: 4.0}
    by_delays = {"slow-workers": own, "straggler": {1.0: math.inf, 2.0: 4.0}, "independent": {1.0: math.inf}}
    assert rates.rows_of({"momentum": by_delays}, dict.fromkeys(by_delays, 2.0)) == [
        ["`momentum`", "8; 4 (x 0.5); 0.50", "missed; 4 (x 2); 0.50", "missed with all"]
    ]
