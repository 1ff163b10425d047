"""Normalised momentum: a step of fixed length in the direction of the momentum, or along its polar factor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .._util.checks import Range
from ._clipping import norm
from ._kernels import shrink
from .base import Arrival, AsyncOptimizer, Group, Params, Work
from .momentum import BETA

__all__ = ["NormalisedMomentum"]

_ORACLES = ("euclidean", "spectral")
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


class NormalisedMomentum(AsyncOptimizer):
    """Momentum with steps of fixed length: the rule of Ringmaster LMO, a linear minimisation oracle over a unit ball.

    ``m = (1-beta)·m + beta·g; x -= lr·m/‖m‖``

    With ``oracle="spectral"`` every parameter with two or more dimensions, as a matrix of its first dimension by the
    rest, is moved along its polar factor instead, ``x -= lr·U·V^T`` for ``m = U·S·V^T``. It is approximated by
    five Newton-Schulz steps, as in Muon, which leave singular values between about 0.7 and 1.2. Other parameters are
    normalised one by one. `latecomer.policy.Ringmaster` drops late gradients. With one worker it is normalised
    momentum SGD, or Muon without Nesterov.

    Args:
        params: Parameters or param groups.
        lr: Learning rate: the length of a step.
        beta: Weight of the new gradient; torch's momentum is ``1 - beta``.
        oracle: ``"euclidean"``, the norm of all parameters together, or ``"spectral"``.
        weight_decay: Decoupled weight decay.
        output: ``"last"`` or ``"uniform"``.
        output_seed: Seeds ``output="uniform"``.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(2))
        >>> opt = NormalisedMomentum([x], lr=1.0, beta=0.5)
        >>> x.grad = torch.tensor([3.0, 4.0]); opt.step()
        >>> [round(v, 4) for v in x.tolist()]
        [-0.6, -0.8]

    References:
        Sadiev, Maranjyan, Ilin, Richtarik, Ringmaster LMO, 2026, arXiv 2605.18174 (read in public code; its adaptive
        thresholds and Nesterov form are not here).
        Jordan et al., Muon, 2024, for the Newton-Schulz coefficients.
    """

    method = "ringmaster-lmo"
    identity = ("method", "oracle")
    ranges: ClassVar[Mapping[str, Range]] = {**AsyncOptimizer.ranges, "beta": BETA}

    def __init__(
        self,
        params: Params,
        lr: float,
        beta: float = 0.1,
        *,
        oracle: str = "euclidean",
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        if oracle not in _ORACLES:
            raise ValueError(f"Invalid oracle value: {oracle!r} (expected one of {', '.join(_ORACLES)})")
        options = {"beta": beta, "oracle": oracle}
        super().__init__(params, options, lr=lr, weight_decay=weight_decay, output=output, output_seed=output_seed)

    def _apply(self, work: Work, arrival: Arrival) -> None:
        momenta = []
        for group, params, grads in work:
            m = self._buffers(params, "m", torch.zeros_like)
            torch._foreach_mul_(m, 1.0 - float(group["beta"]))
            if not arrival.zero:
                torch._foreach_add_(m, grads, alpha=float(group["beta"]))
            shrink(params, float(group["lr"]) * group["weight_decay"])
            momenta.append(m)
        joint = [m for (group, _, _), ms in zip(work, momenta, strict=True) if not _spectral(group) for m in ms]
        length = norm(joint) if joint else 0.0
        for (group, params, _), m in zip(work, momenta, strict=True):
            if _spectral(group):
                torch._foreach_add_(params, [_steepest(each) for each in m], alpha=-float(group["lr"]))
            elif length:
                torch._foreach_add_(params, m, alpha=-float(group["lr"]) / length)


def _spectral(group: Group) -> bool:
    return bool(group["oracle"] == "spectral")


def _steepest(m: Tensor) -> Tensor:
    """Return the matrix of spectral norm one that is closest to the direction of m, approximately."""
    matrix = m.reshape(m.shape[0], -1) if m.dim() > 1 else m
    length = norm([matrix])
    if not length:
        return m
    if m.dim() < 2:
        return m / length
    wide = matrix.shape[0] <= matrix.shape[1]
    y = (matrix if wide else matrix.mT) / length
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        gram = y @ y.mH
        y = a * y + (b * gram + c * gram @ gram) @ y
    return (y if wide else y.mT).reshape(m.shape)
