"""Policies: what the server does with an arrival. The paper's methods use `Async`, which applies every arrival."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

__all__ = ["POLICIES", "Async", "Decision", "Policy", "Synchronous", "Ticket"]


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

    Examples:
        >>> Decision("hold", weight=0.5).action
        'hold'
    """

    action: Literal["apply", "drop", "hold", "flush"]
    weight: float = 1.0


class Policy(ABC):
    """Decides what to do with an arrival, by counters only: a schedule must not depend on the parameters.

    A policy may keep counters in `state`; the server saves them.

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
        """Return what to do with the contribution of ``ticket``; ``delay`` counts updates."""

    def cancel(self, in_flight: Sequence[Ticket], version: int) -> Sequence[Ticket]:
        """Return the tickets to cancel now that the parameters hold ``version``; none by default."""
        return ()

    def may_start(self, in_flight: int) -> bool:
        """Return whether an idle worker may start a new ticket while ``in_flight`` others run; always by default.

        An engine asks before it issues a ticket. A replay does not ask: its trace has the times.
        """
        return True


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


class Synchronous(Policy):
    """Synchronous data-parallel training: one update with the mean of ``workers`` contributions at one iterate.

    Args:
        workers: Number of contributions per update.

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
        """Hold it, or flush if it is the last one of its round."""
        held = (int(self.state.get("held", 0)) + 1) % self.workers
        self.state["held"] = held
        return self._hold if held else self._flush

    def may_start(self, in_flight: int) -> bool:
        """Return whether this round needs more contributions."""
        return int(self.state.get("held", 0)) + in_flight < self.workers


POLICIES: Mapping[str, type[Policy]] = MappingProxyType({"async": Async, "synchronous": Synchronous})
"""The policies that come with the library, by name."""
