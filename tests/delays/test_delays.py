"""Delay models: every number the design states, with exact bounds, and golden traces."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import latecomer as lc
from delay_models import MODELS
from latecomer._util.seeds import sample_seeds, uniforms
from latecomer.delays import Constant, DataDependent, Recorded, SampleCost, Uniform, WorkerSpeeds

GOLDEN = Path(__file__).parents[1] / "golden"


# ---- exact expectations of the paper's model, by summing over the geometric waiting times ---------------------------


def exact(
    workers: int, slow: float, literal: bool, value: Callable[[np.ndarray], np.ndarray]
) -> tuple[float, float, float]:
    """(share of slow arrivals, mean of value(delay) over slow ones, the same over fast ones)."""
    p = np.arange(1, workers + 1) / (workers * (workers + 1) / 2)
    wait = np.arange(1, 20_000)
    share = slow_sum = fast_sum = 0.0
    for own in p:
        mass = own * own * (1 - own) ** (wait - 1)  # who arrives, times how long it waited
        tau = math.log(slow) / math.log1p(-own)
        if literal:
            is_slow = (wait > tau).astype(float)
        else:  # draw at the threshold so that the share is exact
            n = math.floor(tau)
            at = (slow - (1 - own) ** (n + 1)) / (own * (1 - own) ** n)
            is_slow = np.where(wait > n + 1, 1.0, np.where(wait == n + 1, at, 0.0))
        share += float((mass * is_slow).sum())
        slow_sum += float((mass * is_slow * value(wait - 1)).sum())
        fast_sum += float((mass * (1 - is_slow) * value(wait - 1)).sum())
    return share, slow_sum / share, fast_sum / (1 - share)


@pytest.fixture(scope="module", params=[False, True], ids=["exact", "literal"])
def paper(request: pytest.FixtureRequest) -> tuple[bool, lc.Trace]:
    return request.param, DataDependent(workers=7, slow_share=0.1, exact=not request.param).trace(steps=400_000, seed=5)


def test_delays_add_up_to_the_number_of_workers(paper: tuple[bool, lc.Trace]) -> None:
    """Mean of delay + 1: M over all arrivals (exactly, but for what is in flight), 1/p_i over one worker's."""
    _, trace = paper
    # Waits of one worker tile the run, so their sum is its last arrival: M·T less what the last waits leave open.
    assert 0 <= 7 - (trace.delay + 1).mean() < 7 * trace.delay.max() / len(trace)
    for worker in range(7):
        p = (worker + 1) / 28
        own = (trace.delay + 1)[trace.worker == worker]
        assert abs(own.mean() - 1 / p) < 4.5 * math.sqrt(1 - p) / p / math.sqrt(len(own))
        assert stats.binomtest(len(own), len(trace), p).pvalue > 1e-5
    assert (trace.in_flight == 6).all()


def test_slow_share(paper: tuple[bool, lc.Trace]) -> None:
    """Decision 5: the literal rule makes the share 0.108; the exact one 0.1 for every worker."""
    literal, trace = paper
    share, _, _ = exact(7, 0.1, literal, np.ones_like)
    assert share == pytest.approx(0.108 if literal else 0.1, abs=5e-4)
    assert stats.binomtest(int((trace.group == 1).sum()), len(trace), share).pvalue > 1e-5
    if not literal:
        for worker in range(7):
            own = trace.group[trace.worker == worker]
            assert stats.binomtest(int(own.sum()), len(own), 0.1).pvalue > 1e-5


def test_slow_share_of_the_cifar_setting() -> None:
    assert exact(5, 0.5, True, np.ones_like)[0] == pytest.approx(0.577, abs=5e-4)
    assert exact(5, 0.5, False, np.ones_like)[0] == pytest.approx(0.5, abs=1e-9)
    trace = DataDependent(workers=5, slow_share=0.5, exact=False).trace(steps=100_000, seed=0)
    assert stats.binomtest(int(trace.group.sum()), len(trace), 0.577).pvalue > 1e-5


