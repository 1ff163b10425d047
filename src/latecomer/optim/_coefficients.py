"""Schedules of beta and lr by version.

A gradient of version ``k`` that arrives at ``t`` gets ``beta_k · prod(1 - beta_m, m = k+1..t)``, so past values of
beta and lr are needed. They are kept as *runs*: a list of ``(start, beta, lr)`` in which each entry holds from arrival
``start`` until the next entry. A constant schedule is one run, and every formula below is then the closed form.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import Arrival, AsyncOptimizer, Group, Work

__all__ = ["Coefficients", "VersionIndexed", "beta_at", "forget", "geometric", "missed", "record", "retained"]

Coefficients = list[tuple[int, float, float]]


def record(runs: Coefficients, t: int, beta: float, lr: float) -> None:
    """Record that ``beta`` and ``lr`` hold at arrival ``t``."""
    if not runs or runs[-1][1] != beta or runs[-1][2] != lr:
        runs.append((t, beta, lr))


def forget(runs: Coefficients, oldest: int) -> None:
    """Drop the entries that only versions before ``oldest`` need."""
    unused = 0
    while unused + 1 < len(runs) and runs[unused + 1][0] <= oldest:
        unused += 1
    if unused:
        del runs[:unused]


def _run_of(runs: Coefficients, version: int) -> int:
    """Return the index of the run that holds at ``version``; versions before the first run belong to it."""
    i = len(runs) - 1
    while i > 0 and runs[i][0] > version:
        i -= 1
    return i


def beta_at(runs: Coefficients, version: int) -> float:
    """Return beta at arrival ``version``."""
    return runs[_run_of(runs, version)][1]


def retained(runs: Coefficients, version: int, t: int) -> float:
    """Return ``prod(1 - beta_m, m = version+1..t)``: the share of a gradient of ``version`` that is left at ``t``."""
    product, last = 1.0, t
    for i in range(len(runs) - 1, -1, -1):
        first = version + 1 if i == 0 else max(runs[i][0], version + 1)
        if first <= last:
            product *= (1.0 - runs[i][1]) ** (last - first + 1)
            last = first - 1
        if last <= version:
            break
    return product


def missed(runs: Coefficients, version: int, t: int) -> float:
    """Return the displacement that a gradient of ``version`` would have caused before its arrival ``t``.

    That is ``sum(lr_s · beta_k · prod(1 - beta_m, m = k+1..s), s = k..t-1)`` with ``k = version``; for constant lr
    and beta it is ``lr · (1 - (1 - beta)^(t - k))``.
    """
    if t == version:
        return 0.0
    i = _run_of(runs, version)
    _, beta_k, lr_k = runs[i]
    # The term s = k is separate; after it every run adds a geometric sum.
    total, product, s = lr_k, 1.0, version + 1
    while s < t:
        end = runs[i + 1][0] if i + 1 < len(runs) else t
        n = min(end, t) - s
        if n > 0:
            _, beta, lr = runs[i]
            total += lr * product * (1.0 - beta) * geometric(beta, n)
            product *= (1.0 - beta) ** n
            s += n
        i += 1
    return beta_k * total


def geometric(beta: float, n: int) -> float:
    """Return ``sum((1 - beta)^i, i = 0..n-1)``, without the cancellation of ``(1 - (1 - beta)^n) / beta``."""
    return 1.0 if beta == 1.0 else -math.expm1(n * math.log1p(-beta)) / beta


class VersionIndexed(AsyncOptimizer):
    """Mixin that stores the schedule of beta by version in ``group["runs"]``."""

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        group["runs"] = []

    def forget(self, oldest: int) -> None:
        """Drop the schedule of versions before ``oldest``, if no gradient of them can arrive any more.

        Otherwise a beta that changes at every update, and with catch-up such an lr, is stored entry by entry. A server
        calls this by itself.

        Examples:
            >>> import torch
            >>> import latecomer as lc
            >>> x = torch.nn.Parameter(torch.zeros(1))
            >>> opt = lc.optim.OrderedMomentum([x], lr=0.1, beta=0.5, catch_up=True)
            >>> for t in range(1, 101):
            ...     opt.param_groups[0]["lr"] = 1 / t
            ...     x.grad = torch.zeros(1); opt.step(); opt.forget(oldest=opt.version - 10)
            >>> len(opt.param_groups[0]["runs"])
            10
        """
        for group in self.param_groups:
            forget(group["runs"], oldest)

    def _remembered_lr(self, group: Group) -> float:
        """Return the lr to store; 0 for a rule that never uses past ones, so that an lr schedule needs no memory."""
        return 0.0

    def _rescale_absent(self, group: Group, params: list[Tensor], key: str, factor: float) -> None:
        """Multiply the buffers of the group's parameters that have no gradient now: the scale is the group's."""
        present = set(map(id, params))
        absent = [p for p in group["params"] if id(p) not in present and p in self.state and key in self.state[p]]
        if absent:
            torch._foreach_mul_([self.state[p][key] for p in absent], factor)

    def _apply(self, work: Work, arrival: Arrival) -> None:
        for group in self.param_groups:
            record(group["runs"], arrival.t, float(group["beta"]), self._remembered_lr(group))
        super()._apply(work, arrival)
        if arrival.oldest is not None:
            self.forget(arrival.oldest)
