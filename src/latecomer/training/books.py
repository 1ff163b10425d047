"""All that changes when something is counted: server, optimizer, scheduler, running averages, and the journal of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..engines import Job, Slot
from ..flat import FlatModule
from ..job import Contributor, counts
from ..optim import METHODS
from ..optim.kernels import is_finite
from ..policy import Policy, Ticket
from ..problems.base import Problem
from ..server import Outcome, Server
from ..simulation import PATIENCE
from ..statistics import Statistics
from .journal import Entry, Journal

__all__ = ["Books"]


class Books:
    """The state of a run, apart from who is working on what just now.

    Every change goes through `issue`, `lose`, `arrive` and `give_up`, which write it into the journal; `redo` does an
    entry of the journal again, so a checkpoint and the journal behind it give the state at the last entry.

    Args:
        problem: What to train on.
        method: Name of the method.
        options: Its hyper-parameters.
        workers: Number of workers.
        policy: What an arrival means.
        seed: Draws the samples and initialises the model.
        schedule: Makes a learning-rate scheduler out of the optimizer, or None.
        journal: Where to write, or None.

    Examples:
        >>> import torch, latecomer as lc
        >>> books = Books(lc.problems.quadratic(), "momentum", {"lr": 0.1}, 2, lc.policy.Async(), 0)
        >>> x, g = torch.zeros(10, dtype=torch.float64), torch.ones(10, dtype=torch.float64)
        >>> books.use([Slot([x], g, torch.empty(0))])
        >>> job = books.issue(0, at=0.0)
        >>> books.arrive(books.server.holds(0), finite=True, group=0, at=0.1).status
        'applied'
    """

    def __init__(
        self,
        problem: Problem,
        method: str,
        options: Mapping[str, Any],
        workers: int,
        policy: Policy,
        seed: int,
        schedule: Callable[[Any], Any] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.problem, self.method, self.options, self.seed = problem, method, dict(options), seed
        self.flat = FlatModule(problem.model(seed))
        if self.flat.x.device.type != "cpu":
            raise ValueError(f"The model is on {self.flat.x.device}: the server keeps it in memory, move it to the cpu")
        self.optimizer = METHODS[method]([self.flat.group], **options)
        self.scheduler = None if schedule is None else schedule(self.optimizer)
        self.statistics = Statistics(self.flat.module)
        names = getattr(problem, "group_names", None) or tuple(f"group {i}" for i in range(problem.groups))
        self.server = Server(
            self.optimizer,
            workers=workers,
            policy=policy,
            seed=seed,
            groups=names if problem.groups > 1 else ("all",),
            clock="real",
            slots=self._next_slot,
        )
        self.journal = journal
        self.bad_in_a_row = 0
        self.diverged_at: int | None = None
        self.given_up: list[int] = []
        self._slots: list[Slot] = []
        self._unused: list[int] = []
        self._index: dict[int, int] = {}

    # ---- slots --------------------------------------------------------------------------------------------------

    def use(self, slots: Sequence[Slot]) -> None:
        """Take over the slots of an engine."""
        self._slots = list(slots)
        self._unused = list(range(len(slots)))[::-1]
        self._index = {slot.points[0].data_ptr(): i for i, slot in enumerate(slots)}

    def _next_slot(self) -> list[list[Tensor]]:
        if not self._unused:
            raise ValueError(f"All {len(self._slots)} slots are in use")
        return [[point] for point in self._slots[self._unused.pop()].points]

    def job(self, ticket: Ticket) -> Job:
        """Return what a worker has to be told about a ticket."""
        slot = self._index[self.server.point(ticket)[0][0].data_ptr()]
        here, before = self.optimizer.coefficients(ticket.version)
        return Job(ticket.number, slot, ticket.sample, ticket.version, here, before)

    # ---- what is counted ----------------------------------------------------------------------------------------

    def issue(self, seat: int, at: float) -> Job:
        """Give a worker its next ticket."""
        ticket = self.server.issue(seat, at=at)
        self._write(Entry(b"I", seat, ticket.number, 0, at))
        return self.job(ticket)

    def lose(self, ticket: Ticket, at: float) -> None:
        """Note that a ticket's worker is gone."""
        self.server.lose(ticket)
        self._write(Entry(b"L", ticket.worker, ticket.number, 0, at))

    def arrive(self, ticket: Ticket, *, finite: bool, group: int, at: float) -> Outcome:
        """Count the contribution that lies in the ticket's slot."""
        slot = self._slots[self._index[self.server.point(ticket)[0][0].data_ptr()]]
        updates = self.optimizer.t
        outcome = self.server.receive(ticket, slot.gradient, finite=finite, group=group, at=at)
        self._write(Entry(b"A", ticket.worker, ticket.number, group, at))
        if len(slot.statistics) and counts(ticket, outcome):
            self.statistics.sent.copy_(slot.statistics)
            self.statistics.merge()
        self._counted(outcome, updates)
        return outcome

    def give_up(self, ticket: Ticket, at: float) -> Outcome:
        """Count a ticket that nobody could compute."""
        updates = self.optimizer.t
        outcome = self.server.give_up(ticket, at=at)
        self._write(Entry(b"G", ticket.worker, ticket.number, 0, at))
        self.given_up.append(ticket.number)
        self._counted(outcome, updates)
        return outcome

    def _counted(self, outcome: Outcome, updates: int) -> None:
        if self.scheduler is not None and self.optimizer.t > updates:
            self.scheduler.step()
        if outcome.status == "applied":
            self.bad_in_a_row = 0
        elif not outcome.finite:
            self.bad_in_a_row += 1
            if self.bad_in_a_row >= PATIENCE or not is_finite(self.flat.x.detach()):
                self.diverged_at = self.server.arrivals

    def _write(self, entry: Entry) -> None:
        if self.journal is not None and self.journal.going:
            try:
                self.journal.append(entry)
            except OSError as error:
                warnings.warn(
                    f"{self.journal.path} cannot be written ({error.strerror}): after a crash the run will go on from "
                    "its last checkpoint",
                    stacklevel=2,
                )

    def redo(self, entry: Entry, compute: Contributor) -> Outcome | None:
        """Do an entry of the journal again; an arrival's contribution is computed anew, to the same bits."""
        if entry.kind == b"I":
            number = self.issue(entry.seat, entry.at).number
            if number != entry.number:
                raise ValueError(f"The journal does not fit its checkpoint: ticket {entry.number} is not next")
            return None
        ticket = self.server.find(entry.number)
        if ticket is None:
            raise ValueError(f"The journal does not fit its checkpoint: ticket {entry.number} is not in flight")
        if entry.kind == b"L":
            self.lose(ticket, entry.at)
            return None
        if entry.kind == b"G":
            return self.give_up(ticket, entry.at)
        job = self.job(ticket)
        slot = self._slots[job.slot]
        what = (job.number, job.sample, entry.group, job.version, job.here, job.before)
        compute(slot.points, slot.gradient, *what)
        if len(slot.statistics):
            slot.statistics.copy_(compute.statistics.sent)
        return self.arrive(ticket, finite=is_finite(slot.gradient), group=entry.group, at=entry.at)

    # ---- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything, tensors copied."""
        state = {
            "server": self.server.state_dict(),
            "buffers": dict(self.flat.at(self.flat.x).named_buffers()),
            "scheduler": None if self.scheduler is None else dict(self.scheduler.state_dict()),
            "bad_in_a_row": self.bad_in_a_row,
            "diverged_at": self.diverged_at,
            "given_up": list(self.given_up),
            "entries": 0 if self.journal is None else self.journal.entries,
        }
        return _copied(state)  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.server.load_state_dict(state["server"])
        for name, buffer in self.flat.module.named_buffers():
            buffer.copy_(state["buffers"][name])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.bad_in_a_row, self.diverged_at = state["bad_in_a_row"], state["diverged_at"]
        self.given_up = list(state["given_up"])


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value
