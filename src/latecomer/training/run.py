"""The state of a run on real workers: every change is written to a journal, so a crash loses nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .._util.warn import warn
from ..core.groups import ParamGroups
from ..core.state import RunState
from ..engines import Done, Job, Slot
from ..optim import Method
from ..policy import Policy, Ticket
from ..problems.base import Problem
from ..server import Outcome
from ..slots import FlatSlots
from .journal import ABSENT, COUNTED, Entry, Journal

__all__ = ["JournalMismatchError", "JournaledRun"]


class JournalMismatchError(ValueError):
    """A journal entry that does not follow from the state before it."""


class _EngineSlots(FlatSlots):
    """Slots of an engine: the server writes points into a slot, a worker writes its gradient into the same slot."""

    def __init__(self) -> None:
        super().__init__(self._none_left, lambda slot: slot.points)

    def use(self, slots: Sequence[Slot]) -> None:
        """Use the slots of an engine."""
        self._unused, self._total = list(slots)[::-1], len(slots)

    def _none_left(self) -> Slot:
        raise ValueError(f"All {self._total} slots are in use")

    def slot(self, number: int) -> Slot:
        """Return the slot of a ticket."""
        found: Slot = self.memory(number)
        return found


class JournaledRun(RunState):
    """The state of a run on real workers, without the assignment of jobs to processes.

    Every change goes through `issue`, `lose`, `join`, `arrive` or `give_up`, which write it to the journal. `redo`
    repeats an entry of the journal, so a checkpoint and the entries after it give the state at the last entry.

    Args:
        problem: What to train on.
        method: The method, or its name.
        options: Its hyper-parameters.
        workers: Number of workers.
        policy: Decides what the server does with an arrival.
        seed: Draws the samples and initialises the model.
        scheduler: Function of the optimizer that returns a learning-rate scheduler, or None.
        param_groups: A function of the model that returns torch's groups, or a mapping from name patterns to options.
        device: Device of the parameters and of the optimizer's state.
        journal: The journal, or None.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method | str,
        options: Mapping[str, Any],
        workers: int,
        policy: Policy,
        seed: int,
        scheduler: Callable[[Any], Any] | None = None,
        param_groups: ParamGroups | None = None,
        device: torch.device | str = "cpu",
        journal: Journal | None = None,
    ) -> None:
        names = getattr(problem, "group_names", None) or tuple(f"group {i}" for i in range(problem.groups))
        self._slots = _EngineSlots()
        super().__init__(
            problem,
            method,
            options,
            workers=workers,
            policy=policy,
            seed=seed,
            groups=names if problem.groups > 1 else ("all",),
            clock="real",
            scheduler=scheduler,
            param_groups=param_groups,
            device=device,
            slots=self._slots,
        )
        self.journal = journal

    def use(self, slots: Sequence[Slot]) -> None:
        """Use the slots of an engine."""
        self._slots.use(slots)

    def job(self, ticket: Ticket) -> Job:
        """Return the job of a ticket, as a worker gets it."""
        here, before = self.optimizer.coefficients(ticket.version)
        slot = self._slots.slot(ticket.number).index
        server = self.server
        return Job(
            ticket.number, slot, ticket.sample, ticket.version, here, before, False, server.upcoming, server.workers
        )

    # ---- changes of the state -----------------------------------------------------------------------------------

    def issue(self, worker: int, at: float) -> Job:
        """Give a worker its next ticket."""
        ticket = self.server.issue(worker, at=at)
        self._write(Entry(b"I", worker, ticket.number, 0, at))
        return self.job(ticket)

    def lose(self, ticket: Ticket, at: float, raised: bool = False, absent: bool = False) -> None:
        """Record a failed ticket: its worker died, its code raised, or its worker is absent after a restart."""
        self.server.lose(ticket)
        self._write(Entry(b"L", ticket.worker, ticket.number, ABSENT if absent else int(raised), at))

    def join(self, at: float) -> int:
        """Add a worker and return its number."""
        worker = self.server.join()
        self._write(Entry(b"J", worker, 0, 0, at))
        return worker

    def arrive(self, ticket: Ticket, *, finite: bool, group: int, at: float) -> Outcome:
        """Count the contribution in the ticket's slot."""
        slot = self._slots.slot(ticket.number)
        outcome = self.server.receive(ticket, lambda: self.arriving(slot.gradient), finite=finite, group=group, at=at)
        self._write(Entry(b"A", ticket.worker, ticket.number, group, at))
        self.after_arrival(ticket, outcome, slot.statistics)
        return outcome

    def give_up(self, ticket: Ticket, at: float, raised: bool = False) -> Outcome:
        """Count a ticket that no worker could compute."""
        outcome = self.server.give_up(ticket, at=at)
        self._write(Entry(b"G", ticket.worker, ticket.number, int(raised), at))
        self.after_arrival(ticket, outcome)
        return outcome

    def _write(self, entry: Entry) -> None:
        if self.journal is not None and self.journal.is_open:
            try:
                self.journal.append(entry)
            except OSError as error:
                warn(
                    f"{self.journal.path} cannot be written ({error.strerror}): if the run crashes before its next "
                    "checkpoint, it resumes from here",
                )

    def redo(self, entry: Entry, compute: Callable[[Job], Done]) -> tuple[Outcome, float] | None:
        """Repeat an entry of the journal.

        Args:
            entry: The entry.
            compute: Computes a contribution again, into its slot; the ticket fixes its bits.

        Returns:
            Outcome and batch loss of an arrival; None for other entries.

        Raises:
            JournalMismatchError: The entry does not follow from the state, which has not changed.
        """
        ticket = self._ticket_of(entry)
        if ticket is None:
            if entry.kind == b"I":
                self.issue(entry.worker, entry.at)
            else:
                self.join(entry.at)
            return None
        if entry.kind == b"L":
            self.lose(ticket, entry.at, bool(entry.group))
            return None
        if entry.kind == b"G":
            return self.give_up(ticket, entry.at, bool(entry.group)), math.nan
        done = compute(self.job(ticket))
        return self.arrive(ticket, finite=done.finite, group=entry.group, at=entry.at), done.loss

    def _ticket_of(self, entry: Entry) -> Ticket | None:
        """Return the ticket that an entry is about, None for one that issues a ticket or adds a worker.

        Raises:
            JournalMismatchError: The entry does not follow from the state. Nothing has changed then. Whatever raises
                after this is no matter of the journal: code of the user, for example.
        """
        server = self.server
        if entry.kind in (b"I", *COUNTED) and not entry.at >= server.now:
            raise JournalMismatchError(f"its time is {entry.at:g}, and the clock is at {server.now:g}")
        if entry.kind == b"I":
            if not 0 <= entry.worker < server.workers:
                raise JournalMismatchError(f"there is no worker {entry.worker}")
            if server.holds(entry.worker) is not None:
                raise JournalMismatchError(f"worker {entry.worker} already has a ticket")
            if server.upcoming != entry.number:
                raise JournalMismatchError(f"ticket {entry.number} is not next")
            return None
        if entry.kind == b"J":
            if server.workers != entry.worker:
                raise JournalMismatchError(f"worker {entry.worker} is not next to join")
            return None
        ticket = server.find(entry.number)
        if ticket is None or ticket.worker != entry.worker:
            raise JournalMismatchError(f"ticket {entry.number} is not with worker {entry.worker}")
        if entry.kind == b"A" and not 0 <= entry.group < max(1, self.problem.groups):
            raise JournalMismatchError(f"there is no group {entry.group}")
        if entry.kind not in (b"L", *COUNTED):
            raise JournalMismatchError(f"there are no entries of kind {entry.kind!r}")
        return ticket
