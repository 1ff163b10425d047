"""Policies: what the server does with an arrival. The paper's methods use `Async`, which applies every arrival."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ._util.checks import AT_LEAST_ZERO
from ._util.naming import stable_name
from ._util.suggest import unknown

if TYPE_CHECKING:
    from .optim import Method, MethodLike

__all__ = ["POLICIES", "Async", "Decision", "Policy", "PolicyLike", "Synchronous", "Ticket", "as_policy"]

STUCK = "The policy {policy!r} lets no worker start while nothing is in flight: may_start(0) must be true at some time"
"""Why a run, or a trace, cannot go on."""
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

    Examples:
        >>> Decision("hold", weight=0.5).action
        'hold'
    """

    action: Literal["apply", "drop", "hold", "flush"]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise ValueError(f"Invalid action value: {self.action!r} (expected one of {', '.join(_ACTIONS)})")
        object.__setattr__(self, "weight", AT_LEAST_ZERO.check("weight", self.weight))


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
        options = {k: v for k, v in vars(self).items() if k != "state"}
        return f"{type(self).__qualname__}({', '.join(f'{k}={stable_name(v)}' for k, v in sorted(options.items()))})"

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


PolicyLike = Policy | type[Policy] | Callable[..., Policy] | str
"""What ``policy=`` takes: an instance, a class, a function that makes one, or a name in `POLICIES`."""

POLICIES: Mapping[str, type[Policy]] = MappingProxyType({"async": Async, "synchronous": Synchronous})
"""The policies that come with the library, by name."""


def as_policy(policy: PolicyLike | None, workers: int, options: Mapping[str, Any] | None = None) -> Policy:
    """Return a policy for one run, with counters of its own.

    Args:
        policy: None for `Async`, an instance, of which a copy is made, a class or a function, or a name in `POLICIES`.
        workers: Number of workers. A class or function with an argument of that name gets it.
        options: Other arguments of a class or function.

    Examples:
        >>> as_policy("synchronous", workers=4)
        Synchronous(workers=4)
        >>> as_policy(None, workers=4)
        Async()
    """
    made: Any
    if policy is None:
        return Async()
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(unknown("policy", policy, POLICIES))
        policy = POLICIES[policy]
    if isinstance(policy, Policy):
        try:
            made = copy.deepcopy(policy)
        except Exception as error:  # whatever its attributes raise
            raise TypeError(
                f"The policy {type(policy).__qualname__} cannot be copied ({error}), and every run has its own: pass "
                "the class, or a function that makes the policy"
            ) from error
    elif callable(policy) and (not isinstance(policy, type) or issubclass(policy, Policy)):
        given = dict(options or {})
        try:
            arguments = inspect.signature(policy).parameters
        except ValueError:  # built in, and without names of its arguments
            raise TypeError(f"Invalid policy: {policy!r} (expected a class or a function of Python's)") from None
        if "workers" in arguments:
            given.setdefault("workers", workers)
        for name, argument in arguments.items():
            optional = argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
            if argument.default is argument.empty and name not in given and not optional:
                kind = getattr(policy, "__name__", "policy")
                raise ValueError(f"The policy {kind} needs a value for {name!r}: pass policy={kind}({name}=...)")
        made = policy(**given)
    else:
        made = policy
    if not isinstance(made, Policy):
        raise TypeError(
            f"Invalid policy: {made!r} (expected an instance or a class of latecomer.policy.Policy, or one of "
            f"{', '.join(POLICIES)})"
        )
    _check_policy(made)
    return made


def _check_policy(policy: Policy) -> None:
    kind = type(policy).__qualname__
    if not isinstance(getattr(policy, "name", None), str) or not policy.name:
        raise TypeError(f"The policy {kind} has no name: add name = '...' to the class, which a trace records")
    if not isinstance(getattr(policy, "state", None), dict):
        raise TypeError(f"The policy {kind} has no state: call super().__init__() in its __init__")
    if POLICIES.get(policy.name, type(policy)) is not type(policy):
        raise ValueError(f"The policy {kind} has the name {policy.name!r} of another policy: choose one of its own")


