"""All that changes when something is counted: server, optimizer, scheduler, running averages, and the journal of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..core.batchnorm import RunningAverages
from ..core.gradient import counts
from ..core.state import Trainee
from ..engines import Done, Job, Slot
from ..policy import Policy, Ticket
from ..problems.base import Problem
from ..server import Outcome, Server
from .journal import ABSENT, Entry, Journal

__all__ = ["Books", "MisfitError"]


class MisfitError(ValueError):
    """An entry of a journal that cannot have come after the state it is done on.

    Examples:
        >>> raise MisfitError("ticket 7 is not in flight")
        Traceback (most recent call last):
        latecomer.training.run.MisfitError: ticket 7 is not in flight
    """


class Books:
    """The state of a run, apart from who is working on what just now.

    Every change goes through `issue`, `lose`, `join`, `arrive` and `give_up`, which write it into the journal; `redo`
    does an entry of the journal again, so a checkpoint and the journal behind it give the state at the last entry.

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
        self._trainee = Trainee(problem, method, options, seed, schedule)
        self.flat, self.optimizer = self._trainee.flat, self._trainee.optimizer
        if self.flat.x.device.type != "cpu":
            raise ValueError(f"The model is on {self.flat.x.device}: the server keeps it in memory, move it to the cpu")
        self.statistics = RunningAverages(self.flat.module)
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
        self.given_up: list[int] = []
        self._slots: list[Slot] = []
        self._unused: list[int] = []
        self._index: dict[int, int] = {}

    @property
    def diverged_at(self) -> int | None:
        """The arrival at which the run was given up, or None."""
        return self._trainee.diverged_at

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

    def lose(self, ticket: Ticket, at: float, raised: bool = False, absent: bool = False) -> None:
        """Note that a ticket came to nothing: its worker is gone, its code raised, or nobody is there to begin."""
        self.server.lose(ticket)
        self._write(Entry(b"L", ticket.worker, ticket.number, ABSENT if absent else int(raised), at))

    def join(self, at: float) -> int:
        """Seat another worker and return its number."""
        worker = self.server.join()
        self._write(Entry(b"J", worker, 0, 0, at))
        return worker

    def arrive(self, ticket: Ticket, *, finite: bool, group: int, at: float) -> Outcome:
        """Count the contribution that lies in the ticket's slot."""
        slot = self._slots[self._index[self.server.point(ticket)[0][0].data_ptr()]]
        outcome = self.server.receive(ticket, slot.gradient, finite=finite, group=group, at=at)
        self._write(Entry(b"A", ticket.worker, ticket.number, group, at))
        if len(slot.statistics) and counts(ticket, outcome):
            self.statistics.from_last_job.copy_(slot.statistics)
            self.statistics.merge()
        self._trainee.counted(outcome)
        return outcome

    def give_up(self, ticket: Ticket, at: float, raised: bool = False) -> Outcome:
        """Count a ticket that nobody could compute."""
        outcome = self.server.give_up(ticket, at=at)
        self._write(Entry(b"G", ticket.worker, ticket.number, int(raised), at))
        self.given_up.append(ticket.number)
        self._trainee.counted(outcome)
        return outcome

    def _write(self, entry: Entry) -> None:
        if self.journal is not None and self.journal.going:
            try:
                self.journal.append(entry)
            except OSError as error:
                warnings.warn(
                    f"{self.journal.path} cannot be written ({error.strerror}): a run that crashes before its "
                    "next checkpoint will go on from here",
                    stacklevel=2,
                )

    def redo(self, entry: Entry, compute: Callable[[Job], Done]) -> tuple[Outcome, float] | None:
        """Do an entry of the journal again.

        Args:
            entry: What was counted.
            compute: Has a contribution computed anew, into its slot: the ticket fixes its bits.

        Returns:
            What became of an arrival and the loss of its batch; None for other entries.
        """
        if entry.kind == b"I":
            if self.server.holds(entry.seat) is not None:
                raise MisfitError(f"seat {entry.seat} has a ticket already")
            if self.server.upcoming != entry.number:
                raise MisfitError(f"ticket {entry.number} is not next")
            self.issue(entry.seat, entry.at)
            return None
        if entry.kind == b"J":
            if self.server.workers != entry.seat:
                raise MisfitError(f"worker {entry.seat} is not next to join")
            self.join(entry.at)
            return None
        ticket = self.server.find(entry.number)
        if ticket is None or ticket.worker != entry.seat:
            raise MisfitError(f"ticket {entry.number} is not with seat {entry.seat}")
        if entry.kind == b"L":
            self.lose(ticket, entry.at, bool(entry.group))
            return None
        if entry.kind == b"G":
            return self.give_up(ticket, entry.at, bool(entry.group)), math.nan
        done = compute(self.job(ticket))
        return self.arrive(ticket, finite=done.finite, group=entry.group, at=entry.at), done.loss

    # ---- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything, tensors copied."""
        state = {
            "server": self.server.state_dict(),
            "trainee": self._trainee.state_dict(),
            "given_up": list(self.given_up),
        }
        return _copied(state)  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.server.load_state_dict(state["server"])
        self._trainee.load_state_dict(state["trainee"])
        self.given_up = list(state["given_up"])


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value