@pytest.mark.parametrize(("threshold", "stated"), [(7, (0.0, 0.0)), (10.5, (0.21, 0.22)), (14, (0.46, 0.50))])
def test_filtering(threshold: float, stated: tuple[float, float], paper: tuple[bool, lc.Trace]) -> None:
    """What a threshold keeps of the slow batches; with M = 7 none arrives with a delay below 8."""
    literal, trace = paper
    _, kept, _ = exact(7, 0.1, literal, lambda delay: (delay <= threshold).astype(float))
    assert kept == pytest.approx(stated[literal], abs=0.006)
    slow = trace.delay[trace.group == 1]
    assert abs((slow <= threshold).mean() - kept) <= 4.5 * math.sqrt(kept * (1 - kept) / len(slow))
    assert slow.min() == 8


@pytest.mark.parametrize(("beta", "stated"), [(0.1, (0.285, 0.295)), (0.05, (0.510, 0.521)), (0.01, (0.857, 0.862))])
def test_influence(beta: float, stated: tuple[float, float], paper: tuple[bool, lc.Trace]) -> None:
    """Weight of the slow class over that of the fast ones under ordered momentum."""
    literal, trace = paper
    _, slow, fast = exact(7, 0.1, literal, lambda delay: (1 - beta) ** delay)
    assert slow / fast == pytest.approx(stated[literal], abs=1e-3)
    weight = (1 - beta) ** trace.delay.astype(float)
    measured = weight[trace.group == 1].mean() / weight[trace.group == 0].mean()
    assert measured == pytest.approx(slow / fast, rel=0.01)


def test_the_control_has_the_same_arrivals_and_groups_that_know_nothing_of_the_wait() -> None:
    model, control = (DataDependent(workers=7, slow_share=0.1, dependent=d) for d in (True, False))
    a, b = model.trace(100_000, seed=1), control.trace(100_000, seed=1)
    assert np.array_equal(a.worker, b.worker)
    assert np.array_equal(a.sample, b.sample)
    assert a.delay[a.group == 1].mean() > 15
    late, slow = b.delay >= 8, b.group == 1
    table = [[int((s & d).sum()) for d in (late, ~late)] for s in (slow, ~slow)]
    assert stats.chi2_contingency(table).pvalue > 1e-4


@given(
    workers=st.integers(1, 8),
    shares=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4),
    literal=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_slower_groups_wait_longer_and_shares_are_kept(
    workers: int, shares: list[float], literal: bool, seed: int
) -> None:
    shares = [share / sum(shares) for share in shares]
    trace = DataDependent(workers, shares=shares, exact=not literal).trace(steps=3000, seed=seed)
    for worker in range(workers):
        own = trace.worker == worker
        waits = [trace.delay[own & (trace.group == g)] for g in range(len(shares))]
        full = [w for w in waits if len(w)]
        assert all(a.max() <= b.min() for a, b in itertools.pairwise(full))
    if not literal and workers > 1:
        for g, share in enumerate(shares):
            assert abs((trace.group == g).mean() - share) < 6 * math.sqrt(share * (1 - share) / len(trace)) + 1e-9


def test_uniform_workers_are_alike() -> None:
    trace = Uniform(workers=10).trace(steps=100_000, seed=3)
    assert stats.chisquare(np.bincount(trace.worker)).pvalue > 1e-4
    assert trace.header.groups == ("all",)


def test_a_single_worker_is_never_late() -> None:
    for model in (DataDependent(1, 0.3), Uniform(1), Constant(1), WorkerSpeeds([2.0]), SampleCost(1, (1.0, 9.0), 0.5)):
        assert (model.trace(steps=200, seed=0).delay == 0).all()


# ---- virtual clocks -------------------------------------------------------------------------------------------------


@given(
    durations=st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 7.0]), min_size=1, max_size=6),
    noise=st.sampled_from(["fixed", "exponential", "lognormal"]),
    seed=st.integers(0, 1000),
)
def test_worker_speeds_by_hand(durations: list[float], noise: str, seed: int) -> None:
    """Each worker's arrivals are its own cumulative sums, and arrivals are merged by time."""
    trace = WorkerSpeeds(durations, noise).trace(steps=60, seed=seed)
    assert (np.diff(trace.end) >= 0).all()
    for worker, duration in enumerate(durations):
        own = trace.worker == worker
        took = (trace.end - trace.start)[own]
        assert (took > 0).all()
        if noise == "fixed":
            np.testing.assert_allclose(took, duration)
        # It starts when it arrived, and no worker that is done by the last arrival is left out.
        np.testing.assert_allclose(trace.start[own][1:], trace.end[own][:-1])
        if noise == "fixed":
            assert own.sum() >= math.floor(trace.end[-1] / duration - 1e-9) - 1


