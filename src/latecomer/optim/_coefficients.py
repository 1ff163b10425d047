"""Version-indexed coefficients: which beta and lr were in force when.

A gradient of version ``k`` that arrives at ``t`` gets ``beta_k · prod(1 - beta_m, m = k+1..t)``, so a schedule
of beta or lr has to be remembered. It is kept as *runs*: a list of ``(start, beta, lr)`` in which each entry
holds from arrival ``start`` until the next entry. A constant schedule is one run, whatever its length, and every
formula below is then the closed form.
"""

from __future__ import annotations

import math

from .base import Arrival, AsyncOptimizer, Group, Work

__all__ = ["Coefficients", "VersionIndexed", "beta_at", "forget", "missed", "record", "retained"]

Coefficients = list[tuple[int, float, float]]


def record(runs: Coefficients, t: int, beta: float, lr: float) -> None:
    """Note that ``beta`` and ``lr`` are in force at arrival ``t``.

    Examples:
        >>> runs = []
        >>> for t in range(1, 100):
        ...     record(runs, t, beta=0.1 if t < 50 else 0.05, lr=1.0)
        >>> runs
        [(1, 0.1, 1.0), (50, 0.05, 1.0)]
    """
    if not runs or runs[-1][1] != beta or runs[-1][2] != lr:
        runs.append((t, beta, lr))


def forget(runs: Coefficients, oldest: int) -> None:
    """Drop what only versions before ``oldest`` would need.

    Examples:
        >>> runs = [(1, 0.1, 1.0), (50, 0.05, 1.0), (80, 0.01, 1.0)]
        >>> forget(runs, oldest=60)
        >>> runs
        [(50, 0.05, 1.0), (80, 0.01, 1.0)]
    """
    useless = 0
    while useless + 1 < len(runs) and runs[useless + 1][0] <= oldest:
        useless += 1
    if useless:
        del runs[:useless]


def _run_of(runs: Coefficients, version: int) -> int:
    """Index of the run in force at ``version``; versions before the first run count as part of it."""
    i = len(runs) - 1
    while i > 0 and runs[i][0] > version:
        i -= 1
    return i


def beta_at(runs: Coefficients, version: int) -> float:
    """Return the beta that was in force at arrival ``version``.

    Examples:
        >>> beta_at([(1, 0.1, 1.0), (50, 0.05, 1.0)], version=49)
        0.1
    """
    return runs[_run_of(runs, version)][1]


def retained(runs: Coefficients, version: int, t: int) -> float:
    """Return ``prod(1 - beta_m, m = version+1..t)``: what momentum keeps at ``t`` of something ``version`` old.

    Examples:
        >>> round(retained([(1, 0.1, 1.0)], version=3, t=5), 12)  # (1 - 0.1)^2
        0.81
        >>> round(retained([(1, 0.1, 1.0), (5, 0.5, 1.0)], version=3, t=5), 12)
        0.45
    """
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
    """Return the displacement a gradient of ``version`` would have caused before its arrival ``t``.

    That is ``sum(lr_s · beta_k · prod(1 - beta_m, m = k+1..s), s = k..t-1)`` with ``k = version``; for constant lr
    and beta it is ``lr · (1 - (1 - beta)^(t - k))``.

    Examples:
        >>> round(missed([(1, 0.1, 2.0)], version=3, t=5), 12)  # 2 · (1 - 0.9^2)
        0.38
    """
    if t == version:
        return 0.0
    i = _run_of(runs, version)
    _, beta_k, lr_k = runs[i]
    # The term s = k stands alone; after it every run adds a geometric sum.
    total, product, s = lr_k, 1.0, version + 1
    while s < t:
        end = runs[i + 1][0] if i + 1 < len(runs) else t
        n = min(end, t) - s
        if n > 0:
            _, beta, lr = runs[i]
            total += lr * product * (1.0 - beta) * _geometric(beta, n)
            product *= (1.0 - beta) ** n
            s += n
        i += 1
    return beta_k * total


def _geometric(beta: float, n: int) -> float:
    """``sum((1 - beta)^i, i = 0..n-1)``, without the cancellation of ``(1 - (1 - beta)^n) / beta``."""
    return 1.0 if beta == 1.0 else -math.expm1(n * math.log1p(-beta)) / beta


class VersionIndexed(AsyncOptimizer):
    """Mixin that remembers which beta was in force at which version, in ``group["runs"]``.

    Examples:
        >>> import torch
        >>> import latecomer as lc
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = lc.optim.OrderedMomentum([x], lr=0.1, beta=0.5)
        >>> for beta in (0.5, 0.5, 0.25):
        ...     opt.param_groups[0]["beta"] = beta
        ...     x.grad = torch.zeros(1); opt.step()
        >>> [(start, beta) for start, beta, _ in opt.param_groups[0]["runs"]]
        [(1, 0.5), (3, 0.25)]
    """

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        group["runs"] = []

    def forget(self, oldest: int) -> None:
        """Forget the schedule of versions before ``oldest``, when no gradient of them can arrive any more.

        Without it a beta that changes at every update, and with catch-up an lr that does, is remembered entry by
        entry. A server does this by itself.

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
        """Return the lr to remember; a rule that never asks for past ones keeps an lr schedule out of its state."""
        return 0.0

    def _apply(self, work: Work, arrival: Arrival) -> None:
        for group in self.param_groups:
            record(group["runs"], arrival.t, float(group["beta"]), self._remembered_lr(group))
        super()._apply(work, arrival)
        if arrival.oldest is not None:
            self.forget(arrival.oldest)
