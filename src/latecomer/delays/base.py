"""What all delay models share: groups and their shares, and the trace of an order of arrivals."""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.checks import Range, several, whole_number
from .._util.memory import check_memory
from .._util.seeds import sample_seeds
from ..policy import PolicyLike
from ..trace import Header, Trace
from .schedule import checked_time, ordered_trace, own_policy

__all__ = ["DelayModel", "arrivals_trace", "async_trace", "group_names", "group_shares"]

_SHARE = Range(0, 1)
_ROW_BYTES = 200  # of a trace in memory, and while its rules are checked


class DelayModel(ABC):
    """Decides which worker arrives when, and on which sample.

    `trace` makes one schedule. It depends on the seed and on the server's policy, and not on the values of any
    parameters. To write one, subclass it and return `arrivals_trace` of an order of arrivals; or
    subclass `ClockModel`, if every job has a duration.

    Examples:
        >>> import latecomer as lc
        >>> model = lc.delays.Uniform(workers=3)
        >>> model.trace(steps=100, seed=1) == model.trace(steps=100, seed=1)
        True
    """

    workers: int

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__qualname__}({options})"

    @abstractmethod
    def trace(self, steps: int, seed: int = 0, policy: PolicyLike | None = None) -> Trace:
        """Return a schedule of ``steps`` arrivals under a policy; without one every arrival is an update."""


def group_shares(slow_share: float | None, shares: Sequence[float] | None, default: float = 0.0) -> tuple[float, ...]:
    """Return the share of every group, fastest first, from either argument."""
    if shares is None:
        slow = _SHARE.check("slow_share", default if slow_share is None else slow_share)
        return (1.0 - slow, slow) if slow else (1.0,)
    if slow_share is not None:
        raise ValueError("Pass slow_share for one slow group, or shares for several, not both")
    checked = tuple(_SHARE.check("share", share) for share in several("shares", shares))
    if not checked or abs(sum(checked) - 1.0) > 1e-9:
        raise ValueError(f"Invalid shares: {list(checked)} add up to {sum(checked):g} (expected 1)")
    return checked


def group_names(shares: Sequence[float]) -> tuple[str, ...]:
    """Return the names of the groups, fastest first."""
    if len(shares) == 1:
        return ("all",)
    return ("fast", "slow") if len(shares) == 2 else ("fast", *(f"slow {i}" for i in range(1, len(shares))))


def groups_from(uniform: NDArray[np.float64], shares: Sequence[float]) -> NDArray[np.int16]:
    """Return the group of every uniform number: [0, 1) is cut by the shares, slowest group first."""
    edges = np.cumsum(np.asarray(shares)[::-1])[:-1]
    return (len(shares) - 1 - np.searchsorted(edges, uniform, side="right")).astype(np.int16)


