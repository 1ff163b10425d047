"""Times to target, profiles, and where the workers' time went, against numbers computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

import latecomer as lc
from latecomer.comparison import median, performance_profile, reached, time_ratios, work_shares
from latecomer.comparison.page import _winners
from latecomer.comparison.plan import _target
from latecomer.comparison.spaces import Space, configurations, space_of
from latecomer.optim import METHODS
from latecomer.policy import Decision, Policy
from latecomer.report.style import STYLES

INF = math.inf


def history(**columns: list[float | None]) -> pl.DataFrame:
    count = len(next(iter(columns.values())))
    return pl.DataFrame({"update": range(0, 10 * count, 10), "time": [3.0 * i for i in range(count)], **columns})


@pytest.mark.parametrize(
    ("values", "higher", "target", "expected"),
    [
        ([0.0, 0.5, 0.4, 0.9], True, 0.5, (3.0, 10.0)),  # the first time counts, not the last
        ([0.0, 0.5, 0.4, 0.9], True, 0.91, (INF, INF)),
        ([9.0, 5.0, 1.0], False, 5.0, (3.0, 10.0)),
        ([9.0, math.nan, 1.0], False, 2.0, (6.0, 20.0)),  # NaN meets no target
        ([9.0, None, None], False, 2.0, (INF, INF)),
        ([1.0, 2.0], False, 1.5, (0.0, 0.0)),
    ],
)
def test_the_first_evaluation_at_the_target_counts(
    values: list[float | None], higher: bool, target: float, expected: tuple[float, float]
) -> None:
    assert reached(history(metric=values), "metric", target, higher) == expected


def test_a_profile_counts_instances_within_a_factor_of_the_fastest() -> None:
    times = {"a": [1.0, 4.0, INF, INF], "b": [2.0, 2.0, 5.0, INF], "c": [INF, 2.0, 15.0, INF]}
    assert [each.tolist() for each in time_ratios(times).values()] == [
        [1.0, 2.0, INF, INF], [2.0, 1.0, 1.0, INF], [INF, 1.0, 3.0, INF],
    ]  # fmt: skip
    table = performance_profile(times, [1.0, 1.9, 2.0, 3.0, 100.0])
    shares = {method: table.filter(method=method)["share"].to_list() for method in times}
    assert shares == {
        "a": [0.25, 0.25, 0.5, 0.5, 0.5],
        "b": [0.5, 0.5, 0.75, 0.75, 0.75],
        "c": [0.25, 0.25, 0.25, 0.5, 0.5],
    }
    with pytest.raises(ValueError, match=r"The methods have \[1, 2\] instances"):
        time_ratios({"a": [1.0], "b": [1.0, 2.0]})


def test_a_target_at_the_start_is_met_in_no_time_by_all() -> None:
    assert time_ratios({"a": [0.0], "b": [0.0], "c": [2.0]}) == {"a": [1.0], "b": [1.0], "c": [INF]}


def test_half_of_the_runs_missing_is_a_miss() -> None:
    assert (median([1.0, 2.0, INF]), median([1.0, INF]), median([3.0, 1.0])) == (2.0, INF, 2.0)
    assert math.isnan(median([]))


def test_the_target_is_the_median_of_those_that_went_half_of_the_way() -> None:
    assert _target([0.9, 0.8, 0.7, 0.1, 0.02], start=0.0, higher=True) == pytest.approx(0.8)
    assert _target([1.0, 2.0, 9.9, 50.0], start=10.0, higher=False) == pytest.approx(1.5)  # one diverged, one stayed
    assert _target([10.0, 11.0], start=10.0, higher=False) is None
    assert _target([], start=1.0, higher=True) is None


# ---- where the time went --------------------------------------------------------------------------------------------


class StopsOld(Policy):
    """Cancels what is two updates old."""

    name = "stops-old"

    def receive(self, ticket, delay):
        return Decision("apply")

    def cancel(self, in_flight, version):
        return [ticket for ticket in in_flight if version - ticket.version >= 2]


class DropsWorker1(Policy):
    name = "drops-worker-1"

    def receive(self, ticket, delay):
        return Decision("drop" if ticket.worker == 1 else "apply")


def test_workers_that_never_wait_are_never_idle() -> None:
    trace = lc.delays.WorkerSpeeds([1.0, 3.0]).trace(steps=8)
    assert trace.end[-1] == 6.0
    assert work_shares(trace) == (12.0, 0.0, 0.0)


def test_waiting_for_the_slowest_is_idle_time() -> None:
    trace = lc.delays.WorkerSpeeds([1.0, 2.0, 4.0]).trace(steps=9, policy="synchronous")
    seconds, idle, wasted = work_shares(trace)
    assert (seconds, wasted) == (36.0, 0.0)  # three rounds of four seconds, three workers
    assert idle == pytest.approx(1 - 3 * (1 + 2 + 4) / 36)


def test_dropped_work_counts_in_worker_seconds() -> None:
    trace = lc.delays.WorkerSpeeds([1.0, 3.0]).trace(steps=8, policy=DropsWorker1())
    assert trace.end[-1] == 6.0  # both are busy all the time, and worker 1 for nothing
    assert work_shares(trace) == (12.0, 0.0, 0.5)


def test_a_cancelled_job_counts_until_it_was_cancelled() -> None:
    trace = lc.delays.WorkerSpeeds([1.0, 10.0]).trace(steps=4, policy=StopsOld())
    # Worker 0 arrives at 1, 2, 3, 4; each second one cancels worker 1, which starts again at once.
    assert trace.end.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert work_shares(trace) == (8.0, 0.0, 0.5)


def test_a_rule_that_drops_throws_work_away_too() -> None:
    trace = lc.delays.WorkerSpeeds([1.0, 3.0]).trace(steps=8)
    run = lc.simulate(lc.problems.quadratic(shares=(1.0, 0.0)), "delay-filtered", trace, lr=0.1, threshold=1)
    dropped = run.trace.status == "dropped"
    assert set(run.trace.worker[dropped]) == {1}
    lasted = float((run.trace.end - run.trace.start)[dropped].sum())
    assert work_shares(run.trace).wasted == pytest.approx(lasted / 12.0)
    with pytest.raises(ValueError, match="Idle time needs a trace with arrivals and a clock"):
        work_shares(lc.delays.Uniform(workers=2).trace(steps=5))


# ---- budgets --------------------------------------------------------------------------------------------------------


def test_every_method_gets_as_many_configurations() -> None:
    given = {"count": 6, "workers": 8, "arrivals": 1000}
    plain = configurations(Space(), (0.001, 0.1), **given)
    assert [each["lr"] for each in plain] == [0.001, 0.0025, 0.0063, 0.016, 0.04, 0.1]
    two = configurations(Space(values={"beta": (0.1, 0.01)}, per_worker={"threshold": 1.5}), (0.001, 0.1), **given)
    assert len(two) == 6
    assert {(each["lr"], each["beta"]) for each in two} == {(lr, b) for lr in (0.001, 0.01, 0.1) for b in (0.1, 0.01)}
    assert {each["threshold"] for each in two} == {12}
    growing = configurations(Space(per_arrival=True), (0.001, 0.1), **given)
    assert np.isclose(growing[0]["lr"], 2e-6)
    with pytest.raises(ValueError, match="6 configurations cannot be 4 combinations"):
        configurations(Space(values={"beta": (0.1, 0.01), "gamma": (0.1, 0.9)}), (0.001, 0.1), **given)


def test_learning_rates_and_options_are_shifted_as_the_page_says() -> None:
    """docs/compare.md has the factors in words, by kind of method."""
    factors = {
        **dict.fromkeys(("ormo", "ormo-da", "dana-zero"), 0.1),
        **dict.fromkeys(("rennala", "sync-minibatch", "async-minibatch", "fedbuff", "staleness-aware"), 8.0),
        **dict.fromkeys(("anytime-sgd", "ordered-mu2-anytime"), 2 / 1000), "fadas": 3.0,
    }  # fmt: skip
    for method in (name for name, known in METHODS.items() if known.files is None and name != "rate-free"):
        found = configurations(space_of(method), (0.001, 0.1), count=6, workers=5, arrivals=1000)
        rates, factor = [each["lr"] for each in found], factors.get(method, 1.0)
        assert (min(rates), max(rates)) == pytest.approx((0.001 * factor, 0.1 * factor), rel=1e-6), method
        assert {each.get(name, 5) for each in found for name in "RSBK"} == {5}, method
        assert {each.get("threshold", 10) for each in found} == {10}, method
        assert {each.get("beta", 0.1) for each in found} == {0.1}, method


def test_the_fastest_are_all_named_if_they_tie_and_nobody_who_misses() -> None:
    def row(problem: str, method: str, time: float, idle: float = 0.0) -> dict[str, Any]:
        ratio = time / 45.0 if math.isfinite(time) else math.inf
        return {"problem": problem, "delays": "straggler", "method": method, "time": time, "ratio": ratio, "idle": idle}

    rows = [row("digits", name, 45.0) for name in ("a", "b", "c", "d")] + [row("digits", "waits", 90.0, 0.5)]
    rows += [row("text", "a", 45.0), row("text", "waits", math.inf, 0.5), row("mnist", "a", math.inf)]
    found = _winners(pl.DataFrame(rows))
    assert [each["methods"] for each in found] == ["a, b, c and 1 more", "a", "none"]
    assert [each["waiting"] for each in found] == ["waits, 2 times", "none", "none"]
    assert [each["reached"] for each in found] == ["5 of 5", "1 of 2", "0 of 1"]
    assert [each["time"] for each in found] == ["45", "45", "∞"]


def test_every_method_of_the_library_has_a_style_of_its_own() -> None:
    own = [name for name, method in METHODS.items() if method.files is None]
    assert set(own) <= STYLES.keys()
    assert len(set(STYLES.values())) == len(STYLES)