def _options(policy: Policy) -> dict[str, tuple[Any, int]]:
    """Return what a policy of the user's must not change: its attributes, and how long those are that can grow."""
    if type(policy) in POLICIES.values():
        return {}
    return {
        name: (value, len(value) if isinstance(value, (list, dict, set)) else 0)
        for name, value in vars(policy).items()
        if name != "state"
    }


def _check_options(policy: Policy, before: dict[str, tuple[Any, int]], where: str) -> None:
    """Raise if a call has changed attributes: no checkpoint has them, so a resumed run would decide otherwise."""
    if not isinstance(policy.state, dict):
        raise TypeError(f"The policy {policy!r} set its state to {policy.state!r} in {where} (expected a dict)")
    after = _options(policy)
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if old is None or new is None or old[0] is not new[0] or old[1] != new[1]:
            raise ValueError(
                f"The policy {type(policy).__qualname__} changes self.{name} in {where}, which a checkpoint does not "
                f"hold: keep counters in self.state[{name!r}]"
            )


def decided(policy: Policy, ticket: Ticket, delay: int) -> Decision:
    """Ask a policy what to do with an arrival; an answer of another type raises."""
    before = _options(policy)
    decision = policy.receive(ticket, delay)
    _check_options(policy, before, "receive")
    if not isinstance(decision, Decision):
        raise TypeError(
            f"The policy {policy!r} returned {decision!r} from receive (expected a latecomer.policy.Decision)"
        )
    return decision


def allowed(policy: Policy, in_flight: int) -> bool:
    """Ask a policy whether an idle worker may start; an answer of another type raises."""
    before = _options(policy)
    answer = policy.may_start(in_flight)
    _check_options(policy, before, "may_start")
    if not isinstance(answer, (bool, np.bool_)):
        raise TypeError(f"The policy {policy!r} returned {answer!r} from may_start (expected True or False)")
    return bool(answer)


def cancelled(policy: Policy, in_flight: Sequence[Ticket], version: int) -> tuple[Ticket, ...]:
    """Ask a policy which tickets to cancel; anything but tickets in flight, each once, raises."""
    before = _options(policy)
    answer: Any = policy.cancel(in_flight, version)
    _check_options(policy, before, "cancel")
    try:
        chosen = None if isinstance(answer, (str, bytes, Mapping)) else tuple(answer)
    except TypeError:
        chosen = None
    if chosen is None:
        raise TypeError(f"The policy {policy!r} returned {answer!r} from cancel (expected a list of tickets)")
    left = {ticket.number: ticket for ticket in in_flight} if chosen else {}
    for ticket in chosen:
        if not isinstance(ticket, Ticket):
            raise TypeError(
                f"The policy {policy!r} returned {ticket!r} among the tickets to cancel (expected some of the tickets "
                "that cancel was called with)"
            )
        if left.pop(ticket.number, None) != ticket:
            raise ValueError(
                f"The policy {policy!r} cancels ticket {ticket.number}, which is not in flight (expected some of the "
                "tickets that cancel was called with, each once)"
            )
    return chosen


def method_and_policy(
    method: MethodLike, policy: PolicyLike | None, workers: int, options: Mapping[str, Any], grouped: bool = False
) -> tuple[Method, Policy]:
    """Return the method and the policy of a run, and check the hyper-parameters.

    A ``policy`` that is given replaces the method's own; its options are then no hyper-parameters of the method. With
    ``grouped`` the param groups may bring what the optimizer needs.
    """
    from .optim import as_method  # not above: traces need policies, and no torch

    found = as_method(method)
    if policy is not None:
        found = replace(found, policy=None)
        found.check(options, grouped)
        return found, as_policy(policy, workers)
    found.check(options, grouped)
    return found, as_policy(found.policy, workers, found.policy_options(options))
