"""The server counts right, refuses what it should without changing anything, and loses nothing."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latecomer import Server
from latecomer._util.seeds import sample_seeds
from latecomer.optim import AsyncSGD, OrderedMomentum
from latecomer.policy import Async, Decision, Policy, Ticket
from latecomer.trace import STATUSES
from support import KINDS, everything, make, same, server, vector


def test_tickets_versions_and_delays() -> None:
    s = server("ordered-momentum")
    first = [s.issue(w) for w in range(3)]
    assert [(t.number, t.version, t.seen) for t in first] == [(0, 1, 0), (1, 1, 0), (2, 1, 0)]
    assert [t.sample for t in first] == sample_seeds(0, 3).tolist()
    assert s.receive(first[1], vector()).delay == 0
    again = s.issue(1)
    assert (again.number, again.version, again.seen) == (3, 2, 1)
    outcomes = [s.receive(t, vector()) for t in (first[0], again, first[2])]
    assert [(o.arrival, o.delay, o.status) for o in outcomes] == [(2, 1, "zero"), (3, 1, "applied"), (4, 3, "zero")]
    assert s.optimizer.t == s.arrivals == 4
    trace = s.trace()
    assert trace.delay.tolist() == [0, 1, 1, 3]
    assert trace.status.tolist() == ["applied", "zero", "applied", "zero"]


@pytest.mark.parametrize("name", KINDS)
def test_the_stored_point_is_the_iterate_of_the_version(name: str) -> None:
    s = server(name)
    x = s._params[0]
    iterates = [x.detach().clone()]
    tickets = [s.issue(w) for w in range(3)]
    for t in range(12):
        ticket = tickets.pop((5 * t) % 3)
        points = s.point(ticket)
        assert len(points) == s.optimizer.points
        assert torch.equal(points[0][0], iterates[ticket.version - 1])
        if len(points) == 2:
            assert torch.equal(points[1][0], iterates[max(0, ticket.version - 2)])
        s.receive(ticket, vector(0.1 * t))
        iterates.append(x.detach().clone())
        tickets.append(s.issue(ticket.worker))


REFUSED = [
    (lambda s, t: s.receive(t["back"], vector()), ValueError, "Ticket 0 was already returned or cancelled"),
    (lambda s, t: s.receive(Ticket(99, 0, 1, 0, 0), vector()), ValueError, "Ticket 99 was never issued"),
    (lambda s, t: s.receive("ticket", vector()), TypeError, "Invalid ticket: 'ticket'"),
    (lambda s, t: s.receive(Ticket(1, 2, 1, 0, t["out"].sample), vector()), ValueError, "not with worker 2"),
    (lambda s, t: s.receive(t["lost"], vector()), ValueError, "Ticket 2 is not with worker 2"),
    (lambda s, t: s.receive(t["out"], torch.ones(5, dtype=torch.float64)), ValueError, r"of shape \(5,\)"),
    (lambda s, t: s.receive(t["out"], torch.ones(4)), ValueError, "is torch.float32"),
    (lambda s, t: s.receive(t["out"], [vector(), vector()]), ValueError, "needs 1 tensors, got 2"),
    (lambda s, t: s.receive(t["out"], [None]), TypeError, "is a NoneType, not a tensor"),
    (lambda s, t: s.receive(t["out"], lambda: torch.ones(5)), ValueError, r"of shape \(5,\)"),
    (lambda s, t: s.issue(1), ValueError, "Worker 1 already has ticket 1"),
    (lambda s, t: s.issue(7), ValueError, r"There is no worker 7: the workers are \[0, 1, 2\]"),
    (lambda s, t: s.leave(7), ValueError, "There is no worker 7"),
    (lambda s, t: s.lose(t["back"]), ValueError, "already returned or cancelled"),
    (lambda s, t: s.cancel(t["lost"]), ValueError, "not with worker 2"),
    (lambda s, t: s.point(t["back"]), ValueError, "already returned or cancelled"),
]


@pytest.mark.parametrize(("action", "error", "message"), REFUSED)
def test_a_call_that_raises_changes_nothing(action: Any, error: type[Exception], message: str) -> None:
    s = server()
    tickets = dict(zip(("back", "out", "lost"), (s.issue(w) for w in range(3)), strict=True))
    s.receive(tickets["back"], vector())
    s.lose(tickets["lost"])
    before = everything(s)
    with pytest.raises(error, match=message):
        action(s, tickets)
    assert same(before, everything(s))


def test_a_computation_that_fails_leaves_the_ticket_out() -> None:
    s = server()
    ticket = s.issue(0)
    before = everything(s)

    def fails() -> torch.Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        s.receive(ticket, fails)
    assert same(before, everything(s))
    s.receive(ticket, vector())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", KINDS)
def test_non_finite_contributions_count_and_weigh_nothing(name: str, bad: float) -> None:
    s = server(name)
    for w in range(3):
        s.issue(w)
    s.receive(s.in_flight[0], vector())
    x = s._params[0].detach().clone()
    s.issue(0)
    broken = vector()
    broken[2] = bad
    outcome = s.receive(s.in_flight[-1], broken)
    assert (outcome.status, outcome.finite, outcome.arrival) == ("zero", False, 2)
    assert s.non_finite == 1
    assert torch.isfinite(s._params[0]).all()
    if name in ("async-sgd", "delay-adaptive", "delay-filtered"):
        assert torch.equal(s._params[0], x)
    assert s.trace().status.tolist() == ["applied", "zero"]


def test_the_workers_word_on_finiteness_is_taken() -> None:
    s = server()
    assert s.receive(s.issue(0), vector(), finite=False).status == "zero"
    huge = torch.full((4,), 1e308, dtype=torch.float64)  # its sum overflows, it does not
    assert s.receive(s.issue(0), huge).finite


def test_a_dropped_gradient_is_never_computed() -> None:
    s = server("delay-filtered", workers=5)
    tickets = [s.issue(w) for w in range(5)]
    computed = []
    for i, ticket in enumerate(tickets):
        s.receive(ticket, lambda i=i: computed.append(i) or vector())
    assert computed == [0, 1, 2]  # threshold 2.5
    assert s.trace().status.tolist() == ["applied"] * 3 + ["dropped"] * 2
    assert s.optimizer.dropped == 2
    s = server("ordered-momentum", workers=3)
    tickets = [s.issue(w) for w in range(3)]
    for i, ticket in enumerate(tickets):
        s.receive(ticket, lambda i=i: computed.append(10 + i) or vector())
    assert computed[3:] == [10]  # Algorithm 1 uses zero for the other two


def test_a_lost_ticket_is_issued_again_as_it_was() -> None:
    s = server("ordered-momentum")
    tickets = [s.issue(w) for w in range(3)]
    s.receive(tickets[0], vector())
    point = s.point(tickets[1])[0][0].clone()
    s.lose(tickets[1])
    assert s.workers == 3
    again = s.issue(0)
    assert (again.number, again.version, again.sample, again.worker) == (1, 1, tickets[1].sample, 0)
    assert torch.equal(s.point(again)[0][0], point)
    fresh = s.issue(1)
    assert fresh.number == 3
    s.receive(again, vector())
    trace = s.trace()
    assert trace.header.strict is False
    assert trace.worker.tolist() == [0, 0]
    assert trace.columns["ticket"].tolist() == [0, 1, 2, 1, 3]
    assert trace.columns["worker"].tolist() == [0, 1, 2, 0, 1]
    assert [STATUSES[code] if code >= 0 else "" for code in trace.columns["status"]] == [
        "applied",
        "lost",
        "",
        "zero",
        "",
    ]
    assert trace.in_flight.tolist() == [2, 2]  # the lost one is still out


def test_a_replacement_makes_up_for_the_version_that_got_no_ticket() -> None:
    s = server("ordered-momentum")
    tickets = {w: s.issue(w) for w in range(3)}
    versions = []

    def arrive(worker: int) -> None:
        s.receive(tickets[worker], vector())
        tickets[worker] = s.issue(worker)
        versions.append(tickets[worker].version)

    for worker in range(3):
        arrive(worker)
    s.lose(tickets[0])  # version 2 ...
    arrive(1)  # ... goes to this worker, which gets no ticket at version 5
    arrive(2)
    tickets[0] = s.issue(0)
    versions.append(tickets[0].version)
    assert not tickets[0].zero
    assert versions == [2, 3, 4, 2, 6, 6]


def test_workers_that_join_later_start_with_weight_zero_and_leaving_loses_nothing() -> None:
    s = server(workers=2)
    a, b = s.issue(0), s.issue(1)
    s.receive(a, vector())
    newcomer = s.join()
    assert (newcomer, s.workers) == (2, 3)
    ticket = s.issue(newcomer)
    assert ticket.zero
    x = s._params[0].detach().clone()
    assert s.receive(ticket, lambda: pytest.fail("its gradient is not needed")).status == "zero"
    assert torch.equal(s._params[0], x)
    assert not s.issue(newcomer).zero
    s.leave(1)
    assert s.workers == 2
    assert s.issue(0).number == b.number
    s.trace()


def test_a_worker_that_joins_before_the_first_arrival_is_like_the_others() -> None:
    s = server(workers=1)
    s.issue(0)
    assert not s.issue(s.join()).zero
    assert s.trace().header.strict


# ---- other policies: the interface that later ones need -------------------------------------------------------------


class Drop(Policy):
    """Drop what is later than one update; it does not count as an update."""

    name = "drop"

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        return Decision("drop" if delay > 1 else "apply")


class Mean(Policy):
    """Hold three contributions, apply their mean."""

    name = "mean"

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        self.state["n"] = self.state.get("n", 0) + 1
        return Decision("flush" if self.state["n"] % 3 == 0 else "hold", weight=float(ticket.number + 1))


class Impatient(Async):
    """Call off every job that is two versions behind."""

    name = "impatient"

    def cancel(self, in_flight: Any, version: int) -> list[Ticket]:
        return [t for t in in_flight if version - t.version >= 2]


def test_a_policy_cannot_cancel_a_ticket_whose_worker_is_gone() -> None:
    """It is not offered: the ticket waits for another worker, and is cancelled when that one has it."""
    s = server(workers=3, policy=Impatient())
    old, *others = (s.issue(worker) for worker in range(3))
    s.lose(old)
    assert [s.receive(ticket, vector(0.1)).cancelled for ticket in others] == [(), ()]
    again, new = s.issue(1), s.issue(2)
    assert (again.number, again.version) == (old.number, old.version)
    assert s.receive(new, vector(0.1)).cancelled == (again,)


def test_dropping_is_an_arrival_and_no_update() -> None:
    s = server(workers=4, policy=Drop())
    tickets = [s.issue(w) for w in range(4)]
    outcomes = [s.receive(t, lambda: vector()) for t in tickets]
    assert [o.status for o in outcomes] == ["applied", "applied", "dropped", "dropped"]
    assert (s.arrivals, s.optimizer.t) == (4, 2)
    following = s.issue(0)
    assert (following.version, following.seen) == (3, 4)
    s.receive(following, vector())
    assert s.trace().delay.tolist() == [0, 1, 2, 2, 0]


def test_hold_and_flush() -> None:
    s = server(workers=3, policy=Mean())
    values = [1.0, 2.0, 6.0]
    outcomes = [s.receive(s.issue(w), vector(v)) for w, v in enumerate(values)]
    assert [o.status for o in outcomes] == ["held", "held", "applied"]
    mean = (1 * 1.0 + 2 * 2.0 + 3 * 6.0) / 6
    torch.testing.assert_close(s._params[0].detach(), 1 - 0.1 * vector(mean))
    assert (s.arrivals, s.optimizer.t) == (3, 1)
    before = everything(s)
    ticket = s.issue(0)
    issued = everything(s)
    with pytest.raises(ValueError, match="of shape"):
        s.receive(ticket, torch.ones(9, dtype=torch.float64))
    assert same(issued, everything(s))  # the policy's own counter too
    assert before["policy"] == issued["policy"]


def test_cancelling() -> None:
    s = server(workers=3, policy=Impatient())
    tickets = [s.issue(w) for w in range(3)]
    s.receive(tickets[0], vector())
    s.receive(s.issue(0), vector())
    assert [t.number for t in s.in_flight] == []
    trace = s.trace()
    assert trace.columns["status"].tolist() == [0, 4, 4, 0]
    assert trace.columns["ended"].tolist() == [-1, 2, 2, -1]
    assert trace.in_flight.tolist() == [2, 2]
    with pytest.raises(ValueError, match="already returned or cancelled"):
        s.receive(tickets[1], vector())
    assert s.issue(1).version == 3


@pytest.mark.parametrize("name", KINDS)
@given(order=st.lists(st.integers(0, 2), min_size=1, max_size=20), cut=st.integers(0, 19))
def test_a_resumed_server_goes_on_bit_for_bit(name: str, order: list[int], cut: int) -> None:
    straight, broken = server(name), server(name)
    for s in (straight, broken):
        for w in range(3):
            s.issue(w)
    for t, worker in enumerate(order):
        if t == cut:
            state, broken = copy.deepcopy(broken.state_dict()), server(name)
            broken.load_state_dict(state)
        for s in (straight, broken):
            ticket = next(ticket for ticket in s.in_flight if ticket.worker == worker)
            s.receive(ticket, s.point(ticket)[0][0] * 0.1 + t)
            s.issue(worker)
    assert same(straight.state_dict(), broken.state_dict())


def test_a_foreign_state_is_refused() -> None:
    s = server()
    state = everything(s)
    for other, message in [
        (server(policy=Mean()), "policy 'async'"),
        (server(seed=4), "seed 0"),
        (
            Server(AsyncSGD([torch.nn.Parameter(torch.ones(3))], lr=0.1), workers=3),
            "parameters in the state have shapes",
        ),
    ]:
        before = everything(other)
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(state)
        assert same(before, everything(other))


def test_bad_servers() -> None:
    x = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(TypeError, match="expected one of latecomer"):
        Server(torch.optim.SGD([x], lr=0.1), workers=2)
    with pytest.raises(ValueError, match="Invalid workers value: 0"):
        Server(AsyncSGD([x], lr=0.1), workers=0)
    opt = OrderedMomentum([x], lr=0.1)
    x.grad = torch.ones(2)
    opt.step()
    with pytest.raises(ValueError, match="has already counted 1 arrivals"):
        Server(opt, workers=2)


# ---- what a wrong call must not do ----------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [-1, 1, 5, 0.5])
def test_a_group_that_does_not_exist_is_refused(group: Any) -> None:
    s = server()
    ticket = s.issue(0)
    before = everything(s)
    with pytest.raises((ValueError, TypeError), match="Invalid group value"):
        s.receive(ticket, vector(), group=group)
    assert same(before, everything(s))


def test_a_clock_only_goes_forward() -> None:
    s = server(clock="real")
    first, second = s.issue(0, at=1.0), s.issue(1, at=1.5)
    s.receive(first, vector(), at=5.0)
    before = everything(s)
    for at in (4.99, math.nan):
        with pytest.raises(ValueError, match="Invalid at value"):
            s.receive(second, vector(), at=at)
        with pytest.raises(ValueError, match="Invalid at value"):
            s.issue(0, at=at)
    assert same(before, everything(s))
    s.receive(second, vector(), at=5.0)
    assert s.trace().end.tolist() == [5.0, 5.0]
    with pytest.raises(ValueError, match="Invalid clock value: 'sundial'"):
        server(clock="sundial")


def test_a_flush_by_a_ticket_of_weight_zero_applies_what_is_held() -> None:
    s = server(workers=2, policy=Mean())
    s.receive(s.issue(0), vector(1.0))
    s.receive(s.issue(1), vector(4.0))
    newcomer = s.join()
    ticket = s.issue(newcomer)
    assert ticket.zero
    assert s.receive(ticket, vector(math.nan)).status == "applied"
    torch.testing.assert_close(s._params[0].detach(), 1 - 0.1 * vector((1 * 1.0 + 2 * 4.0) / 3))
    assert s._held is None


class Weightless(Mean):
    """Flush at once, with weight zero."""

    name = "weightless"

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        return Decision("flush", weight=0.0)


def test_a_flush_without_weight_moves_nothing() -> None:
    s = server(policy=Weightless())
    assert s.receive(s.issue(0), vector()).status == "zero"
    assert torch.equal(s._params[0], vector())


def test_an_optimizer_that_refuses_leaves_policy_and_held_contributions() -> None:
    x = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    opt = make("ordered-mu2-anytime", [x], weights=[1.0, 1.0])
    s = Server(opt, workers=3, policy=Mean())
    for w in range(3):
        s.receive(s.issue(w), vector())
    for w in range(2):
        s.receive(s.issue(w), vector())
    ticket = s.issue(2)
    before = everything(s)
    with pytest.raises(ValueError, match="end at a_2"):
        s.receive(ticket, vector())
    assert same(before, everything(s))
    assert x.grad is None


def test_other_things_that_are_no_contribution_no_time_and_no_state() -> None:
    s = server()
    with pytest.raises(ValueError, match="the server has no clock"):
        s.issue(0, at=3.0)
    ticket = s.issue(0)
    with pytest.raises(TypeError, match="Invalid contribution: NoneType"):
        s.receive(ticket, None)  # type: ignore[arg-type]
    for state in ({}, None):
        with pytest.raises(ValueError, match="Not the state dict of a server"):
            s.load_state_dict(state)  # type: ignore[arg-type]


def test_sparse_contributions_are_refused() -> None:
    s = server()
    ticket = s.issue(0)
    with pytest.raises(TypeError, match="expected a dense tensor"):
        s.receive(ticket, vector().to_sparse())
    assert s._params[0].grad is None