def test_worker_speeds_do_not_depend_on_how_many_steps_are_asked_for() -> None:
    model = WorkerSpeeds([1.0, 3.0, 10.0], "lognormal")
    assert model.trace(steps=2000, seed=1).head(50) == model.trace(steps=50, seed=1)


def test_mean_durations_of_random_speeds() -> None:
    for noise in ("exponential", "uniform", "lognormal"):
        trace = WorkerSpeeds([1.0, 4.0], noise).trace(steps=50_000, seed=0)
        own = (trace.end - trace.start)[trace.worker == 0]
        assert own.mean() == pytest.approx(1.0, abs=0.05)
        assert (trace.worker == 0).mean() == pytest.approx(0.8, abs=0.01)


def test_sample_cost_by_a_slow_simulation() -> None:
    """Against a naive loop that looks for the next to finish among all workers."""
    trace = SampleCost(workers=5, cost=(1.0, 4.0), slow_share=0.3, speeds=(1, 1, 2, 2, 0.5)).trace(steps=300, seed=2)
    seeds = sample_seeds(2, 400)
    group = (uniforms(seeds) < 0.3).astype(int)
    cost, speed = (1.0, 4.0), (1, 1, 2, 2, 0.5)
    job = {w: (cost[group[w]] * speed[w], w) for w in range(5)}
    following = 5
    for t in range(300):
        worker = min(job, key=lambda w: job[w])
        end, ticket = job[worker]
        assert (trace.worker[t], trace.ticket[t], trace.group[t]) == (worker, ticket, group[ticket])
        assert trace.end[t] == pytest.approx(end)
        job[worker] = (end + cost[group[following]] * speed[worker], following)
        following += 1


def test_sample_cost_without_dependence_has_the_same_durations_and_independent_groups() -> None:
    a = SampleCost(workers=20, cost=(1.0, 50.0), slow_share=0.1).trace(40_000, seed=0)
    b = SampleCost(workers=20, cost=(1.0, 50.0), slow_share=0.1, dependent=False).trace(40_000, seed=0)
    for trace in (a, b):
        assert set(np.round(trace.end - trace.start, 6).tolist()) == {1.0, 50.0}
    assert a.delay[a.group == 1].mean() > 20 * a.delay[a.group == 0].mean()
    assert b.delay[b.group == 1].mean() == pytest.approx(b.delay[b.group == 0].mean(), rel=0.15)


def test_groups_of_a_problem_decide_what_a_job_costs() -> None:
    model = SampleCost(3, cost=(1.0, 5.0), shares=(0.5, 0.5), group_of=lambda seeds: seeds % np.uint64(2))
    trace = model.trace(100, seed=0)
    assert (trace.group == (trace.sample % 2).astype(int)).all()


# ---- seeds and golden traces ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_is_its_seed(name: str) -> None:
    model = MODELS[name]()
    one, same, other = (model.trace(steps=500, seed=s) for s in (1, 1, 2))
    assert one == same
    assert one.digest == same.digest
    assert one != other
    assert one.digest != other.digest


@pytest.mark.parametrize("name", MODELS)
def test_golden_trace(name: str) -> None:
    """The schedule of a seed does not change unnoticed. `LATECOMER_GOLDEN=write` rewrites, on purpose."""
    trace = MODELS[name]().trace(steps=40, seed=7)
    columns = {key: trace.columns[key].tolist() for key in ("worker", "seen", "version", "arrival", "group", "sample")}
    columns["end"] = [None if math.isnan(end) else round(end, 9) for end in trace.columns["end"]]
    got = {"model": repr(MODELS[name]()), **columns}
    path = GOLDEN / f"{name}.json"
    if os.environ.get("LATECOMER_GOLDEN") == "write":
        path.write_text(json.dumps(got) + "\n")
    assert got == json.loads(path.read_text())