def last_arrivals(worker: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return for every arrival the previous arrival of the same worker, 0 if there was none."""
    order = np.argsort(worker, kind="stable")
    previous = np.zeros(len(worker), dtype=np.int64)
    same = worker[order][1:] == worker[order][:-1]
    previous[order[1:][same]] = order[:-1][same] + 1
    return previous


def tickets_of(worker: NDArray[np.integer[Any]], workers: int) -> NDArray[np.int64]:
    """Return the ticket of every arrival: 0 to M-1 are issued at the start, M-1+t to the worker of arrival t."""
    before = last_arrivals(worker)
    ticket: NDArray[np.int64] = np.where(before > 0, workers - 1 + before, worker)
    return ticket


def arrivals_trace(
    worker: NDArray[np.integer[Any]],
    policy: PolicyLike | None,
    *,
    workers: int,
    seed: int,
    model: str,
    groups: tuple[str, ...],
    group: NDArray[np.int16],
) -> Trace:
    """Return the trace in which workers arrive in this order, under a policy that makes none of them wait.

    Args:
        worker: The worker of every arrival.
        policy: The policy; None if every arrival is an update.
        workers: Number of workers.
        seed: Draws the samples.
        model: Description of where the order comes from.
        groups: Names of the groups.
        group: Group of every arrival.
    """
    workers, seed = checked_workers(workers), whole_number("seed", seed)
    names = several("groups", groups, "names")
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"Invalid groups: {groups!r} (expected names, such as ('all',))")
    if not isinstance(model, str):
        raise TypeError(f"Invalid model: {model!r} (expected a description, such as repr(self))")
    groups = tuple(names)
    worker = _numbers("worker", worker, "the worker of every arrival", workers).astype(np.int32)
    group = _numbers("group", group, "the group of every arrival", len(groups)).astype(np.int16)
    if len(worker) != len(group):
        raise ValueError(f"There are {len(worker)} workers of arrivals and {len(group)} groups (expected as many)")
    own = own_policy(policy, workers)
    if own is None:
        return async_trace(worker, workers=workers, seed=seed, model=model, groups=groups, group=group)
    order, of = worker.tolist(), group.tolist()
    return ordered_trace(order, of, own, workers=workers, seed=seed, groups=groups, model=model)


def _numbers(name: str, values: Any, what: str, below: int) -> NDArray[Any]:
    """Return an array of whole numbers below a limit, or raise."""
    try:
        found = np.asarray(values)
    except ValueError:  # rows of different lengths
        found = np.zeros(0)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        raise TypeError(f"Invalid {name}: {repr(values)[:200]} (expected an array of whole numbers, {what})")
    wrong = np.flatnonzero((found < 0) | (found >= below))
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(f"Invalid {name} of arrival {at + 1}: {found[at]} (expected 0 to {below - 1})")
    return found


def async_trace(
    worker: NDArray[np.integer[Any]],
    *,
    workers: int,
    seed: int,
    model: str,
    groups: tuple[str, ...],
    group: NDArray[np.int16],
    end: NDArray[np.float64] | None = None,
) -> Trace:
    """Return the trace in which workers arrive in this order and every arrival is an update.

    Args:
        worker: The worker of every arrival.
        workers: Number of workers.
        seed: Draws the samples.
        model: Description of where the order comes from.
        groups: Names of the groups.
        group: Group of every arrival.
        end: Time of every arrival, if there is a clock; a ticket starts when it is issued.
    """
    steps = len(worker)
    t = np.arange(1, steps + 1)
    ticket = tickets_of(worker, workers)
    n = workers + steps - 1
    columns: dict[str, NDArray[Any]] = {
        "ticket": np.arange(n),
        "worker": np.concatenate([np.arange(workers), worker[:-1]]),
        "seen": np.concatenate([np.zeros(workers, dtype=np.int64), t[:-1]]),
        "arrival": np.zeros(n, dtype=np.int64),
        "ended": np.full(n, -1, dtype=np.int64),
        "group": np.full(n, -1, dtype=np.int16),
        "sample": sample_seeds(seed, n),
        "start": np.full(n, np.nan),
        "end": np.full(n, np.nan),
        "status": np.full(n, -1, dtype=np.int8),
    }
    columns["version"] = columns["seen"] + 1
    columns["arrival"][ticket] = t
    columns["update"] = columns["arrival"]
    columns["status"][ticket] = 0
    columns["group"][ticket] = group
    if end is not None:
        checked_time(float(end.max(initial=0.0)), model)
        columns["start"] = np.concatenate([np.zeros(workers), end[:-1]])
        columns["end"][ticket] = end
    header = Header(
        workers=workers,
        seed=seed,
        groups=groups,
        model=model,
        clock="none" if end is None else "virtual",
        versions={"numpy": np.__version__, "python": platform.python_version()},
    )
    return Trace(header, columns)


def checked_steps(steps: int, seed: int) -> tuple[int, int]:
    """Check the two numbers that every model takes."""
    steps = whole_number("steps", steps, least=1)
    check_memory(steps * _ROW_BYTES, f"{steps:,} arrivals", "use fewer steps")
    return steps, whole_number("seed", seed)


def own_workers(model: DelayModel) -> int:
    """Return the number of workers that a model of the user's has set."""
    kind = type(model).__qualname__
    if not hasattr(model, "workers"):
        raise TypeError(f"{kind} has no number of workers: set self.workers in its __init__")
    try:
        return checked_workers(model.workers)
    except (TypeError, ValueError) as error:
        raise type(error)(f"The workers of {kind}: {error}") from None


def checked_workers(workers: int) -> int:
    """Check the number of workers, each of which has a row in every trace."""
    workers = whole_number("workers", workers, least=1)
    check_memory(workers * _ROW_BYTES, f"{workers:,} workers", "use fewer workers")
    return workers
