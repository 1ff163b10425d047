"""Traces made with a policy: what a server with that policy would do, so a simulation follows them to the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import latecomer as lc
from delay_models import MODELS
from latecomer.delays import Constant, DataDependent, Recorded, SampleCost, WorkerSpeeds
from latecomer.policy import Async, Decision, Policy, Synchronous, Ticket, as_policy

ACTIONS = ("apply", "drop", "hold", "flush")
CLOCKS = [name for name in MODELS if name.startswith(("worker-speeds", "sample-cost"))]
ORDERS = [name for name in MODELS if name not in CLOCKS]


class Scripted(Policy):
    """Does what a list says, over and over; cancels what is too old; lets only so many run."""

    name = "scripted"

    def __init__(self, actions: Sequence[Any] = ("apply",), oldest: int | None = None, most: int = 99) -> None:
        super().__init__()
        self.actions, self.oldest, self.most = tuple(actions), oldest, most

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        n = self.state["n"] = self.state.get("n", -1) + 1
        return Decision(self.actions[n % len(self.actions)], weight=1.0 + delay)

    def cancel(self, in_flight: Sequence[Ticket], version: int) -> list[Ticket]:
        return [t for t in in_flight if self.oldest is not None and version - t.version > self.oldest]

    def may_start(self, in_flight: int) -> bool:
        return in_flight < self.most


policies = st.builds(
    Scripted,
    st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=7).map(lambda a: [*a, "apply"]),
    st.none() | st.integers(0, 4),
    st.integers(1, 5),
)


@pytest.mark.parametrize("name", CLOCKS)
@given(policy=policies, seed=st.integers(0, 5))
def test_a_trace_of_any_policy_is_what_a_server_with_it_does(name: str, policy: Scripted, seed: int) -> None:
    """Tickets, versions, updates, cancellations and pauses agree, or the simulation would raise or record others."""
    trace = MODELS[name]().trace(60, seed, policy=policy)
    assert trace.header.policy == "scripted"
    run = lc.simulate(lc.problems.quadratic(), "async-sgd", trace, policy=policy, lr=0.01, evaluate_every=60)
    for column in trace.columns.keys() - {"end", "start"}:
        np.testing.assert_array_equal(run.trace.columns[column], trace.columns[column], err_msg=column)
    assert run.server.optimizer.t == trace.update.max()
    assert policy.state == {}, "the caller's policy is not the one that counts"


@pytest.mark.parametrize("name", ORDERS)
@given(actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=7), seed=st.integers(0, 5))
def test_models_without_a_clock_take_policies_that_only_drop_and_hold(name: str, actions: list[str], seed: int) -> None:
    model, policy = MODELS[name](), Scripted([*actions, "apply"])
    trace = model.trace(60, seed, policy=policy)
    plain = model.trace(60, seed)
    assert trace.worker.tolist() == plain.worker.tolist()  # the order and the samples are the model's
    assert trace.sample.tolist() == plain.sample.tolist()
    problem = lc.problems.quadratic(centres=(0.0, 1.0, 2.0), shares=(0.5, 0.3, 0.2))
    run = lc.simulate(problem, "momentum", trace, policy=policy, lr=0.01, evaluate_every=60)
    assert run.trace.digest == trace.digest


@pytest.mark.parametrize("name", MODELS)
def test_the_policy_that_applies_everything_changes_nothing(name: str) -> None:
    model = MODELS[name]()
    plain = model.trace(300, 3)
    assert plain == model.trace(300, 3, policy="async") == model.trace(300, 3, policy=Async)
    # Another name for it is played event by event, to the same schedule.
    played = model.trace(300, 3, policy=Scripted())
    for column in plain.columns:
        np.testing.assert_array_equal(played.columns[column], plain.columns[column], err_msg=column)


def test_policies_share_durations_and_samples() -> None:
    """A ticket's sample, and on the same worker its duration, are the same under every policy."""
    model = SampleCost(workers=3, cost=(1.0, 7.0), slow_share=0.3)
    plain, other = model.trace(200, 0), model.trace(200, 0, policy=Scripted(["apply", "hold"], oldest=2))
    duration = {int(t): round(e - s, 9) for t, s, e in zip(plain.ticket, plain.start, plain.end, strict=True)}
    for t, s, e in zip(other.ticket, other.start, other.end, strict=True):
        assert duration.get(int(t), round(e - s, 9)) == round(e - s, 9)
    assert (other.columns["status"] == lc.trace.STATUSES.index("cancelled")).sum() > 5


def test_a_cancelled_job_frees_its_worker_at_once() -> None:
    """One worker needs 10 s and is cancelled as soon as two updates were made without it."""
    trace = WorkerSpeeds([1.0, 10.0]).trace(6, 0, policy=Scripted(oldest=1))
    assert trace.worker.tolist() == [0] * 6
    assert trace.columns["start"][trace.columns["worker"] == 1].tolist() == [0.0, 2.0, 4.0]


class StopsWorker2(Policy):
    """Cancels the job of worker 2 at every arrival."""

    name = "stops-worker-2"

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        return Decision("apply")

    def cancel(self, in_flight: Sequence[Ticket], version: int) -> list[Ticket]:
        return [ticket for ticket in in_flight if ticket.worker == 2]


def test_a_job_may_be_cancelled_twice_at_one_time() -> None:
    """Two arrivals at one time: the worker's second and third job start and would end together."""
    trace = WorkerSpeeds([1.0, 1.0, 1.0]).trace(6, 0, policy=StopsWorker2())
    assert trace.worker.tolist() == [0, 1] * 3
    assert trace.columns["start"][trace.columns["worker"] == 2].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 3.0]


