"""The object every driver shares: it hands out tickets, receives contributions, counts, and applies."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._util.checks import whole_number
from ._util.seeds import sample_seeds
from .optim import Arrival, AsyncOptimizer
from .optim._kernels import is_finite
from .policy import Async, Policy, Ticket
from .trace import Trace
from .trace.recorder import Recorder

__all__ = ["Outcome", "Points", "Server", "SlotPool"]

Contribution = Tensor | Sequence[Tensor]
Points = list[list[Tensor]]
"""What a ticket has to evaluate: for each point, one tensor per parameter; the iterate first."""
_BLOCK = 1024
_NOT_THERE = -1


class SlotPool:
    """Memory for the points of tickets in flight; what a ticket leaves is used for the next one.

    An engine brings a pool of its own, whose memory its workers see.

    Args:
        make: Returns memory for the points of one ticket.

    Examples:
        >>> pool = SlotPool(lambda: [[torch.empty(2)]])
        >>> first = pool.take(0)
        >>> pool.release(0)
        >>> pool.take(1) is first
        True
    """

    def __init__(self, make: Callable[[], Points]) -> None:
        self._make = make
        self._held: dict[int, Points] = {}
        self._free: list[Points] = []

    def take(self, number: int) -> Points:
        """Return memory for the points of this ticket."""
        points = self._held[number] = self._free.pop() if self._free else self._make()
        return points

    def release(self, number: int) -> None:
        """Take back what a ticket had."""
        self._free.append(self._held.pop(number))

    def __getitem__(self, number: int) -> Points:
        return self._held[number]

    def items(self) -> list[tuple[int, Points]]:
        """Return what is in use, by ticket."""
        return list(self._held.items())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a contribution.

    Args:
        status: ``"applied"``, ``"zero"`` (it counted but weighed nothing), ``"dropped"`` or ``"held"``.
        arrival: Which arrival it was.
        delay: Updates since the iterate it started from.
        finite: False if it was counted as zero because of a NaN or an infinity, or because nobody could compute it.
        cancelled: Jobs that the policy has called off because of it.

    Examples:
        >>> Outcome("applied", arrival=3, delay=1).status
        'applied'
    """

    status: str
    arrival: int
    delay: int
    finite: bool = True
    cancelled: tuple[Ticket, ...] = ()