def test_recorded(tmp_path: Path) -> None:
    trace = MODELS["sample-cost"]().trace(steps=100, seed=3)
    path = trace.save(tmp_path / "run.parquet")
    assert Recorded(path).trace() == trace
    assert Recorded(trace).trace(steps=30, seed=3) == trace.head(30)
    assert len(trace.head(30)) == 30
    with pytest.raises(ValueError, match="Invalid seed value: 4"):
        Recorded(trace).trace(seed=4)
    with pytest.raises(ValueError, match="Invalid steps value: 101"):
        Recorded(trace).trace(steps=101)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: DataDependent(0), ValueError, "Invalid workers value: 0"),
        (lambda: DataDependent(2.5), TypeError, "Invalid workers value: 2.5"),
        (lambda: DataDependent(3, 1.5), ValueError, "Invalid slow_share value: 1.5"),
        (lambda: DataDependent(3, math.nan), ValueError, "Invalid slow_share value: nan"),
        (lambda: DataDependent(3, 0.1, shares=(0.9, 0.1)), ValueError, "not both"),
        (lambda: DataDependent(3, shares=(0.5, 0.4)), ValueError, "add up to 0.9"),
        (lambda: DataDependent(3, shares=()), ValueError, "add up to 0"),
        (lambda: DataDependent(3, weights=(1, 2)), ValueError, "Got 2 weights for 3 workers"),
        (lambda: DataDependent(2, weights=(1, 0)), ValueError, "Invalid weight value: 0"),
        (lambda: WorkerSpeeds([]), ValueError, "Invalid number of durations value: 0"),
        (lambda: WorkerSpeeds([1.0, -1.0]), ValueError, "Invalid duration value: -1"),
        (lambda: WorkerSpeeds([1.0], "loud"), ValueError, "Invalid noise value: 'loud'"),
        (lambda: WorkerSpeeds([1.0], lambda g, n: np.zeros(n)).trace(5), ValueError, "array of 13 positive numbers"),
        (lambda: SampleCost(2, cost=(1.0,), slow_share=0.1), ValueError, "Got 1 costs for 2 groups"),
        (lambda: SampleCost(2, cost=(1.0, 2.0), slow_share=0.1, speeds=(1,)), ValueError, "Got 1 speeds for 2 workers"),
        (lambda: SampleCost(2, cost=lambda w, g, s: -1.0).trace(5), ValueError, "Invalid cost value: -1"),
        (lambda: SampleCost(2, cost=(1.0, 2.0), group_of=lambda s: s * 0 + 7).trace(5), ValueError, "from 0 to 1"),
        (lambda: Constant(2).trace(0), ValueError, "Invalid steps value: 0"),
        (lambda: Constant(2).trace(5, seed=-1), ValueError, "Invalid seed value: -1"),
        (
            lambda: DataDependent(3, shares=math.inf),
            TypeError,
            r"Invalid shares value: inf \(expected a list of numbers",
        ),
        (lambda: DataDependent(3, exact=2.5), TypeError, r"Invalid exact value: 2.5 \(expected True or False"),
        (lambda: SampleCost(2, cost="ab"), TypeError, "Invalid cost value: 'ab'"),
        (lambda: SampleCost(2, cost=(1.0, 2.0), speeds=True), TypeError, "Invalid speeds value: True"),
        (lambda: WorkerSpeeds([1.0], {}), ValueError, "Invalid noise value: {}"),
        (lambda: Constant(10**30), ValueError, "workers need .* GB of memory"),
        (lambda: Constant(2).trace(10**30), ValueError, "arrivals need .* GB of memory"),
    ],
)
def test_bad_models(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_whole_threshold_is_not_crossed_by_rounding() -> None:
    """weights 1 and 4, q = 0.2: worker 1 has tau = log(0.2)/log(0.2) = 1, so only a wait of 2 is slow."""
    trace = DataDependent(2, 0.2, weights=(1, 4), exact=False).trace(steps=20_000, seed=0)
    own = trace.worker == 1
    assert ((trace.group == 1) == (trace.delay >= 1))[own].all()
    assert trace.group[own].mean() == pytest.approx(0.2, abs=0.02)
