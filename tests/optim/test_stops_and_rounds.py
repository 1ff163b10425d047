"""Ringmaster and Rennala with stops, and synchronous rounds, on arbitrary durations and events."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import latecomer as lc
from latecomer._util.seeds import sample_seeds
from latecomer.optim import AsyncSGD
from latecomer.optim.reference import ringmaster_stop, synchronous
from latecomer.policy import RingmasterStop
from support import relative

few = settings(max_examples=40)


class InTurn(lc.delays.ClockModel):
    """The n-th job of a worker takes the n-th of its durations."""

    def __init__(self, durations: list[list[float]]) -> None:
        self.durations, self.workers = durations, len(durations)

    def jobs(self, seed: int) -> Any:
        drawn = [itertools.cycle(own) for own in self.durations]
        return lambda ticket, worker: (next(drawn[worker]), 0)


DURATIONS = st.lists(st.lists(st.sampled_from([0.25, 1.0, 1.5, 2.0, 7.0]), min_size=1, max_size=6), min_size=1,
                     max_size=5)  # fmt: skip


RULES = st.one_of(
    st.sampled_from([1, 2, 3, 5, math.inf]).map(lambda R: ("ringmaster-stop", {"R": R})),
    st.integers(1, 6).map(lambda S: ("rennala-stop", {"S": S})),
)


@few
@given(durations=DURATIONS, rule=RULES, updates=st.integers(1, 30))
def test_rules_with_stops_on_arbitrary_durations(
    durations: list[list[float]], rule: tuple[str, dict[str, Any]], updates: int
) -> None:
    """Stopped jobs start again at the newest point, at once: the same iterate, time and number of stops."""
    problem = lc.problems.quadratic(shares=(1.0, 0.0))
    name, options = rule
    policy = lc.policy.as_policy(name, len(durations), options)
    trace = InTurn(durations).trace(updates * options.get("S", 1), 5, policy=policy)
    samples = sample_seeds(5, len(trace.columns["ticket"]) + len(durations)).tolist()

    def grad(x: Tensor, n: int) -> Tensor:
        out = torch.empty_like(x)
        problem.gradient(x, problem.batch(samples[n], 0), out)
        return out

    method, own = (name, options) if name in lc.optim.METHODS else ("async-sgd", {"policy": policy})
    found = lc.simulate(problem, method, trace, lr=0.05, **own)
    x1 = torch.full((10,), 5.0, dtype=torch.float64)
    x, now, stopped = ringmaster_stop(x1, durations, grad, lr=0.05, updates=updates, **{"R": 1, **options})
    assert relative(found.state["x"], x) < 1e-12
    assert found.final["update"] == updates
    assert trace.end[-1] == pytest.approx(now)
    assert (trace.columns["status"] == lc.trace.STATUSES.index("cancelled")).sum() == stopped
    assert trace.delay.max() < options.get("R", 1)


KINDS = st.sampled_from(["arrive", "arrive", "arrive", "lose", "join", "leave"])
EVENTS = st.lists(st.tuples(KINDS, st.integers(0, 9)), min_size=1, max_size=40)


@few
@given(events=EVENTS, R=st.sampled_from([1, 2, 3, 5]), restored_at=st.integers(0, 40))
def test_ringmaster_with_stops_need_not_look_at_all_jobs(
    events: list[tuple[str, int]], R: int, restored_at: int
) -> None:
    """It finds all that are stale, and looks at one job more than it cancels.

    For versions never decrease in the order of jobs, whoever dies, joins or leaves.
    """

    class Checked(RingmasterStop):
        def cancel(self, in_flight: Any, version: int) -> Any:
            looked: list[Any] = []
            found = super().cancel((looked.append(t) or t for t in in_flight), version)
            assert list(found) == [t for t in in_flight if version - t.version >= self.R]
            assert len(looked) <= len(found) + 1
            return found

    def new() -> lc.Server:
        return lc.Server(AsyncSGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), workers=4, policy=Checked(4, R))

    server = new()
    for n, (what, which) in enumerate(events):
        if n == restored_at:
            state, server = server.state_dict(), new()
            server.load_state_dict(state)
        workers = sorted(server._assigned)
        for worker in workers:
            if server.holds(worker) is None:
                server.issue(worker)
        chosen = workers[which % len(workers)]
        ticket = server.holds(chosen)
        if what == "arrive":
            server.receive(ticket, torch.ones(1))
        elif what == "lose":
            server.lose(ticket)
        elif what == "join":
            server.join()
        elif len(workers) > 1:
            server.leave(chosen)
        versions = [ticket.version for ticket in server.in_flight]
        assert versions == sorted(versions)


@pytest.mark.parametrize("durations", [[1.0, 1.0, 1.0], [1.0, 5.0, 2.5]])
def test_synchronous_mini_batches_are_sgd_on_the_mean_whatever_the_durations(durations: list[float]) -> None:
    problem = lc.problems.quadratic()
    trace = lc.delays.WorkerSpeeds(durations, "exponential").trace(12, 3, policy="synchronous")
    by_ticket = dict(
        zip(trace.ticket.tolist(), zip(trace.sample.tolist(), trace.group.tolist(), strict=True), strict=True)
    )

    def grad(x: Tensor, n: int) -> Tensor:
        out = torch.empty_like(x)
        problem.gradient(x, problem.batch(*by_ticket[n]), out)
        return out

    found = lc.simulate(problem, "sync-minibatch", trace, lr=0.05).state["x"]
    expected = synchronous(torch.full((10,), 5.0, dtype=torch.float64), 4, grad, lr=0.05, workers=3)
    assert relative(found, expected) < 1e-12


@few
@given(durations=DURATIONS, rounds=st.integers(1, 5))
def test_synchronous_mini_batches_on_arbitrary_durations(durations: list[list[float]], rounds: int) -> None:
    """M jobs per round, which lasts until the last of them ends, and SGD on their mean."""
    workers = len(durations)
    problem = lc.problems.quadratic(shares=(1.0, 0.0))
    trace = InTurn(durations).trace(rounds * workers, 5, policy="synchronous")
    samples = sample_seeds(5, rounds * workers).tolist()

    def grad(x: Tensor, n: int) -> Tensor:
        out = torch.empty_like(x)
        problem.gradient(x, problem.batch(samples[n], 0), out)
        return out

    found = lc.simulate(problem, "sync-minibatch", trace, lr=0.05, evaluate_every=1000)
    x1 = torch.full((10,), 5.0, dtype=torch.float64)
    assert relative(found.state["x"], synchronous(x1, rounds, grad, lr=0.05, workers=workers)) < 1e-12
    assert found.final["update"] == rounds
    assert set(trace.delay.tolist()) == {0}
    slowest = [max(own[r % len(own)] for own in durations) for r in range(rounds)]
    assert trace.end[workers - 1 :: workers].tolist() == list(itertools.accumulate(slowest))
