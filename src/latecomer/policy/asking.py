"""Asking a policy: its answers are checked, and that it keeps its counters where a checkpoint finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .base import Decision, Policy, Ticket
from .known import POLICIES

__all__ = ["STUCK", "allowed", "cancelled", "decided"]

STUCK = "The policy {policy!r} lets no worker start while nothing is in flight: may_start(0) must be true at some time"
"""Why a run, or a trace, cannot go on."""


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
    if not isinstance(getattr(answer, "item", lambda: answer)(), bool):
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
    seen: set[int] = set()
    for ticket in chosen:
        if not isinstance(ticket, Ticket):
            raise TypeError(
                f"The policy {policy!r} returned {ticket!r} among the tickets to cancel (expected some of the tickets "
                "that cancel was called with)"
            )
        if ticket.number in seen or ticket not in in_flight:
            raise ValueError(
                f"The policy {policy!r} cancels ticket {ticket.number}, which is not in flight (expected some of the "
                "tickets that cancel was called with, each once)"
            )
        seen.add(ticket.number)
    return chosen
