"""What the server does with an arrival. The paper's methods all use `Async`: apply every arrival at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

__all__ = ["POLICIES", "Async", "Decision", "Policy", "Synchronous", "Ticket"]


@dataclass(frozen=True, slots=True)
class Ticket:
    """One job handed to a worker: it fixes the sample, and the iterate to start from.

    Args:
        number: A counter; the sample follows from it and the seed, whoever does the job.
        worker: The seat it is with.
        version: Index of the iterate it starts from.
        seen: How many arrivals the server had counted when it was issued.
        sample: Seed of everything random in the job.
        zero: Counts when it arrives but weighs nothing: the first ticket of a worker that joined later.

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
    """What to do with one contribution.

    Args:
        action: ``"apply"`` it as an update; ``"drop"`` it; ``"hold"`` it back; or ``"flush"``: hold it, then apply the
            mean of all that is held as one update.
        weight: Its weight in the mean, for hold and flush.

    Examples:
        >>> Decision("hold", weight=0.5).action
        'hold'
    """

    action: Literal["apply", "drop", "hold", "flush"]
    weight: float = 1.0


class Policy(ABC):
    """Decides by counters alone, never by values: so a schedule does not depend on the parameters.

    A policy may keep counters of its own in `state`, which the server saves with everything else.

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
        options = {k: v for k, v in vars(self).items() if k != "state"}
        return f"{type(self).__qualname__}({', '.join(f'{k}={v!r}' for k, v in sorted(options.items()))})"

    @abstractmethod
    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Say what to do with the contribution of ``ticket``, which comes with this delay in updates."""

    def cancel(self, in_flight: Sequence[Ticket], version: int) -> Sequence[Ticket]:
        """Say which running jobs to call off, now that the parameters hold ``version``; none by default."""
        return ()

    def may_start(self, in_flight: int) -> bool:
        """Say whether a free worker may start on a new ticket now, while so many others are out; always by default.

        An engine asks before it issues a ticket. A trace already says when tickets went out, so replaying does not.
        """
        return True


class Async(Policy):
    """The paper's server: every arrival is an update, at once.

    Examples:
        >>> Async().receive(Ticket(0, worker=0, version=1, seen=0, sample=0), delay=0).action
        'apply'
    """

    name = "async"
    _apply = Decision("apply")

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Apply it."""
        return self._apply


class Synchronous(Policy):
    """Data parallel training with a barrier: so many contributions at one iterate, then one update with their mean.

    Args:
        workers: How many contributions make an update.

    Examples:
        >>> policy = Synchronous(2)
        >>> [policy.receive(Ticket(i, worker=i, version=1, seen=0, sample=0), delay=0).action for i in range(2)]
        ['hold', 'flush']
        >>> policy.may_start(in_flight=1), policy.may_start(in_flight=2)
        (True, False)
    """

    name = "synchronous"
    _hold, _flush = Decision("hold"), Decision("flush")

    def __init__(self, workers: int) -> None:
        super().__init__()
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            raise ValueError(f"Invalid workers value: {workers!r} (expected a whole number, at least 1)")
        self.workers = workers

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Hold it, or update with the mean if it is the last of its round."""
        held = (int(self.state.get("held", 0)) + 1) % self.workers
        self.state["held"] = held
        return self._hold if held else self._flush

    def may_start(self, in_flight: int) -> bool:
        """Say whether the round still lacks somebody."""
        return int(self.state.get("held", 0)) + in_flight < self.workers


POLICIES: Mapping[str, type[Policy]] = MappingProxyType({"async": Async, "synchronous": Synchronous})
"""The policies that come with the library, by name."""
