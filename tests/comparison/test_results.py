"""What a comparison says, computed a second time from the runs in its store; and the delay models that it runs on."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import latecomer as lc
from latecomer.comparison import Results
from latecomer.comparison.settings import DELAYS, PROBLEMS, SIZES, TUNING_SEED
from latecomer.delays.known import model_of
from latecomer.experiments import RunSpec, Store
from latecomer.problems.digits import digit_images

METHODS = ("momentum", "delay-filtered", "ringmaster", "sync-minibatch")  # two that drop, and one that waits
ARRIVALS = {"quadratic": 200, "digits": 120}
METRIC = {"quadratic": "loss", "digits": "f1"}
SIGN = {"quadratic": -1.0, "digits": 1.0}
Record = dict[str, Any]
Made = tuple[Results, Store]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("runs")
    small = replace(SIZES["quick"], configurations=3, evaluations=6, arrivals=ARRIVALS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("latecomer.comparison.plan.SIZES", {"quick": small})
        found = lc.compare(METHODS, list(METRIC), ["slow-samples"], seeds=[3000, 3001], store=folder)
    assert set(found.runs["time"].is_finite()) == {True, False}  # some miss the target
    return found, Store(folder)


def records(made: Made, problem: str, *, tuned: bool) -> list[Record]:
    found = [made[1].record(key) for key in made[1].keys()]  # noqa: SIM118
    return [
        each for each in found if each["spec"]["problem"] == problem and (each["spec"]["seed"] == TUNING_SEED) is tuned
    ]


def row_of(made: Made, record: Record) -> dict[str, Any]:
    spec = record["spec"]
    own = made[0].runs.filter(problem=spec["problem"], method=spec["method"], seed=spec["seed"])
    assert own.height == 1
    return own.row(0, named=True)


def target_of(made: Made, problem: str, chosen: dict[str, Record]) -> float:
    metric, sign, store = METRIC[problem], SIGN[problem], made[1]
    histories = {method: store.history(record["key"]) for method, record in chosen.items()}
    assert histories["momentum"]["update"][3] == ARRIVALS[problem] * 3 / 4
    start = histories["momentum"][metric][0]
    gains = [sign * (history[metric][3] - start) for history in histories.values()]
    return start + sign * statistics.median(gain for gain in gains if gain >= max(gains) / 2)


@pytest.mark.parametrize("problem", METRIC)
def test_choice_target_and_times_follow_from_the_stored_runs(made: Made, problem: str) -> None:
    found, store = made
    metric, sign = METRIC[problem], SIGN[problem]
    tuned, judged = (records(made, problem, tuned=each) for each in (True, False))
    assert (len(tuned), len(judged)) == (len(METHODS) * 3, len(METHODS) * 2)
    chosen = {
        method: max(
            (record for record in tuned if record["spec"]["method"] == method),
            key=lambda record: sign * record["final"][metric],
        )
        for method in METHODS
    }
    target = target_of(made, problem, chosen)
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    updates: dict[str, list[float]] = {method: [] for method in METHODS}
    for record in judged:
        method = record["spec"]["method"]
        assert record["spec"]["options"] == chosen[method]["spec"]["options"]
        time, update = math.inf, math.inf
        for at in store.history(record["key"]).iter_rows(named=True):
            if sign * at[metric] >= sign * target:
                time, update = at["time"], at["update"]
                break
        row = row_of(made, record)
        assert (row["time"], row["updates"]) == (time, update)
        assert row["final"] == record["final"][metric]
        start = store.history(record["key"])[metric][0]
        assert row["trained"] == (sign * (row["final"] - start) >= sign * (target - start) / 2)
        assert row["easier"] is None  # there is no control to compare with
        times[method].append(time)
        updates[method].append(update)
    summary = found.summary().filter(problem=problem)
    assert summary["time"].to_list() == sorted(statistics.median(own) for own in times.values())
    for row in summary.iter_rows(named=True):
        assert row["target"] == pytest.approx(target)
        assert row["time"] == statistics.median(times[row["method"]])
        assert row["updates"] == statistics.median(updates[row["method"]])
        assert row["reached"] == sum(map(math.isfinite, times[row["method"]]))


def test_delays_that_follow_the_data_are_compared_with_their_control(tmp_path: Path) -> None:
    small = replace(SIZES["quick"], configurations=3, evaluations=6, arrivals={"quadratic": 400})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("latecomer.comparison.plan.SIZES", {"quick": small})
        found = lc.compare(METHODS, ["quadratic"], list(DELAYS)[:3], seeds=[3000, 3001], store=tmp_path)
    store = Store(tmp_path)
    assert found.cpu == pytest.approx(sum(store.seconds(key) or math.nan for key in store.keys()))  # noqa: SIM118
    targets = {cell.delays: target for cell, target in found.targets.items()}
    easier = max(target for delays in ("slow-samples", "independent") if (target := targets[delays]) is not None)
    best: dict[tuple[str, str, int], float] = {}
    for record in (store.record(key) for key in store.keys()):  # noqa: SIM118
        if record["spec"]["seed"] != TUNING_SEED and record["spec"]["delays"] == "sample-cost":
            delays = "slow-samples" if record["spec"]["delay_options"].get("dependent", True) else "independent"
            losses = store.history(record["key"])["loss"].to_list()
            best[delays, record["spec"]["method"], record["spec"]["seed"]] = min(losses)
    assert len(best) == 2 * len(METHODS) * 2
    for row in found.runs.iter_rows(named=True):
        own = best.get((row["delays"], row["method"], row["seed"]))
        assert row["easier"] == (None if own is None else own <= easier)
    assert set(found.runs["easier"]) == {True, False, None}
    both = found.runs.filter(pl.col("delays").is_in(["slow-samples", "independent"]), method="momentum")
    assert both["trained"].all()
    slow = dict(both.sort("seed").group_by("delays").agg("loss_slow").iter_rows())
    ratios = [late / control for late, control in zip(slow["slow-samples"], slow["independent"], strict=True)]
    row = found.slow_losses().row(by_predicate=pl.col("method") == "momentum", named=True)
    assert row["ratio"] == pytest.approx(statistics.mean(ratios))
    assert (row["above"], row["pairs"]) == (sum(ratio > 1 for ratio in ratios), 2)


@pytest.mark.parametrize("problem", METRIC)
def test_losses_of_groups_add_up_to_the_last_loss(made: Made, problem: str) -> None:
    """The loss of all is the mean of those of the groups by their shares; that of quadratic is above its smallest."""
    slow, smallest = 0.1, 5.5 / 2 * (0.9 * 0.3**2 + 0.1 * 2.7**2)  # centres 0 and 3, curvatures that add up to 5.5
    if problem == "digits":
        slow, smallest = float((digit_images("test")[1][1] == 9).mean()), 0.0
    for record in records(made, problem, tuned=False):
        row = row_of(made, record)
        total = (1 - slow) * row["loss_fast"] + slow * row["loss_slow"]
        assert total - smallest == pytest.approx(record["final"]["loss"], rel=1e-5)


@pytest.mark.parametrize("problem", METRIC)
def test_a_policy_has_the_arrivals_that_fit_into_the_time_of_the_asynchronous_run(made: Made, problem: str) -> None:
    runs = [RunSpec(**record["spec"]) for tuned in (True, False) for record in records(made, problem, tuned=tuned)]
    end = {run.seed: run.make_trace().end[-1] for run in runs if run.method == "momentum"}
    assert {run.steps for run in runs if run.method in ("momentum", "delay-filtered")} == {ARRIVALS[problem]}
    for run in {(run.method, run.seed): run for run in runs}.values():
        ends = run.make_trace(2 * ARRIVALS[problem]).end
        assert ends[run.steps - 1] <= end[run.seed] * (1 + 1e-9)
        if run.method in ("ringmaster", "sync-minibatch"):
            assert ends[run.steps] > end[run.seed]


def test_an_instance_that_a_method_was_not_run_on_is_left_out_of_its_profile(made: Made) -> None:
    found, _ = made
    left_out = (pl.col("problem") == "digits") & (pl.col("method") == "ringmaster")
    without = replace(found, runs=found.runs.filter(~left_out))
    assert without.profiles().equals(found.profiles("quadratic"))
    assert set(without.profiles("digits")["method"]) == set(METHODS) - {"ringmaster"}


# ---- delay models ---------------------------------------------------------------------------------------------------

SHARES = {"quadratic": (0.9, 0.1), "text": (0.4, 0.3, 0.2, 0.1)}
COSTS = {"quadratic": (1.0, 10.0), "text": (1.0, 1.3, 2.6, 6.4)}
EQUAL, ROOTS, STRAGGLER = [1.0] * 8, [math.sqrt(1 + worker) for worker in range(8)], [1.0] * 7 + [10.0]


def schedule(delays: str, problem: str) -> lc.Trace:
    trace = model_of(*DELAYS[delays](PROBLEMS[problem], 8)).trace(4000, seed=0)
    assert set(trace.worker.tolist()) == set(range(8))
    assert np.bincount(trace.group) / len(trace) == pytest.approx(SHARES[problem], abs=0.03)
    return trace


@pytest.mark.parametrize(
    ("delays", "problem", "speeds", "costs"),
    [
        ("slow-samples", "quadratic", EQUAL, COSTS["quadratic"]),
        ("slow-samples", "text", EQUAL, COSTS["text"]),
        ("slow-workers", "quadratic", ROOTS, (1.0, 1.0)),
        ("slow-workers", "text", ROOTS, COSTS["text"]),
        ("straggler", "quadratic", STRAGGLER, (1.0, 1.0)),
        ("straggler", "text", STRAGGLER, COSTS["text"]),
    ],
)
def test_durations_are_those_of_worker_and_sample(
    delays: str, problem: str, speeds: list[float], costs: tuple[float, ...]
) -> None:
    trace = schedule(delays, problem)
    expected = np.array(speeds)[trace.worker] * np.array(costs)[trace.group]
    np.testing.assert_allclose(trace.end - trace.start, expected, rtol=1e-4)


@pytest.mark.parametrize("problem", COSTS)
def test_independent_durations_have_the_same_shares_in_every_group(problem: str) -> None:
    trace = schedule("independent", problem)
    lasted = (trace.end - trace.start).round(6)
    assert set(lasted.tolist()) == set(COSTS[problem])
    for group in range(len(COSTS[problem])):
        own = lasted[trace.group == group]
        assert [(own == cost).mean() for cost in COSTS[problem]] == pytest.approx(SHARES[problem], abs=0.08)
