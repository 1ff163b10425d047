"""The policies by name, and what ``policy=`` means."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from .._util.suggest import unknown
from .base import Async, Policy
from .ringleader import Ringleader
from .ringmaster import Ringmaster, RingmasterStop
from .rounds import AsyncMiniBatch, FedBuff, Rennala, RennalaStop, Synchronous

__all__ = ["POLICIES", "PolicyLike", "as_policy"]

PolicyLike = Policy | type[Policy] | Callable[..., Policy] | str
"""What ``policy=`` takes: an instance, a class, a function that makes one, or a name in `POLICIES`."""

_LIBRARY: tuple[type[Policy], ...] = (
    Async, Synchronous, Ringmaster, RingmasterStop, Rennala, RennalaStop, AsyncMiniBatch, FedBuff, Ringleader,
)  # fmt: skip

_BY_METHOD = {"sync-minibatch": Synchronous.name}
"""Names of methods whose policy is called otherwise."""
POLICIES: Mapping[str, type[Policy]] = MappingProxyType({policy.name: policy for policy in _LIBRARY})
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
        policy = _BY_METHOD.get(policy, policy)
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
        anything = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
        for name in () if anything else given.keys() - arguments.keys():
            known = ", ".join(other for other in arguments if other != "workers") or "none"
            raise ValueError(
                f"The policy {getattr(policy, '__name__', 'policy')} has no option {name!r} (it has {known})"
            )
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
