"""The parameter server that the simulator and the engines share: tickets out, contributions in, updates applied."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._util.checks import whole_number
from ._util.seeds import sample_seeds
from .optim import Arrival, AsyncOptimizer
from .optim._kernels import is_finite
from .policy import Async, Decision, Policy, Ticket
from .policy.asking import cancelled, decided
from .policy.base import InFlight
from .slots import Points, SlotPool
from .trace import Header, Trace
from .trace.recorder import Recorder

__all__ = ["Outcome", "Server"]

Contribution = Tensor | Sequence[Tensor]
_SEED_BLOCK = 1024  # sample seeds are drawn in blocks of this size
_UNKNOWN_WORKER = -1
_TICKET = tuple(field.name for field in fields(Ticket))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of receiving a contribution.

    Args:
        status: ``"applied"``, ``"zero"`` (counted, with weight zero), ``"dropped"`` or ``"held"``.
        arrival: Index of the arrival, 1-based.
        delay: Updates since the version it was computed at.
        finite: False if it has weight zero because it is not finite, or because no worker could compute it.
        cancelled: Tickets that the policy cancelled because of this arrival.
    """

    status: str
    arrival: int
    delay: int
    finite: bool = True
    cancelled: tuple[Ticket, ...] = ()


class Server:
    """Issues tickets, receives contributions, applies policy and optimizer, and records a trace.

    A call that raises changes nothing.

    Args:
        optimizer: Any optimizer of `latecomer.optim` that has made no update yet.
        workers: Number of workers at the start, numbered from 0.
        policy: Decides what to do with an arrival; `Async` by default.
        seed: Together with a ticket's number it fixes the sample.
        groups: Names of the sample groups, for the trace.
        clock: What ``at`` means in `issue` and `receive`: ``"none"``, ``"virtual"`` or ``"real"`` seconds.
        slots: Memory for the points of tickets in flight; tensors of this process by default.

    Examples:
        >>> import latecomer as lc
        >>> x = torch.nn.Parameter(torch.ones(2))
        >>> server = Server(lc.optim.OrderedMomentum([x], lr=1.0, beta=0.5), workers=2)
        >>> first, second = server.issue(0), server.issue(1)
        >>> server.receive(second, torch.ones(2)).delay
        0
        >>> third = server.issue(1)
        >>> server.receive(first, torch.ones(2)).delay      # counts with weight zero: Algorithm 1, version 1
        1
        >>> server.point(third)[0][0].tolist(), x.tolist()
        ([0.5, 0.5], [0.25, 0.25])
    """

    def __init__(
        self,
        optimizer: AsyncOptimizer,
        *,
        workers: int,
        policy: Policy | None = None,
        seed: int = 0,
        groups: Sequence[str] = ("all",),
        clock: str = "none",
        slots: SlotPool | None = None,
    ) -> None:
        if not isinstance(optimizer, AsyncOptimizer):
            raise TypeError(f"Invalid optimizer: {type(optimizer).__name__} (expected one of latecomer.optim)")
        if optimizer.t:
            raise ValueError(f"The optimizer has already counted {optimizer.t} arrivals: pass a new one")
        self.optimizer = optimizer
        self.policy = policy or Async()
        self._may_cancel = type(self.policy).cancel is not Policy.cancel
        self.seed = whole_number("seed", seed)
        self.arrivals = 0
        self.non_finite = 0
        self._params: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        self._slots = slots or SlotPool(self._new_points)
        count = whole_number("workers", workers, least=1)
        self._assigned: dict[int, int | None] = dict.fromkeys(range(count))  # worker -> number of its ticket
        self._joined: set[int] = set()  # workers whose first ticket has weight zero
        self._in_flight: dict[int, Ticket] = {}  # by number, in order of first issue: the first entry is the oldest
        self._lost: list[int] = []
        # The weighted sum of held contributions, by what to divide it, and their largest delay.
        self._held: tuple[list[Tensor], float, int] | None = None
        self._recorder = Recorder(count, self.seed, self.policy.name, tuple(groups), clock)
        self._samples: tuple[int, NDArray[np.uint64]] | None = None  # number and seeds of the current block
        self._now = 0.0 if clock == "virtual" else -math.inf
        if clock not in ("none", "virtual", "real"):
            raise ValueError(f"Invalid clock value: {clock!r} (expected 'none', 'virtual' or 'real')")

    # ---- workers ------------------------------------------------------------------------------------------------

    @property
    def workers(self) -> int:
        """Current number of workers, the paper's M."""
        return len(self._assigned)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that it updates, in the order of the optimizer."""
        return [p.detach() for p in self._params]

    @property
    def in_flight(self) -> list[Ticket]:
        """Tickets that are issued and not yet returned, oldest first."""
        return list(self._in_flight.values())

    @property
    def outstanding(self) -> int:
        """Number of tickets in flight."""
        return len(self._in_flight)

    @property
    def lost(self) -> int:
        """Number of tickets waiting to be issued again."""
        return len(self._lost)

    @property
    def given_up(self) -> int:
        """Number of tickets that no worker could compute."""
        return self._recorder.given_up

    @property
    def now(self) -> float:
        """The last time passed as ``at``; minus infinity before the first."""
        return self._now

    def find(self, number: int) -> Ticket | None:
        """Return the ticket with this number if a worker has it now, else None."""
        return None if number in self._lost else self._in_flight.get(number)

    def holds(self, worker: int) -> Ticket | None:
        """Return the ticket that a worker has now, or None."""
        number = self._assigned.get(worker)
        return None if number is None else self._in_flight[number]

    def join(self) -> int:
        """Add a worker and return its number.

        If arrivals have been counted, its first ticket has weight zero, as the first tickets of the other workers
        had: it starts from an iterate that another worker may hold too, and no version may count twice.
        """
        worker = self._recorder.join(self.arrivals)
        self._assigned[worker] = None
        if self.arrivals:
            self._joined.add(worker)
        return worker

    def leave(self, worker: int) -> None:
        """Remove a worker; if it had a ticket, that ticket is issued again to another worker."""
        number = self._ticket_of(worker)
        if number is not None:
            self.lose(self._in_flight[number])
        del self._assigned[worker]
        self._joined.discard(worker)
        self._recorder.leave(worker, self.arrivals)

    def _ticket_of(self, worker: int) -> int | None:
        if worker not in self._assigned:
            raise ValueError(f"There is no worker {worker!r}: the workers are {sorted(self._assigned)}")
        return self._assigned[worker]

    # ---- tickets ------------------------------------------------------------------------------------------------

    @property
    def upcoming(self) -> int:
        """Number of the ticket that is issued next."""
        return min(self._lost) if self._lost else self._recorder.tickets

    def issue(self, worker: int, *, at: float = math.nan) -> Ticket:
        """Give a worker its next ticket: the oldest lost one, at the iterate it had, or else a new one."""
        number = self._assigned.get(worker, _UNKNOWN_WORKER)
        if number is not None:
            self._ticket_of(worker)  # raises if there is no such worker
            raise ValueError(f"Worker {worker} already has ticket {number}: receive or lose that one first")
        at = self._checked_time(at)
        if self._lost:
            number = min(self._lost)
            self._lost.remove(number)
            lost = self._in_flight[number]
            ticket = self._in_flight[number] = replace(lost, worker=worker, seen=self.arrivals)
        else:
            number = self._recorder.tickets
            zero = worker in self._joined
            self._joined.discard(worker)
            ticket = Ticket(number, worker, self.optimizer.version, self.arrivals, self._sample(number), zero)
            shared = self.optimizer.point_version(worker)
            self._slots.fill(number, lambda points: self.optimizer.query(points, worker), shared)
            self._in_flight[number] = ticket
        self._assigned[worker] = number
        if at == at:  # not NaN: the server has a clock
            self._now = at
        self._recorder.issued(ticket, at)
        return ticket

    def point(self, ticket: Ticket) -> Points:
        """Return the points a ticket evaluates: one list of tensors per point, the iterate first."""
        self._check_ticket(ticket)
        return self._slots[ticket.number]

    def lose(self, ticket: Ticket) -> None:
        """Record that a ticket's worker is gone; the same ticket, at the same iterate, is issued again."""
        self._check_ticket(ticket)
        self._assigned[ticket.worker] = None
        self._lost.append(ticket.number)
        self._recorder.ended(ticket, "lost", self.arrivals)

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a ticket: it never arrives, and its worker is free."""
        self._check_ticket(ticket)
        self._recorder.ended(ticket, "cancelled", self.arrivals)
        self._close_ticket(ticket)

    def _check_ticket(self, ticket: Ticket) -> None:
        """Raise unless this ticket is with its worker now."""
        if not isinstance(ticket, Ticket):
            raise TypeError(f"Invalid ticket: {ticket!r} (expected a ticket that issue returned)")
        current = self._in_flight.get(ticket.number)
        if current is ticket and not self._lost:
            return
        if current is None:
            issued = 0 <= ticket.number < self._recorder.tickets
            what = "was already returned or cancelled" if issued else "was never issued"
            raise ValueError(f"Ticket {ticket.number} {what}")
        if current != ticket or ticket.number in self._lost:
            raise ValueError(f"Ticket {ticket.number} is not with worker {ticket.worker}: it was lost or issued again")

    def _close_ticket(self, ticket: Ticket) -> None:
        self._slots.release(ticket.number)
        del self._in_flight[ticket.number]
        self._assigned[ticket.worker] = None

    def _new_points(self) -> Points:
        return [[torch.empty_like(p, requires_grad=False) for p in self._params] for _ in range(self.optimizer.points)]

    def _sample(self, number: int) -> int:
        block, offset = divmod(number, _SEED_BLOCK)
        if self._samples is None or self._samples[0] != block:
            self._samples = block, sample_seeds(self.seed, _SEED_BLOCK, first=block * _SEED_BLOCK)
        return int(self._samples[1][offset])

    # ---- arrivals -----------------------------------------------------------------------------------------------

    def receive(
        self,
        ticket: Ticket,
        contribution: Contribution | Callable[[], Contribution],
        *,
        finite: bool | None = None,
        group: int = 0,
        at: float = math.nan,
    ) -> Outcome:
        """Count an arrival, and apply, hold or drop it as policy and optimizer decide.

        Args:
            ticket: A ticket that `issue` returned.
            contribution: One tensor per parameter, or a single tensor if there is one parameter. Or a function that
                returns it: it is called only if the values will be read.
            finite: Whether it is free of NaN and infinities, if the worker has checked; otherwise the server checks.
            group: Group of its sample, for the trace.
            at: Time of the arrival on the server's clock.
        """
        self._check_ticket(ticket)
        group, at = self._checked_group(group), self._checked_time(at)
        opt = self.optimizer
        version = opt.version
        delay = version - ticket.version
        # A policy counts as it decides. If anything below raises, its counters are restored.
        policy_state = copy.deepcopy(self.policy.state) if self.policy.state else {}
        try:
            decision = decided(self.policy, ticket, delay)
        except BaseException:
            self.policy.state = policy_state
            raise
        action = decision.action
        # A flush applies a mean whose terms the policy has weighted already. The optimizer must not weight it again by
        # the delay of its last term, so the mean arrives with delay zero.
        flushed = action == "flush"
        arrival = Arrival(
            version,
            version if flushed else ticket.version,
            ticket.worker,
            len(self._assigned),
            None if flushed else self._slots[ticket.number][0],
            ticket.zero and not flushed,
            # The oldest version in flight. It includes this ticket: the optimizer may drop its history before that.
            next(iter(self._in_flight.values())).version,
            max(delay, self._held[2] if self._held else 0) if flushed else delay,
        )
        # `needs` is asked once, before the contribution exists: values that nobody reads are never computed.
        read_by_rule = action != "drop" and opt.needs(arrival)
        # A ticket with weight zero counts as an arrival, but its values never enter a mean or an update.
        compute = not ticket.zero and (read_by_rule or action in ("hold", "flush"))
        tensors: list[Tensor] | None = None
        try:
            if compute and contribution is not _given_up:
                tensors = self._as_tensors(contribution() if callable(contribution) else contribution)
                if finite is None:
                    finite = all(map(is_finite, tensors))
            non_finite = tensors is not None and finite is False
            status = self._apply(decision, arrival, None if non_finite else tensors, read_by_rule)
        except BaseException:
            self.policy.state = policy_state
            raise
        # The update is made: from here on the arrival counts.
        self.arrivals += 1
        self.non_finite += non_finite
        if at == at:  # not NaN: the server has a clock
            self._now = at
        if contribution is _given_up:
            self._recorder.gave_up(ticket)
        self._recorder.arrived(ticket, status, self.arrivals, version if opt.version > version else 0, group, at)
        self._close_ticket(ticket)
        stopped: tuple[Ticket, ...] = ()
        if self._may_cancel:  # after the ticket is closed, so that a policy cannot cancel the one that arrived
            stopped = cancelled(self.policy, InFlight(self._in_flight, "number", self._lost), opt.version)
            for stale in stopped:
                self.cancel(stale)
        return Outcome(status, self.arrivals, delay, not non_finite and contribution is not _given_up, stopped)

    def give_up(self, ticket: Ticket, *, group: int = 0, at: float = math.nan) -> Outcome:
        """Count a ticket that no worker could compute as an arrival of weight zero; the trace lists it."""
        return self.receive(ticket, _given_up, group=group, at=at)

    def _checked_group(self, group: int) -> int:
        if not 0 <= whole_number("group", group) < len(self._recorder.groups):
            raise ValueError(f"Invalid group value: {group} (the groups are {list(self._recorder.groups)})")
        return group

    def _checked_time(self, at: float) -> float:
        if self._recorder.clock == "none":
            if at == at:  # not NaN
                raise ValueError(f"Invalid at value: {at:g} (the server has no clock: create it with clock='real')")
            return math.nan
        if math.isnan(at) or at < self._now:
            raise ValueError(f"Invalid at value: {at:g} (the {self._recorder.clock} clock is at {self._now:g})")
        return at

    def _as_tensors(self, contribution: Contribution) -> list[Tensor]:
        if isinstance(contribution, Tensor):
            tensors = [contribution]
        elif isinstance(contribution, Sequence):
            tensors = list(contribution)
        else:
            kind = type(contribution).__name__
            raise TypeError(f"Invalid contribution: {kind} (expected one tensor per parameter)")
        if len(tensors) != len(self._params):
            raise ValueError(f"A contribution needs {len(self._params)} tensors, got {len(tensors)}")
        for i, (tensor, p) in enumerate(zip(tensors, self._params, strict=True)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"Part {i} of the contribution is a {type(tensor).__name__}, not a tensor")
            if tensor.layout is not torch.strided:
                raise TypeError(f"Part {i} of the contribution is {tensor.layout}: expected a dense tensor")
            if tensor.shape != p.shape or tensor.dtype != p.dtype or tensor.device != p.device:
                raise ValueError(
                    f"Part {i} of the contribution is {tensor.dtype} of shape {tuple(tensor.shape)} on "
                    f"{tensor.device}; the parameter is {p.dtype} of shape {tuple(p.shape)} on {p.device}"
                )
        return tensors

    def _apply(self, decision: Decision, arrival: Arrival, tensors: list[Tensor] | None, read_by_rule: bool) -> str:
        """Carry out the policy's action and return the status; ``tensors`` is None if there are no values to use."""
        opt, action = self.optimizer, decision.action
        if action == "drop":
            return "dropped"
        held = self._held
        if opt.holds and action != "apply":
            if action == "hold":
                if tensors is not None:
                    opt.hold(arrival, tensors)
                return "held"
        elif action != "apply" and tensors is not None:
            # A new sum, not an addition in place: if the optimizer raises below, what is held stays as it was.
            total, divisor, largest = held or ([torch.zeros_like(t) for t in tensors], 0.0, 0)
            summed = list(torch._foreach_add(total, tensors, alpha=decision.weight))
            added = decision.weight if decision.divisor is None else decision.divisor
            held = summed, divisor + added, max(largest, arrival.largest_delay or 0)
        if action == "hold":
            self._held = held
            return "held"
        if action == "flush" and not opt.holds:
            tensors = list(torch._foreach_div(held[0], held[1])) if held is not None and held[1] else None
        # Values that the rule wants and does not get (non-finite, given up, an empty mean) count with weight zero.
        zero = arrival.zero or (read_by_rule and tensors is None)
        # A rule that reads no values still needs one tensor per parameter, to know which parameters take part.
        opt.receive(arrival if zero == arrival.zero else replace(arrival, zero=zero), tensors or self._params)
        if action == "flush":
            self._held = None
        if zero or (not read_by_rule and not opt.drops(arrival)):
            return "zero"
        return "applied" if read_by_rule else "dropped"

    # ---- trace and state ----------------------------------------------------------------------------------------

    def trace(self, model: str = "recorded") -> Trace:
        """Return the trace of the run so far."""
        return self._recorder.trace(model)

    def recorded_since(self, row: int) -> tuple[Header, dict[str, NDArray[Any]], int]:
        """Return the header and new rows of the trace so far, for a look at a run in progress.

        Args:
            row: Number of the first row to return.

        Returns:
            The header, copies of the rows, and the first row that may still change: where to begin next time.
        """
        columns, following = self._recorder.since(row)
        return self._recorder.header("in progress"), columns, following

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, in types that load with ``weights_only=True``; tensors are not copied."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "parameters": self.parameters,
            "policy": [self.policy.name, self.policy.state],
            "counts": [self.seed, self.arrivals, self.non_finite, self._now],
            "busy": list(self._assigned.items()),
            "joined": sorted(self._joined),
            "flying": [tuple(getattr(t, name) for name in _TICKET) for t in self._in_flight.values()],
            "lost": list(self._lost),
            "slots": self._slots.state_dict(),
            "held": self._held,
            "record": self._recorder.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, with the same optimizer options, policy and seed."""
        if not isinstance(state, dict) or "policy" not in state or "record" not in state:
            raise ValueError("Not the state dict of a server")
        name, policy_state = state["policy"]
        seed, arrivals, non_finite, now = state["counts"]
        if name != self.policy.name or seed != self.seed:
            raise ValueError(
                f"The state has policy {name!r} and seed {seed}, "
                f"the server policy {self.policy.name!r} and seed {self.seed}"
            )
        shapes = [tuple(t.shape) for t in state["parameters"]]
        if shapes != [tuple(p.shape) for p in self._params]:
            raise ValueError(f"The parameters in the state have shapes {shapes}")
        self.optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():
            torch._foreach_copy_(self._params, state["parameters"])
        self.policy.state = copy.deepcopy(policy_state)
        self.arrivals, self.non_finite, self._now = arrivals, non_finite, now
        self._assigned, self._joined = dict(state["busy"]), set(state["joined"])
        self._in_flight = {values[0]: Ticket(*values) for values in state["flying"]}
        self._lost = list(state["lost"])
        self._slots.load_state_dict(state["slots"])
        self._held = held = state["held"]
        if held is not None:
            tensors, divisor, largest = (*held, 0)[:3]  # states of version 0.2 have no delay
            self._held = (
                [t.to(p.device, copy=True) for t, p in zip(tensors, self._params, strict=True)],
                divisor,
                largest,
            )
        self._recorder.load_state_dict(state["record"])


def _given_up() -> Contribution:
    """Mark the contribution of a ticket that is given up; never called."""
    return ()
