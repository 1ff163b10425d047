"""Rules whose coefficients belong to the version of a gradient, not to the moment it arrives."""

from __future__ import annotations

from .base import Arrival, AsyncOptimizer, Group, Work
from .history import forget, record

__all__ = ["VersionIndexed"]


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