class Server:
    """Issues tickets, receives contributions, applies the policy and the optimizer, and records a trace.

    A call that is refused changes nothing.

    Args:
        optimizer: Any optimizer of `latecomer.optim`, on fresh parameters.
        workers: Number of workers at the start; they have the seats 0 to ``workers - 1``.
        policy: What to do with an arrival; `Async` by default.
        seed: With the number of a ticket it decides the sample.
        groups: Names of the groups, for the trace.
        clock: ``"none"``, ``"virtual"`` or ``"real"``: what the ``at`` of `issue` and `receive` is.
        slots: Where the points of tickets in flight lie; tensors of this process by default.

    Examples:
        >>> import latecomer as lc
        >>> x = torch.nn.Parameter(torch.ones(2))
        >>> server = Server(lc.optim.OrderedMomentum([x], lr=1.0, beta=0.5), workers=2)
        >>> first, second = server.issue(0), server.issue(1)
        >>> server.receive(second, torch.ones(2)).delay
        0
        >>> third = server.issue(1)
        >>> server.receive(first, torch.ones(2)).delay      # counts, but weighs nothing: Algorithm 1, version 1
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
            raise ValueError(f"The optimizer has counted {optimizer.t} arrivals already: give the server a fresh one")
        self.optimizer = optimizer
        self.policy = policy or Async()
        self._may_cancel = type(self.policy).cancel is not Policy.cancel
        self.seed = whole_number("seed", seed)
        self.arrivals = 0
        self.non_finite = 0
        self._params: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        self._slots = slots or SlotPool(self._new_points)
        count = whole_number("workers", workers, least=1)
        self._busy: dict[int, int | None] = dict.fromkeys(range(count))  # seat -> number of its ticket
        self._joined: set[int] = set()  # seats whose first ticket weighs nothing
        self._flying: dict[int, Ticket] = {}  # by number, so the first is the oldest
        self._lost: list[int] = []
        self._held: tuple[list[Tensor], float] | None = None
        self._record = Recorder(count, self.seed, self.policy.name, tuple(groups), clock)
        self._samples: tuple[int, NDArray[np.uint64]] | None = None  # the block that the next tickets are in
        self._now = 0.0 if clock == "virtual" else -math.inf
        if clock not in ("none", "virtual", "real"):
            raise ValueError(f"Invalid clock value: {clock!r} (expected 'none', 'virtual' or 'real')")

    # ---- who is there -------------------------------------------------------------------------------------------

    @property
    def workers(self) -> int:
        """How many workers there are now, the paper's M."""
        return len(self._busy)

    @property
    def in_flight(self) -> list[Ticket]:
        """Tickets handed out and not yet returned, oldest first."""
        return list(self._flying.values())

    @property
    def lost(self) -> int:
        """How many tickets wait to be issued again."""
        return len(self._lost)

    @property
    def given_up(self) -> int:
        """How many tickets nobody could compute."""
        return self._record.given_up

    @property
    def now(self) -> float:
        """What the clock showed last; minus infinity if nobody has said so yet."""
        return self._now

    def find(self, number: int) -> Ticket | None:
        """Return the ticket of this number if a worker has it now."""
        return None if number in self._lost else self._flying.get(number)

    def holds(self, worker: int) -> Ticket | None:
        """Return the ticket a worker has now."""
        number = self._busy.get(worker)
        return None if number is None else self._flying[number]

    def join(self) -> int:
        """Seat another worker and return its number.

        Once arrivals have been counted its first ticket weighs nothing, as at the start: it goes on from an iterate
        that another worker may also hold, and no version may count twice.
        """
        worker = self._record.join(self.arrivals)
        self._busy[worker] = None
        if self.arrivals:
            self._joined.add(worker)
        return worker

    def leave(self, worker: int) -> None:
        """Give up a seat; the ticket it had is issued again to somebody else."""
        number = self._seat(worker)
        if number is not None:
            self.lose(self._flying[number])
        del self._busy[worker]
        self._joined.discard(worker)
        self._record.leave(worker, self.arrivals)

    def _seat(self, worker: int) -> int | None:
        if worker not in self._busy:
            raise ValueError(f"There is no worker {worker!r}: the seats are {sorted(self._busy)}")
        return self._busy[worker]

    # ---- tickets ------------------------------------------------------------------------------------------------

    @property
    def upcoming(self) -> int:
        """Number of the ticket that will be issued next."""
        return min(self._lost) if self._lost else self._record.tickets

    def issue(self, worker: int, *, at: float = math.nan) -> Ticket:
        """Give a worker its next ticket: the oldest that was lost, with the iterate it had, or a new one."""
        number = self._busy.get(worker, _NOT_THERE)
        if number is not None:
            self._seat(worker)
            raise ValueError(f"Worker {worker} has ticket {number} already: it must return it, or lose it, first")
        at = self._checked_time(at)
        if self._lost:
            number = min(self._lost)
            self._lost.remove(number)
            ticket = self._flying[number] = replace(self._flying[number], worker=worker, seen=self.arrivals)
        else:
            number = self._record.tickets
            zero = worker in self._joined
            self._joined.discard(worker)
            ticket = Ticket(number, worker, self.optimizer.version, self.arrivals, self._sample(number), zero)
            self.optimizer.query(self._slots.take(number), worker)
            self._flying[number] = ticket
        self._busy[worker] = number
        if at == at:  # not NaN: there is a clock
            self._now = at
        self._record.issued(ticket, at)
        return ticket

    def point(self, ticket: Ticket) -> Points:
        """Return what the ticket has to evaluate: one list of tensors per point, the iterate first."""
        self._known(ticket)
        return self._slots[ticket.number]

    def lose(self, ticket: Ticket) -> None:
        """Note that a ticket's worker is gone: the same ticket at the same iterate is issued again."""
        self._known(ticket)
        self._busy[ticket.worker] = None
        self._lost.append(ticket.number)
        self._record.ended(ticket, "lost", self.arrivals)

    def cancel(self, ticket: Ticket) -> None:
        """Call a job off: it will never arrive, and its worker is free."""
        self._known(ticket)
        self._record.ended(ticket, "cancelled", self.arrivals)
        self._forget(ticket)

    def _known(self, ticket: Ticket) -> None:
        """Refuse a ticket that is not with its worker now."""
        if not isinstance(ticket, Ticket):
            raise TypeError(f"Invalid ticket: {ticket!r} (expected what issue returned)")
        here = self._flying.get(ticket.number)
        if here is ticket and not self._lost:
            return
        if here is None:
            known = 0 <= ticket.number < self._record.tickets
            what = "has been returned or called off already" if known else "was never issued"
            raise ValueError(f"Ticket {ticket.number} {what}")
        if here != ticket or ticket.number in self._lost:
            raise ValueError(f"Ticket {ticket.number} is not with worker {ticket.worker}: it was lost, or issued again")

    def _forget(self, ticket: Ticket) -> None:
        self._slots.release(ticket.number)
        del self._flying[ticket.number]
        self._busy[ticket.worker] = None

    def _new_points(self) -> Points:
        return [[torch.empty_like(p, requires_grad=False) for p in self._params] for _ in range(self.optimizer.points)]

    def _sample(self, number: int) -> int:
        block, place = divmod(number, _BLOCK)
        if self._samples is None or self._samples[0] != block:
            self._samples = block, sample_seeds(self.seed, _BLOCK, first=block * _BLOCK)
        return int(self._samples[1][place])

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
        """Count an arrival and do with it what policy and optimizer say.

        Args:
            ticket: What `issue` returned.
            contribution: What the worker sends: one tensor per parameter (a single one if there is one). Or a function
                that returns it, which is only called if somebody will look at the result.
            finite: Whether it is free of NaN and infinities, if the worker has looked; otherwise the server does.
            group: The group of its sample, for the trace.
            at: The clock.
        """
        self._known(ticket)
        group, at = self._checked_group(group), self._checked_time(at)
        opt = self.optimizer
        version = opt.version
        delay = version - ticket.version
        # A policy counts; if anything below raises, the call must leave its counters as they were.
        undo = copy.deepcopy(self.policy.state) if self.policy.state else {}
        decision = self.policy.receive(ticket, delay)
        action = decision.action
        # What is flushed has been weighted by the policy, so it counts as fresh.
        flushed = action == "flush"
        arrival = Arrival(
            version,
            version if flushed else ticket.version,
            ticket.worker,
            len(self._busy),
            self._slots[ticket.number][0],
            ticket.zero and not flushed,
            next(iter(self._flying.values())).version,
        )
        # Whether the rule would read the values: asked once, because a gradient that nobody reads is never computed.
        used = action != "drop" and opt.needs(arrival)
        wanted = not ticket.zero and (used or action in ("hold", "flush"))
        tensors: list[Tensor] | None = None
        try:
            if wanted and contribution is not _nothing:
                tensors = self._checked(contribution() if callable(contribution) else contribution)
                if finite is None:
                    finite = all(map(is_finite, tensors))
            broken = tensors is not None and finite is False
            status = self._carry_out(action, decision.weight, arrival, None if broken else tensors, used)
        except BaseException:
            self.policy.state = undo
            raise
        self.arrivals += 1
        self.non_finite += broken
        if at == at:  # not NaN: there is a clock
            self._now = at
        if contribution is _nothing:
            self._record.gave_up(ticket)
        self._record.arrived(ticket, status, self.arrivals, version if opt.version > version else 0, group, at)
        self._forget(ticket)
        cancelled: tuple[Ticket, ...] = ()
        if self._may_cancel:
            cancelled = tuple(self.policy.cancel(self.in_flight, opt.version))
            for stale in cancelled:
                self.cancel(stale)
        return Outcome(status, self.arrivals, delay, not broken and contribution is not _nothing, cancelled)

    def give_up(self, ticket: Ticket, *, group: int = 0, at: float = math.nan) -> Outcome:
        """Count a ticket that nobody could compute as an arrival of weight zero; the trace lists it."""
        return self.receive(ticket, _nothing, group=group, at=at)

    def _checked_group(self, group: int) -> int:
        if not 0 <= whole_number("group", group) < len(self._record.groups):
            raise ValueError(f"Invalid group value: {group} (the server has the groups {list(self._record.groups)})")
        return group

    def _checked_time(self, at: float) -> float:
        if self._record.clock == "none":
            if at == at:  # not NaN
                raise ValueError(f"Invalid at value: {at:g} (the server has no clock: make it with clock='real')")
            return math.nan
        if math.isnan(at) or at < self._now:
            raise ValueError(f"Invalid at value: {at:g} (the {self._record.clock} clock stands at {self._now:g})")
        return at

    def _checked(self, contribution: Contribution) -> list[Tensor]:
        if isinstance(contribution, Tensor):
            tensors = [contribution]
        elif isinstance(contribution, Sequence):
            tensors = list(contribution)
        else:
            kind = type(contribution).__name__
            raise TypeError(f"Invalid contribution: {kind} (expected a tensor, or one a parameter)")
        if len(tensors) != len(self._params):
            raise ValueError(f"A contribution needs {len(self._params)} tensors, got {len(tensors)}")
        for i, (tensor, p) in enumerate(zip(tensors, self._params, strict=True)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"Part {i} of the contribution is a {type(tensor).__name__}, not a tensor")
            if tensor.layout is not torch.strided:
                raise TypeError(f"Part {i} of the contribution is {tensor.layout}: contributions are dense")
            if tensor.shape != p.shape or tensor.dtype != p.dtype or tensor.device != p.device:
                raise ValueError(
                    f"Part {i} of the contribution is {tensor.dtype} of shape {tuple(tensor.shape)} on "
                    f"{tensor.device}; the parameter is {p.dtype} of shape {tuple(p.shape)} on {p.device}"
                )
        return tensors

    def _carry_out(self, action: str, weight: float, arrival: Arrival, tensors: list[Tensor] | None, used: bool) -> str:
        """Do what the policy says and return the status.

        Args:
            action: What the policy says.
            weight: In a mean that is held back.
            arrival: For the optimizer.
            tensors: The contribution; None where there is nothing to look at.
            used: Whether the optimizer would read it.
        """
        opt = self.optimizer
        if action == "drop":
            return "dropped"
        held = self._held
        if action != "apply" and tensors is not None:
            total, weights = held or ([torch.zeros_like(t) for t in tensors], 0.0)
            held = (list(torch._foreach_add(total, tensors, alpha=weight)), weights + weight)
        if action == "hold":
            self._held = held
            return "held"
        if action == "flush":
            tensors = list(torch._foreach_div(held[0], held[1])) if held is not None and held[1] else None
        zero = arrival.zero or (used and tensors is None)
        # A rule that will not look at the values still needs to know which parameters take part: all of them.
        opt.receive(arrival if zero == arrival.zero else replace(arrival, zero=zero), tensors or self._params)
        if action == "flush":
            self._held = None
        if zero or (not used and not opt.drops(arrival)):
            return "zero"
        return "applied" if used else "dropped"

    # ---- the record ---------------------------------------------------------------------------------------------

    def trace(self, model: str = "recorded") -> Trace:
        """Return the trace of the run so far."""
        return self._record.trace(model)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs, in types that load with ``weights_only=True``; tensors are shared."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "parameters": [p.detach() for p in self._params],
            "policy": [self.policy.name, self.policy.state],
            "counts": [self.seed, self.arrivals, self.non_finite, self._now],
            "busy": list(self._busy.items()),
            "joined": sorted(self._joined),
            "flying": [astuple(ticket) for ticket in self._flying.values()],
            "lost": list(self._lost),
            "slots": dict(self._slots.items()),
            "held": self._held,
            "record": self._record.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, with the same optimizer options, policy and seed."""
        if not isinstance(state, dict) or "policy" not in state or "record" not in state:
            raise ValueError("This is not the state of a server")
        name, policy_state = state["policy"]
        seed, arrivals, non_finite, now = state["counts"]
        if name != self.policy.name or seed != self.seed:
            raise ValueError(
                f"This state is of policy {name!r} and seed {seed}, "
                f"the server has policy {self.policy.name!r} and seed {self.seed}"
            )
        saved = state["parameters"]
        if [t.shape for t in saved] != [p.shape for p in self._params]:
            raise ValueError(f"This state is of parameters of shapes {[tuple(t.shape) for t in saved]}")
        self.optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():
            torch._foreach_copy_(self._params, saved)
        self.policy.state = copy.deepcopy(policy_state)
        self.arrivals, self.non_finite, self._now = arrivals, non_finite, now
        self._busy, self._joined = dict(state["busy"]), set(state["joined"])
        self._flying = {values[0]: Ticket(*values) for values in state["flying"]}
        self._lost = list(state["lost"])
        slots = {n: [[tensor.clone() for tensor in point] for point in points] for n, points in state["slots"].items()}
        for number, _ in self._slots.items():
            self._slots.release(number)
        for number, saved_points in slots.items():
            for point, saved_point in zip(self._slots.take(number), saved_points, strict=True):
                torch._foreach_copy_(point, saved_point)
        held = state["held"]
        self._held = None if held is None else ([tensor.clone() for tensor in held[0]], held[1])
        self._record.load_state_dict(state["record"])


def _nothing() -> Contribution:
    """Stand for the contribution of a ticket that is given up; never called."""
    return ()
