"""Ringmaster's quadratic: the problem is the published one, and the committed table is what the curves say."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

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


def test_the_fastest_workers_are_enough_for_ringmaster_with_stops() -> None:
    """The argument by which the others are left out, tried: with more workers the same arrivals."""
    found = []
    for workers in (NEAR, 4 * NEAR):
        from latecomer.policy import RingmasterStop

        trace = SquareRootTimes(workers).trace(120, 1, policy=RingmasterStop(workers, 6))
        found.append((trace.worker.tolist(), trace.end.tolist()))
    assert found[0] == found[1]


def test_a_short_run_has_the_order_of_the_publication() -> None:
    ends = {row["method"]: row["loss"] for row in curves(0, seconds=60.0, workers=300)}
    assert ends["ringmaster-stop"] < ends["rennala"] < ends["delay-adaptive"]


def test_the_committed_table_is_what_the_curves_say() -> None:
    rows = pl.read_csv(FOLDER / "ringmaster.csv")
    text = (FOLDER / "ringmaster.md").read_text()
    for method in METHODS:
        own = rows.filter(pl.col("method") == method)
        last = [own.filter(pl.col("seed") == seed).sort("arrival")["loss"][-1] for seed in own["seed"].unique()]
        line = next(line for line in text.splitlines() if line.startswith(f"| `{method}`"))
        assert float(line.split("|")[4]) == pytest.approx(statistics.median(last), rel=0.01)
