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

    def _remembered_lr(self, group: Group) -> float:
        """Return the lr to remember; a rule that never asks for past ones keeps an lr schedule out of its state."""
        return 0.0

    def _apply(self, work: Work, arrival: Arrival) -> None:
        for group in self.param_groups:
            record(group["runs"], arrival.t, float(group["beta"]), self._remembered_lr(group))
            if arrival.oldest is not None:
                forget(group["runs"], arrival.oldest)
        super()._apply(work, arrival)
