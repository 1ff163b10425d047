"""Ringleader: every update takes the mean over workers of what each has sent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._kernels import descend, shrink
from .base import Arrival, AsyncOptimizer, Grads, Group, Params, Work

__all__ = ["Ringleader"]


class Ringleader(AsyncOptimizer):
    """Ringleader ASGD: a table with the mean gradient of every worker, and one update per worker and round.

    ``x -= lr·(1/M)·sum_i (1/b_i)·sum_j g_i^j``, over the ``b_i`` gradients of worker i that are in the table

    `latecomer.policy.Ringleader` decides which contributions make an update and which are held. What a worker sends
    after its update goes to the table of the next round. A worker gets new parameters only with its own update, so all
    its gradients of a round are computed at one point; the version of its tickets counts from later ones. So every
    worker has the same weight, however often it arrives, and no gradient is wasted.

    The delay that traces, `latecomer.plan` and `latecomer.compare` report counts the updates since the ticket was
    issued. The point of the ticket may be older, and so may others in the table: up to ``2M - 2`` updates.

    With one worker every arrival is an update with the gradient alone: SGD. Memory: up to three copies of the
    parameters per worker. Without the policy every arrival is an update.

    Args:
        params: Parameters or param groups.
        lr: Learning rate.
        weight_decay: Decoupled weight decay, once per update.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> opt = Ringleader([x], lr=1.0)
        >>> opt.hold(Arrival(1, 1, worker=0, workers=2), [torch.tensor([2.0])])
        >>> opt.hold(Arrival(1, 1, worker=0, workers=2), [torch.tensor([4.0])])
        >>> opt.receive(Arrival(1, 1, worker=1, workers=2), [torch.tensor([1.0])])
        >>> x.item()                                   # the mean of 3 and 1
        -2.0

    References:
        Maranjyan, Richtarik, Ringleader ASGD, 2025, arXiv 2509.22860 (formula and phases read in public code, with one
        difference: there a worker that does not make an update starts again at the newest parameters. The published
        formula has one delay per worker, as here).
    """

    method = "ringleader"
    holds = True
    bookkeeping = AsyncOptimizer.bookkeeping | {"counts", "next_counts", "served", "table_size"}

    def __init__(
        self, params: Params, lr: float, *, weight_decay: float = 0.0, output: str = "last", output_seed: int = 0
    ) -> None:
        super().__init__(params, {}, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _start_group(self, group: Group) -> None:
        # Gradients per worker in this table and in the next one, and who has made its update in this round.
        group["counts"], group["next_counts"], group["served"] = {}, {}, {}
        group["table_size"] = self.param_groups[0].get("table_size", 0)  # M, fixed by the first arrival

    def _workers(self, arrival: Arrival) -> int:
        """Return M as it was at the first arrival: workers that join later have no place in the table."""
        for group in self.param_groups:
            group["table_size"] = group["table_size"] or arrival.workers or 0
        return int(self.param_groups[0]["table_size"]) or 1

    @torch.no_grad()
    def hold(self, arrival: Arrival, grads: Grads) -> None:
        """Put a contribution into the table, or into that of the next round if its worker has made its update."""
        self._workers(arrival)
        for group, params, own in self._split(grads):
            self._add(group, params, own, arrival.worker or 0)

    def _add(self, group: Group, params: list[Tensor], grads: list[Tensor], worker: int) -> None:
        later = worker in group["served"]
        counts = group["next_counts" if later else "counts"]
        sums = self._buffers(params, f"{'H' if later else 'G'}{worker}", torch.zeros_like)
        torch._foreach_add_(sums, grads)
        count = counts.get(worker, 0)
        counts[worker] = count + 1
        if later:
            return
        # S is the sum of all means in the table, kept up to date: an update must not take longer with more workers.
        total = self._buffers(params, "S", torch.zeros_like)
        torch._foreach_add_(total, grads, alpha=1.0 / max(1, count))
        if count:
            torch._foreach_add_(total, sums, alpha=1.0 / (count + 1) - 1.0 / count)

    def _apply(self, work: Work, arrival: Arrival) -> None:
        worker, workers = arrival.worker or 0, self._workers(arrival)
        for group, params, grads in work:
            shrink(params, float(group["lr"]) * group["weight_decay"])
            if not arrival.zero:
                self._add(group, params, grads, worker)
            descend(params, self._buffers(params, "S", torch.zeros_like), float(group["lr"]) / workers)
            if workers > 1:
                torch._foreach_copy_(self._buffers(params, f"x{worker}", torch.empty_like), params)
        for group in self.param_groups:
            group["served"][worker] = True
            if len(group["served"]) >= workers:
                self._next_round(group)

    def _next_round(self, group: Group) -> None:
        """Make the next table this one; the memory of the old one is used again."""
        for worker in group["counts"].keys() | group["next_counts"].keys():
            for p in group["params"]:
                state = self.state[p]
                old, new = state.pop(f"G{worker}", None), state.pop(f"H{worker}", None)
                if new is not None:
                    state[f"G{worker}"] = new
                if old is not None:
                    state[f"{'G' if new is None else 'H'}{worker}"] = old.zero_()
        group["counts"], group["next_counts"], group["served"] = group["next_counts"], {}, {}
        with_sum = [p for p in group["params"] if "S" in self.state.get(p, ())]
        for p in with_sum:
            self.state[p]["S"].zero_()
            for worker, count in group["counts"].items():
                if f"G{worker}" in self.state[p]:
                    self.state[p]["S"].add_(self.state[p][f"G{worker}"], alpha=1.0 / count)

    def point_version(self, worker: int | None = None) -> int | None:
        """Return the version if the worker has made no update yet; later it has parameters of its own."""
        own = f"x{worker or 0}"
        return None if any(own in self.state.get(p, ()) for p in self._all_params()) else self.version

    def query(self, out: Sequence[Sequence[Tensor]], worker: int | None = None) -> None:
        """Write the parameters that the worker got with its last update; those of now if it has made none."""
        super().query(out, worker)
        own = f"x{worker or 0}"
        for tensor, p in zip(out[0], self._all_params(), strict=True):
            if p in self.state and own in self.state[p]:
                tensor.copy_(self.state[p][own])