def test_synchronous_rounds_last_as_long_as_their_slowest_job() -> None:
    trace = WorkerSpeeds([1.0, 2.0, 3.0]).trace(9, 0, policy="synchronous")
    assert trace.update.tolist() == [0, 0, 1, 0, 0, 2, 0, 0, 3]
    assert trace.end.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert set(trace.delay.tolist()) == {0}
    run = lc.simulate(lc.problems.quadratic(), "momentum", trace, policy="synchronous", lr=0.01)
    assert run.final["update"] == 3
    assert run.final["time"] == 9.0


@pytest.mark.parametrize("name", ["synchronous", "rennala", "async-minibatch", "fedbuff"])
def test_by_default_an_update_takes_as_many_contributions_as_there_are_workers(name: str) -> None:
    policy = as_policy(name, workers=5)
    tickets = [Ticket(number, worker=number % 5, version=1, seen=0, sample=0) for number in range(10)]
    assert [policy.receive(ticket, delay=0).action for ticket in tickets] == [*["hold"] * 4, "flush"] * 2


@pytest.mark.parametrize(
    ("model", "policy", "words"),
    [
        (DataDependent(3, 0.1), Synchronous, r"has no clock.*lets worker \d wait after 1 arrivals: use a delay"),
        (Constant(3), Scripted(oldest=0), r"cancels the job of worker 1 after 1 arrivals"),
        (WorkerSpeeds([1.0]), Scripted(most=0), r"lets no worker start while nothing is in flight"),
        (WorkerSpeeds([1.0]), "ring", r"Unknown policy 'ring' \(expected one of async, synchronous, ringmaster"),
        (WorkerSpeeds([1.0]), Scripted(["skip"]), r"Invalid action value: 'skip'"),
        (Recorded(Constant(2).trace(9)), Synchronous(2), r"was made with policy 'async'"),
    ],
)  # fmt: skip
def test_a_policy_that_a_model_cannot_follow_gets_a_sentence(model: Any, policy: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        model.trace(9, 0, policy=policy)


class Nameless(Policy):
    def receive(self, ticket: Ticket, delay: int) -> Decision:
        return Decision("apply")


class Stateless(Nameless):
    name = "stateless"

    def __init__(self) -> None:
        pass


class Impostor(Nameless):
    name = "async"


class Asks(Nameless):
    name = "asks"

    def __init__(self, threshold: int) -> None:
        super().__init__()


class Speechless(Nameless):
    name = "speechless"

    def receive(self, ticket: Ticket, delay: int) -> Any:
        return "apply"


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Nameless, "has no name: add name"),
        (Stateless, r"has no state: call super\(\).__init__\(\)"),
        (Impostor, "has the name 'async' of another policy"),
        (Asks, r"needs a value for 'threshold': pass policy=Asks\(threshold=...\)"),
        (3, "Invalid policy: 3"),
        (dict, "Invalid policy"),
        (Speechless, "returned 'apply' from receive .expected a latecomer.policy.Decision"),
    ],
)
def test_what_is_not_a_policy_gets_a_sentence_everywhere(policy: Any, words: str) -> None:
    problem, trace = lc.problems.quadratic(), Constant(2).trace(9)
    with pytest.raises((ValueError, TypeError), match=words):
        WorkerSpeeds([1.0, 2.0]).trace(9, 0, policy=policy)
    with pytest.raises((ValueError, TypeError), match=words):
        lc.fit(problem, policy=policy, lr=0.1, engine="inline", steps=9)
    if policy is not Speechless:
        with pytest.raises((ValueError, TypeError), match=words):
            lc.simulate(problem, "momentum", trace, policy=policy, lr=0.1)


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_policy_that_drops_holds_cancels_and_waits_runs_resumes_and_replays(engine: str, tmp_path: Any) -> None:
    problem, policy = lc.problems.quadratic(), Scripted(["apply", "drop", "hold", "flush"], oldest=0, most=2)
    steps = 40 if engine == "inline" else 8
    given: dict[str, Any] = {
        "method": "catch-up", "lr": 0.05, "policy": policy, "workers": 3, "engine": engine, "steps": steps,
        "record": tmp_path / "run.parquet",
    }  # fmt: skip
    if engine == "inline":

        def at_half(done: int, total: int) -> None:
            if done == steps // 2:
                raise RuntimeError("enough")

        with pytest.raises(RuntimeError, match="enough"):
            lc.fit(problem, **given, checkpoint=tmp_path / "ckpt", evaluate_every=5, progress=at_half)
        run = lc.fit(problem, **given, checkpoint=tmp_path / "ckpt", evaluate_every=5)
        assert 0 < run.resumed_at < steps
    else:
        run = lc.fit(problem, **given)
    status = run.trace.columns["status"]
    assert {lc.trace.STATUSES[code] for code in status if code >= 0} >= {"applied", "dropped", "held", "cancelled"}
    assert run.deaths >= 1, "a worker whose job is cancelled is started again"
    assert run.final["update"] == steps // 2
    again = lc.training.replay(run.record, problem, policy=policy)
    assert again.difference == 0.0, again.verdict
    assert torch.equal(again.run.state["x"], run.state["x"])
    with pytest.raises(
        ValueError, match="made with policy 'scripted', which is not one of the library's: pass policy="
    ):
        lc.training.replay(run.record, problem)
