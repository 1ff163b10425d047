"""What a policy is: tickets, decisions, and the base class; `Async` applies every arrival."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar, Literal

from .._util.checks import AT_LEAST_ZERO
from .._util.naming import stable_name

__all__ = ["Async", "Decision", "InFlight", "Policy", "Ticket", "options_of"]

_ACTIONS = ("apply", "drop", "hold", "flush")


@dataclass(frozen=True, slots=True)
class Ticket:
    """One job of a worker: it fixes the sample and the iterate to start from.

    Args:
        number: Counts the tickets; with the seed it fixes the sample, whichever worker computes it.
        worker: The worker that has it.
        version: Index of the iterate that it starts from.
        seen: Number of arrivals the server had counted when it issued the ticket.
        sample: Seeds everything random in the job.
        zero: Counts as an arrival with weight zero: the first ticket of a worker that joined later.

    Examples:
        >>> Ticket(number=4, worker=1, version=3, seen=2, sample=7).version
        3
    """

    number: int
    worker: int
    version: int
    seen: int
    sample: int
    zero: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What the server does with one contribution.

    Args:
        action: ``"apply"`` makes an update of it, ``"drop"`` ignores it, ``"hold"`` keeps it, and ``"flush"`` keeps it
            and then applies the mean of everything held as one update.
        weight: Its weight in that mean.
        divisor: What it adds to the number by which the weighted sum is divided: its weight by default, which makes
            the sum a mean.

    Examples:
        >>> Decision("hold", weight=0.5).action
        'hold'
    """

    action: Literal["apply", "drop", "hold", "flush"]
    weight: float = 1.0
    divisor: float | None = None

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise ValueError(f"Invalid action value: {self.action!r} (expected one of {', '.join(_ACTIONS)})")
        object.__setattr__(self, "weight", AT_LEAST_ZERO.check("weight", self.weight))
        if self.divisor is not None:
            object.__setattr__(self, "divisor", AT_LEAST_ZERO.check("divisor", self.divisor))


class InFlight(Sequence[Ticket]):
    """The tickets that workers compute now, oldest first, looked up and not copied: there may be very many.

    Args:
        tickets: The tickets by a key, in order of issue.
        key: Name of the attribute that is the key.
        lost: Keys of tickets that no worker has.
    """

    def __init__(self, tickets: Mapping[int, Ticket], key: str, lost: Collection[int] = ()) -> None:
        self._tickets, self._key, self._lost = tickets, key, lost

    def __len__(self) -> int:
        return len(self._tickets) - len(self._lost)

    def __iter__(self) -> Iterator[Ticket]:
        if not self._lost:
            return iter(self._tickets.values())
        return (ticket for key, ticket in self._tickets.items() if key not in self._lost)

    def __contains__(self, ticket: object) -> bool:
        key = getattr(ticket, self._key, -1)
        return key not in self._lost and self._tickets.get(key) == ticket

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class Policy(ABC):
    """Decides what to do with an arrival, by counters only: a schedule must not depend on the parameters.

    A policy may keep counters in `state`; the server saves them. It needs a `name` of its own, which a trace records.
    Attributes other than `state` are its options: they must not change during a run, and `repr` shows them.

    Examples:
        >>> class EveryOther(Policy):
        ...     name = "every-other"
        ...     def receive(self, ticket, delay):
        ...         return Decision("drop" if ticket.number % 2 else "apply")
        >>> EveryOther().receive(Ticket(3, worker=0, version=1, seen=0, sample=0), delay=0).action
        'drop'
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def __repr__(self) -> str:
        options = sorted(options_of(self).items())
        return f"{type(self).__qualname__}({', '.join(f'{name}={stable_name(value)}' for name, value in options)})"

    @abstractmethod
    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Return what to do with the contribution of ``ticket``; ``delay`` counts updates."""

    def cancel(self, in_flight: Sequence[Ticket], version: int) -> Sequence[Ticket]:
        """Return the tickets to cancel now that the parameters hold ``version``; none by default.

        Asked after every arrival. ``in_flight`` has the tickets that a worker computes now, oldest first; one whose
        worker has died is not among them. A worker process whose ticket is cancelled is killed and started again.
        """
        return ()

    def may_start(self, in_flight: int) -> bool:
        """Return whether an idle worker may start a new ticket while ``in_flight`` others run; always by default.

        A run on real workers asks before it issues a ticket, and so does a delay model with a clock. A replay does not
        ask: its trace has the times. With nothing in flight the answer must be yes, else the run could not go on.
        """
        return True


def late(in_flight: Sequence[Ticket], version: int, delay: float) -> list[Ticket]:
    """Return the tickets whose delay is ``delay`` or more now that the parameters hold ``version``.

    The oldest come first, so it looks at one ticket more than it returns. A ticket that is issued again keeps its
    version and its place, and a worker that joins gets the newest version.
    """
    return list(takewhile(lambda ticket: version - ticket.version >= delay, in_flight))


def options_of(policy: Policy) -> dict[str, Any]:
    """Return the options of a policy, by name: all attributes but the counters."""
    return {name: value for name, value in vars(policy).items() if name != "state"}


class Async(Policy):
    """The paper's policy: every arrival is an update.

    Examples:
        >>> Async().receive(Ticket(0, worker=0, version=1, seen=0, sample=0), delay=0).action
        'apply'
    """

    name = "async"
    _apply = Decision("apply")

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Return "apply"."""
        return self._apply
