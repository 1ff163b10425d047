"""Training without a learning rate: schedule-free AdamW whose step is estimated while it trains."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._util.checks import AT_LEAST_ZERO, Range
from ._distance import LEVELS, joined, level_of, looked_at, quotients, root_mean_square, together
from ._kernels import Scratch, adam_and_average
from .adamw import BETA2, all_as_real
from .base import Arrival, AsyncOptimizer, Grads, Group, Params, Work, copied
from .momentum import BETA
from .stale_point import StalePointRule

__all__ = ["RateFree"]

FIRST = 1e-6
"""The first estimate of D where parameters are zero."""
FARTHEST = 1e15
"""Largest D: where a loss has no minimum D grows without end, and its square has to stay a 32-bit number."""


class RateFree(StalePointRule):
    """Schedule-free AdamW that estimates its own step: there is no learning rate to set.

    ``v = (1-beta2)·v + beta2·g²;  z -= lr·step·g / (sqrt(v/P2) + eps);  x += w/W·(z - x);  y = x + beta·(z - x)``

    The parameters are x, an average of z with weights ``w = t·step²`` whose sum is W; P2 is ``1-(1-beta2)^t``. Workers
    compute gradients at y, which `query` hands out. A late gradient moves z as far as one on time does, so slow samples
    have the same weight. The average hardly moves in the meantime, and absorbs the noise of a step that does not fall.

    ``N = q·N + (1-q)·D·<g, x_1 - y_k>;  s = q·s + (1-q)·D·g;  e = q²·e + (1-q)²·D²·g²;  q = sqrt(1-beta2)``
    ``D = max(D, N/max(‖s‖_1, ‖sqrt(e)‖_1));  step = 0.4·D/sqrt(mean wait)·min(1, 4/rms(g/sqrt(v/P2)))``

    D estimates how far a coordinate has to go, as D-Adaptation and Prodigy do, from the inner product at ``y_k``, the
    point that the gradient of version k was computed at. It starts at 1e-6 plus a twentieth of the root mean square of
    the parameters. ``sqrt(e)`` is how large s is where gradients are noise alone: without it D explodes when s passes
    zero, which with few parameters it does. A gradient of more than four times its usual size makes a smaller step
    (`last_scale`); gradients of a group with at least a sixteenth of all samples cannot all be that large. The wait of
    a gradient is its delay plus one; its mean over all arrivals is the number of workers. For a given sequence of steps
    and without delay and weight decay, this is schedule-free AdamW.

    In a model of 65,536 elements and more, part of them is looked at for D: 2,048 of every 65,536 of a tensor, in eight
    runs that are spread evenly; from a million elements on 512 of them; from four million on 2,048 of every 262,144.
    Smaller tensors are not looked at, unless no tensor is so large: then all elements are. What has no gradient or a
    learning rate of zero does not count.

    Args:
        params: Parameters or param groups.
        lr: Factor of the step, for learning-rate schedulers and for param groups that should move less or not at all.
        beta: Weight of z in y; 1 minus the first of schedule-free's betas.
        beta2: Weight of the new square in v; torch's ``betas[1]`` is ``1 - beta2``.
        eps: Added to the denominator.
        weight_decay: Decoupled weight decay, of z.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.full((4,), 3.0))
        >>> opt = RateFree([x])
        >>> for _ in range(300):
        ...     with opt.at_query():                   # gradients are computed at y
        ...         x.grad = x.detach() - 1.0          # of (x - 1)²/2
        ...     opt.step()
        >>> bool((x - 1.0).abs().max() < 0.05), opt.distance > 0.5
        (True, True)

    References:
        Defazio, Yang, Mehta, Mishchenko, Khaled, Cutkosky, The Road Less Scheduled, 2024, arXiv 2405.15682.
        Defazio, Mishchenko, Learning-Rate-Free Learning by D-Adaptation, 2023, arXiv 2301.07733.
        Mishchenko, Defazio, Prodigy: An Expeditiously Adaptive Parameter-Free Learner, 2023, arXiv 2306.06101.
        Wortsman et al., Stable and Low-Precision Training for Large-Scale Vision-Language Models, 2023,
        arXiv 2304.13013.
    """

    method = "rate-free"
    ranges: ClassVar[Mapping[str, Range]] = {
        **AsyncOptimizer.ranges,
        "beta": BETA,
        "beta2": BETA2,
        "eps": AT_LEAST_ZERO,
    }
    bookkeeping: ClassVar[frozenset[str]] = AsyncOptimizer.bookkeeping | {"D", "N", "W", "P2", "waits", "level"}
    own_shapes: ClassVar[frozenset[str]] = frozenset({"x1", "s", "e"})
    _own_attributes: ClassVar[tuple[str, ...]] = (*AsyncOptimizer._own_attributes, "_at_query", "last_scale")

    _first_relative: ClassVar[float] = 0.05
    """The first estimate of D over the root mean square of the parameters."""
    _share: float = 0.4
    """Share of D in a step, times the root of the mean wait of gradients."""
    _largest: ClassVar[float] = 4.0
    """Largest root mean square of a gradient divided by the roots of v; a larger one is scaled down to it."""

    _at_query: bool = False
    _scratch: Scratch | None = None
    last_scale: float = 1.0
    """Factor of the last step: below 1 if its gradient was more than four times as large as usual."""

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        beta: float = 0.2,
        beta2: float = 0.001,
        *,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        options = {"beta": beta, "beta2": beta2, "eps": eps}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    @property
    def distance(self) -> float:
        """The estimate D: how far a coordinate is from where it should be; 0 before the first update."""
        return float(self.param_groups[0]["D"])

    @contextlib.contextmanager
    def at_query(self) -> Iterator[None]:
        """Let the parameters hold y, the point to compute gradients at; afterwards they hold x again.

        For loops of one's own. A server hands out y by itself. Gradients computed outside of it are taken as computed
        at x, which is the rule with ``beta = 0``: slower, and as safe.
        """
        params = self._all_params()
        x = [copied(p) for p in params]
        with torch.no_grad():
            for p, z, beta in self._averages():
                p.lerp_(z, beta)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(params, x)
        self._at_query = True

    def receive(self, arrival: Arrival, grads: Grads) -> None:
        """Count one arrival and update the parameters; what a server passes was computed at y."""
        self._at_query = True
        super().receive(arrival, grads)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict`, so that the run continues bit for bit; raise if it does not match."""
        super().load_state_dict(state_dict)
        self._scratch = None  # gradients that were not finite may have left their traces

    def _start_group(self, group: Group) -> None:
        super()._start_group(group)
        group["D"] = group["N"] = group["W"] = group["P2"] = 0.0
        group["waits"] = group["level"] = 0

    def _averages(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Yield each parameter with its z, and the weight of z in y."""
        for group in self.param_groups:
            for p in group["params"]:
                yield p.detach(), self._z(p), group["beta"]

    def _z(self, p: Tensor) -> Tensor:
        """Return the z of a parameter: the parameter itself if it has not moved yet."""
        z: Tensor = self.state[p].get("z", p.detach()) if p in self.state else p.detach()
        return z

    def _write_points(self, out: list[list[Tensor]], params: list[Tensor]) -> None:
        for y, (p, z, beta) in zip(out[0], self._averages(), strict=True):
            if y.dtype is p.dtype and y.device == p.device:
                torch.lerp(p, z, beta, out=y)  # without memory of its own
            else:
                y.copy_(torch.lerp(p, z, beta))

    def _apply(self, work: Work, arrival: Arrival) -> None:
        shared = self.param_groups[0]
        counted = self.needs(arrival)
        self.last_scale = 0.0
        if counted:
            if not shared["D"]:
                moving = [p for group, params, _ in work if group["lr"] for p in params] or self._all_params()
                shared["D"] = FIRST + self._first_relative * root_mean_square(moving)
                shared["level"] = level_of(moving)
            size = self._estimate(work, arrival)
            self.last_scale = self._largest / size if size > self._largest else 1.0
        shared["waits"] += arrival.delay + 1
        self._at_query = False
        if not shared["D"]:  # no gradient has counted yet
            return
        step = self._share * shared["D"] / math.sqrt(shared["waits"] / arrival.t)
        step *= self.last_scale if counted else 1.0
        weight = arrival.t * step**2
        shared["W"] += weight
        for group, params, grads in work:
            self._move(group, params, grads if counted else None, step, weight / shared["W"])

    def _move(self, group: Group, params: list[Tensor], grads: list[Tensor] | None, step: float, share: float) -> None:
        """Move z by a gradient, and x towards z."""
        z, v = self._buffers(params, "z", copied), self._buffers(params, "v", torch.zeros_like)
        keep2 = 1.0 - float(group["beta2"])
        if grads is None:
            torch._foreach_lerp_(params, z, share)
            return
        group["P2"] = self._present(group)
        x, g = params, grads
        if any(p.is_complex() for p in params):
            x, g, z, v = (all_as_real(tensors) for tensors in (x, g, z, v))
        rate = float(group["lr"]) * step
        if self._scratch is None:
            self._scratch = Scratch()
        adam_and_average(
            x,
            g,
            z,
            v,
            decay=keep2,
            lr=rate,
            present=group["P2"],
            eps=float(group["eps"]),
            shrinkage=min(1.0, rate * float(group["weight_decay"])),
            share=share,
            scratch=self._scratch,
        )

    def _estimate(self, work: Work, arrival: Arrival) -> float:
        """Raise D by what this gradient says about the distance; return the gradient's size relative to v."""
        shared = self.param_groups[0]
        D, level, q = shared["D"], shared["level"], math.sqrt(1.0 - float(shared["beta2"]))
        inner = length = noise = squares = 0.0
        count = 0
        for group, params, grads in work:
            pairs = [(p, g) for p, g in zip(params, grads, strict=True) if p.numel() >= LEVELS[level][1]]
            if not group["lr"] or not pairs:  # what does not move has no distance to go
                continue
            mine = [p for p, _ in pairs]
            g = together([g for _, g in pairs], level)
            first = joined(self._buffers(mine, "x1", lambda p: copied(looked_at(p, level))))
            moved = first - self._computed_at(mine, group, arrival, level)
            inner += float(moved.mul_(g).sum() if level else torch.dot(g, moved))
            s = self._running_sum("s", mine, level, q, g, (1.0 - q) * D)
            length += float(s.abs().sum() if level else torch.linalg.vector_norm(s, 1))
            e = self._running_sum("e", mine, level, q * q, g, D**2, squared=True)
            noise += (1.0 - q) * float(e.sqrt().sum())
            v = together(self._buffers(mine, "v", torch.zeros_like), level)
            keep2, present = 1.0 - float(group["beta2"]), self._present(group)
            squares += present * float(quotients(g, v, keep2, float(group["eps"]) * math.sqrt(present)).sum())
            count += g.numel()
        shared["N"] = q * shared["N"] + (1.0 - q) * D * inner
        # Where gradients are noise, s may be near zero by chance, and N is not: no shorter than noise alone makes it.
        length = max(length, noise)
        if length > 0.0:
            shared["D"] = min(max(D, shared["N"] / length), FARTHEST)
        return math.sqrt(squares / count) if count else 0.0

    def _running_sum(
        self, name: str, params: list[Tensor], level: int, decay: float, g: Tensor, weight: float, *,
        squared: bool = False,
    ) -> Tensor:  # fmt: skip
        """Let a sum decay, add gradients or their squares, and return it as one vector for all of these parameters."""
        parts = self._buffers(params, name, lambda p: torch.zeros_like(looked_at(p, level)))
        total = joined(parts).mul_(decay)
        total = total.addcmul_(g, g, value=weight) if squared else total.add_(g, alpha=weight)
        if len(parts) > 1:  # one vector of several tensors is a copy
            pieces = torch.split(total, [part.numel() for part in parts])
            torch._foreach_copy_(parts, [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)])
        return total

    def _computed_at(self, params: list[Tensor], group: Group, arrival: Arrival, level: int) -> Tensor:
        """Return the point that a gradient was computed at, as far as it is looked at."""
        if arrival.point is not None:
            at = dict(zip(map(id, self._all_params()), arrival.point, strict=True))
            return together([at[id(p)].to(p.device) for p in params], level)
        x = together(params, level)
        if not self._at_query:
            return x
        return torch.lerp(x, together([self._z(p) for p in params], level), group["beta"])

    @staticmethod
    def _present(group: Group) -> float:
        """Return the weight that v will have after the update."""
        beta2 = float(group["beta2"])
        return (1.0 - beta2) * float(group["P2"]) + beta2
