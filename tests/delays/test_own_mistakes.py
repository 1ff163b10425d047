"""Mistakes in a delay model or a policy of one's own: one sentence, with what returned what and what is expected."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import latecomer as lc
from latecomer.delays import ClockModel, DelayModel, SampleCost, WorkerSpeeds
from latecomer.delays.base import arrivals_trace
from latecomer.policy import Async, Decision, Policy, Synchronous


def clock(job: Any = (1.0, 0), **attributes: Any) -> ClockModel:
    """Return a model whose jobs are all this one, or a function's."""

    class Own(ClockModel):
        workers = 2

        def jobs(self, seed: int) -> Any:
            return job if callable(job) else lambda ticket, worker: job

    for name, value in attributes.items():
        setattr(Own, name, value)
    return Own()


RETURNED = "(expected its duration, a number of at least 0, and its group, 0: return 1.0, 0)"


@pytest.mark.parametrize(
    "job", [1.0, None, (1.0,), (1.0, 0, 2), ("a", 0), (-1.0, 0), (float("nan"), 0), (1.0, 1), (1.0, 0.5), "ab"]
)
@pytest.mark.parametrize("policy", [None, "synchronous"])
def test_a_job_that_is_no_job(job: Any, policy: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        clock(job).trace(steps=5, policy=policy)
    message = str(caught.value)
    assert message.startswith("The jobs of ")
    assert message.endswith(f"returned {job!r} for ticket 0 {RETURNED}")


def test_a_function_of_other_arguments_is_told_apart_from_an_error_in_it() -> None:
    with pytest.raises(TypeError, match=r"The jobs of .* cannot be called with a ticket and a worker: .*positional"):
        clock(lambda ticket: (1.0, 0)).trace(steps=5)
    with pytest.raises(TypeError, match=r"^unsupported operand"):
        clock(lambda ticket, worker: (ticket + "a", 0)).trace(steps=5)


def test_durations_of_numpy_are_numbers() -> None:
    assert clock((np.float32(0.5), np.int64(0))).trace(steps=3).end.tolist() == [0.5, 0.5, 1.0]
    assert clock((0, 0)).trace(steps=3).end.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"workers": "a"}, r"The workers of .*Own: Invalid workers value: 'a' \(expected a whole number, got str\)"),
        ({"workers": 0}, r"The workers of .*Own: Invalid workers value: 0 \(expected workers >= 1\)"),
        ({"workers": 2.0}, r"Invalid workers value: 2.0 \(expected a whole number, got float\)"),
        ({"shares": "a"}, r"Invalid shares value: 'a' \(expected a list of numbers\)"),
        ({"shares": (0.5, 0.1)}, r"Invalid shares: \[0.5, 0.1\] add up to 0.6 \(expected 1\)"),
        ({"jobs": lambda self, seed: 3}, r"jobs method of .* returned 3 \(expected a function of ticket and worker"),
    ],
)
def test_a_model_with_wrong_attributes(attributes: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        clock(**attributes).trace(steps=5)


def test_a_model_without_workers() -> None:
    class Alone(ClockModel):
        def jobs(self, seed: int) -> Any:
            return lambda ticket, worker: (1.0, 0)

    with pytest.raises(TypeError, match=r"Alone has no number of workers: set self.workers in its __init__"):
        Alone().trace(steps=5)


def ordered(**changes: Any) -> Any:
    class Own(DelayModel):
        def trace(self, steps: int, seed: int = 0, policy: Any = None) -> lc.Trace:
            given: dict[str, Any] = {"workers": 2, "seed": seed, "model": repr(self), "groups": ("all",)}
            given |= {"group": np.zeros(steps, dtype=np.int16), **changes}
            return arrivals_trace(given.pop("worker", np.arange(steps) % 2), policy, **given)

    return Own()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"worker": 3}, r"Invalid worker: 3 \(expected an array of whole numbers, the worker of every arrival\)"),
        ({"worker": [0.0, 1.0]}, r"Invalid worker: \[0.0, 1.0\] \(expected an array of whole numbers"),
        ({"worker": [[0], [0, 1]]}, r"Invalid worker: \[\[0\], \[0, 1\]\]"),
        ({"worker": []}, r"Invalid worker: \[\]"),
        ({"worker": [0, 1, 2, 0]}, r"Invalid worker of arrival 3: 2 \(expected 0 to 1\)"),
        ({"group": np.array([0, 0, 0, 1])}, r"Invalid group of arrival 4: 1 \(expected 0 to 0\)"),
        ({"group": np.zeros(3, int)}, r"There are 4 workers of arrivals and 3 groups \(expected as many\)"),
        ({"workers": "a"}, r"Invalid workers value: 'a' \(expected a whole number, got str\)"),
        ({"groups": ()}, r"Invalid groups: \(\) \(expected names, such as \('all',\)\)"),
        ({"groups": "all"}, r"Invalid groups value: 'all' \(expected a list of names\)"),
        ({"groups": (1,)}, r"Invalid groups: \(1,\)"),
        ({"model": 3}, r"Invalid model: 3 \(expected a description, such as repr\(self\)\)"),
        ({"seed": "a"}, r"Invalid seed value: 'a'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("policy", [None, lambda: Dropping()])
def test_an_order_that_is_none(changes: Any, words: str, policy: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        ordered(**changes).trace(4, policy=policy)


def test_an_order_may_be_a_list() -> None:
    assert ordered(worker=[0, 1, 1, 0], group=[0, 0, 0, 0]).trace(4).worker.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("returned", ["a", None, [1.0], "n", -1.0])
def test_a_noise_that_is_none(returned: Any) -> None:
    with pytest.raises(ValueError, match=r"The noise returned .* \(expected an array of \d+ positive numbers\)"):
        WorkerSpeeds([1.0, 2.0], noise=lambda generator, n: ["x"] * n if returned == "n" else returned).trace(steps=5)


@pytest.mark.parametrize("returned", ["a", 3, None, [0.5] * 11, [2] * 11, [-1] * 11])
def test_groups_that_are_none(returned: Any) -> None:
    with pytest.raises(ValueError, match=r"group_of returned .* \(expected an array with a group from 0 to 1 for each"):
        SampleCost(2, cost=(1.0, 2.0), group_of=lambda seeds: returned).trace(steps=10)


class Dropping(Policy):
    name = "dropping"

    def receive(self, ticket: Any, delay: int) -> Decision:
        return Decision("drop" if ticket.number % 2 else "apply")


def policy(**methods: Any) -> Policy:
    made = type("Own", (Async,), {"name": "own", **{name: lambda self, *_, v=v: v for name, v in methods.items()}})
    return made()


def traced(own: Any) -> None:
    SampleCost(3, cost=(1.0, 2.0)).trace(20, policy=own)


def trained(own: Any) -> None:
    lc.fit(lc.problems.quadratic(), method="momentum", lr=0.1, policy=own, engine="inline", workers=3, steps=20)


def served(own: Any) -> None:
    import torch

    x = torch.nn.Parameter(torch.zeros(2))
    server = lc.Server(lc.optim.Momentum([x], lr=0.1), workers=2, policy=own)
    tickets = [server.issue(0), server.issue(1)]
    server.receive(tickets[0], torch.ones(2))


@pytest.mark.parametrize("drive", [traced, trained, served])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"receive": "apply"}, r"returned 'apply' from receive \(expected a latecomer.policy.Decision\)"),
        ({"receive": None}, r"returned None from receive \(expected a latecomer.policy.Decision\)"),
        ({"cancel": 3}, r"The policy Own\(\) returned 3 from cancel \(expected a list of tickets\)"),
        ({"cancel": None}, r"returned None from cancel \(expected a list of tickets\)"),
        ({"cancel": "a"}, r"returned 'a' from cancel"),
        ({"cancel": np.array(3)}, r"returned array\(3\) from cancel"),
        ({"cancel": [3]}, r"returned 3 among the tickets to cancel \(expected some of the tickets that cancel"),
        ({"cancel": [lc.policy.Ticket(99, 0, 1, 0, 0)]}, r"cancels ticket 99, which is not in flight"),
    ],
)  # fmt: skip
def test_a_policy_that_answers_something_else(drive: Any, answer: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        drive(policy(**answer))


@pytest.mark.parametrize("drive", [traced, trained])
@pytest.mark.parametrize("answer", [None, "yes", 1])
def test_a_policy_that_does_not_say_who_may_start(drive: Any, answer: Any) -> None:
    with pytest.raises(TypeError, match=rf"returned {answer!r} from may_start \(expected True or False\)"):
        drive(policy(may_start=answer))
    drive(policy(may_start=np.True_))


class Twice(Async):
    name = "twice"

    def cancel(self, in_flight: Any, version: int) -> Any:
        return [*in_flight, *in_flight]


@pytest.mark.parametrize("drive", [traced, served])
def test_a_ticket_is_cancelled_once(drive: Any) -> None:
    with pytest.raises(ValueError, match=r"cancels ticket \d+, which is not in flight .*each once"):
        drive(Twice())


@pytest.mark.parametrize(("weight", "words"), [("a", "got str"), (None, "got NoneType"), (-1, "0 <= weight < inf")])
def test_the_weight_of_a_decision_is_a_number(weight: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"Invalid weight value: .*{words}"):
        Decision("hold", weight=weight)
    assert Decision("hold", weight=np.float32(0.5)).weight == 0.5


def test_a_policy_that_cannot_be_copied() -> None:
    own = Dropping()
    own.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(
        TypeError, match=r"The policy Dropping cannot be copied \(.*lock.*\), and every run has its own"
    ):
        traced(own)


def test_very_many_workers_take_little_memory() -> None:
    """A thousand durations were drawn at once for a worker, of which it may need one: 32 KB each."""
    import tracemalloc

    speeds = [1.0 + (i % 7) for i in range(2000)]
    tracemalloc.start()
    WorkerSpeeds(speeds, "exponential").trace(50, policy=Synchronous)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2000 * 6000


def test_a_workers_nth_job_is_the_same_under_every_policy() -> None:
    """Durations are drawn in blocks that grow; the blocks must not show."""
    model = WorkerSpeeds([1.0, 2.0], "lognormal")
    job = model.jobs(3)
    drawn = [job(2 * i, 0)[0] for i in range(3000)]
    trace = model.trace(6000, seed=3)
    mine = trace.end[trace.worker == 0][:3000]
    assert np.allclose(np.diff(mine, prepend=0.0), drawn[: len(mine)], rtol=0, atol=1e-9)


class Counting(Policy):
    name = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.count, self.seen = 0, list[int]()


class CountsArrivals(Counting):
    def receive(self, ticket: Any, delay: int) -> Decision:
        self.count += 1
        return Decision("drop" if self.count % 3 == 0 else "apply")


class Remembers(Counting):
    def receive(self, ticket: Any, delay: int) -> Decision:
        self.seen.append(delay)
        return Decision("apply")


class AsksOnce(Counting):
    def receive(self, ticket: Any, delay: int) -> Decision:
        return Decision("apply")

    def may_start(self, in_flight: int) -> bool:
        self.asked = True
        return True


class LosesState(Counting):
    def receive(self, ticket: Any, delay: int) -> Decision:
        self.state = None  # type: ignore[assignment]
        return Decision("apply")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (CountsArrivals, r"CountsArrivals changes self\.count in receive.*keep counters in self\.state\['count'\]"),
        (Remembers, r"Remembers changes self\.seen in receive"),
        (AsksOnce, r"AsksOnce changes self\.asked in may_start"),
        (LosesState, r"set its state to None in receive \(expected a dict\)"),
    ],
)
def test_counters_that_no_checkpoint_holds(policy: type[Policy], words: str) -> None:
    """A run that resumes would make a new policy, with other decisions."""
    with pytest.raises((TypeError, ValueError), match=words):
        WorkerSpeeds([1.0, 2.0]).trace(steps=9, policy=policy)
    with pytest.raises((TypeError, ValueError), match=words):
        lc.fit(lc.problems.quadratic(), method="momentum", policy=policy, lr=0.05, steps=9, engine="inline")
