"""Whatever happens to a server, in any order: the books balance, and the trace replays to the same bits."""

from __future__ import annotations

import io
import math
import tempfile
from pathlib import Path

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from latecomer import Trace
from latecomer.policy import Ticket
from latecomer.simulation.replayer import Replayer
from support import NAMES, same, server, vector


class AnyOrder(RuleBasedStateMachine):
    """Issue, receive, lose, cancel, join and leave in any order: the books always balance."""

    @initialize(name=st.sampled_from(NAMES), workers=st.integers(1, 4))
    def start(self, name: str, workers: int) -> None:
        self.name = name
        self.server = server(name, workers)
        self.out: dict[int, Ticket] = {}
        self.received: set[int] = set()
        self.from_last_job: dict[int, torch.Tensor] = {}
        self.initial = workers
        self.events = 0

    def _free(self) -> list[int]:
        return sorted(set(self.server._assigned) - set(self.out))

    @precondition(lambda self: self._free())
    @rule(data=st.data())
    def issue(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self._free()))
        ticket = self.server.issue(worker)
        assert ticket.number not in self.received
        self.out[worker] = ticket

    @precondition(lambda self: self.out)
    @rule(data=st.data(), bad=st.booleans())
    def receive(self, data: st.DataObject, bad: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.out)))
        ticket = self.out.pop(worker)
        self.from_last_job[ticket.number] = vector(math.nan if bad else 0.01 * ticket.number)
        outcome = self.server.receive(ticket, self.server.point(ticket)[0][0] * 0.1 + self.from_last_job[ticket.number])
        assert outcome.arrival == len(self.received) + 1
        self.received.add(ticket.number)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), how=st.sampled_from(["lose", "cancel"]))
    def call_off(self, data: st.DataObject, how: str) -> None:
        worker = data.draw(st.sampled_from(sorted(self.out)))
        ticket = self.out.pop(worker)
        getattr(self.server, how)(ticket)
        if how == "cancel":
            self.received.discard(ticket.number)

    @rule()
    def join(self) -> None:
        self.server.join()

    @precondition(lambda self: self.server.workers > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.server._assigned)))
        self.out.pop(worker, None)
        self.server.leave(worker)

    @rule()
    def save_and_resume(self) -> None:
        file = io.BytesIO()
        torch.save(self.server.state_dict(), file)
        file.seek(0)
        resumed = server(self.name, 1)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        assert same(resumed.state_dict(), self.server.state_dict())
        self.server = resumed

    @invariant()
    def balanced(self) -> None:
        s = self.server
        assert s.arrivals == s.optimizer.t == len(self.received)
        assert {t.number for t in self.out.values()} <= {t.number for t in s.in_flight}
        assert set(s._slots.state_dict()["tickets"]) == {ticket.number for ticket in s.in_flight}
        if s._recorder.tickets:
            trace = s.trace()  # checks every rule
            assert set(trace.ticket.tolist()) == self.received
            assert len(trace) == 0 or trace.delay.min() >= 0

    def teardown(self) -> None:
        """Save the trace, load it, take another server through it: the same bits, and the same trace."""
        if not self.received:
            return
        with tempfile.TemporaryDirectory() as folder:
            trace = Trace.load(self.server.trace().save(Path(folder) / "run.parquet"))
        assert trace.header.workers - len(trace.header.joined) == self.initial
        again = server(self.name, self.initial)
        replay = Replayer(again, trace)
        for number in trace.ticket.tolist():
            ticket = replay.next()
            assert ticket.number == number
            again.receive(ticket, again.point(ticket)[0][0] * 0.1 + self.from_last_job[number])
            replay = Replayer(again, trace)  # as a resumed run does
        replay.fill_gap()
        assert again.trace() == self.server.trace()
        assert same([p.detach() for p in again._params], [p.detach() for p in self.server._params])
        assert same(again.optimizer.state_dict(), self.server.optimizer.state_dict())
        for steps in range(1, len(trace)):
            assert len(trace.head(steps)) == steps  # every beginning of it keeps all rules


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=90, stateful_step_count=40)
