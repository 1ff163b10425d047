"""The one pass over memory that every rule with a buffer is made of, on torch's fused kernel where that is right.

``m = decay·m + weight·g; x -= lr·m`` is what torch's fused SGD computes with ``momentum = decay`` and
``dampening = 1 - weight``. Ordered momentum is this with ``weight = beta(1-beta)^delay``; the STORM rules use it on
``(d, w)`` and Algorithm 2 on ``(q, w)`` with ``decay = weight = 1``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

__all__ = ["accumulate_and_descend", "descend", "shrink"]

_FUSED_DEVICES = frozenset(_get_fused_kernels_supported_devices())
# On the CPU torch's fused SGD leaves whole vectors of 16-bit parameters untouched and fills their buffers with
# garbage (pytorch issue 191763, torch 2.13), so those take the foreach path.
_FUSED_CPU_DTYPES = frozenset({torch.float32, torch.float64})


def _fusable(x: Tensor, g: Tensor, m: Tensor) -> bool:
    """Whether torch's fused SGD kernel may be given these three tensors.

    The CPU kernel walks raw memory: with a transposed gradient or a strided parameter it silently pairs the wrong
    elements. It is safe when all three are dense and laid out alike.
    """
    if x.device.type not in _FUSED_DEVICES or not x.is_floating_point():
        return False
    if x.device.type == "cpu" and x.dtype not in _FUSED_CPU_DTYPES:
        return False
    if x.dtype != g.dtype or x.dtype != m.dtype:
        return False
    if x.is_contiguous():
        return g.is_contiguous() and m.is_contiguous()
    return (
        x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and x.stride() == g.stride() == m.stride()
    )


def accumulate_and_descend(
    xs: list[Tensor], gs: list[Tensor] | None, ms: list[Tensor], *, decay: float, weight: float, lr: float
) -> None:
    """Do ``m = decay·m + weight·g; x -= lr·m`` in place for every tensor; ``gs=None`` stands for zero gradients.

    Example:
        >>> x, g, m = [torch.ones(2)], [torch.ones(2)], [torch.zeros(2)]
        >>> accumulate_and_descend(x, g, m, decay=0.5, weight=0.25, lr=2.0)
        >>> m[0].tolist(), x[0].tolist()
        ([0.25, 0.25], [0.5, 0.5])
    """
    if gs is None:
        torch._foreach_mul_(ms, decay)
        torch._foreach_add_(xs, ms, alpha=-lr)
        return
    loose: list[int] = []
    fused: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    # With momentum 0 torch's kernel takes no buffer at all, so beta = 1 goes the other way.
    for i, (x, g, m) in enumerate(zip(xs, gs, ms, strict=True)):
        if decay != 0.0 and _fusable(x, g, m):
            fused.setdefault((x.device, x.dtype), []).append(i)
        else:
            loose.append(i)
    for indices in fused.values():
        torch._fused_sgd_(
            _pick(xs, indices),
            _pick(gs, indices),
            _pick(ms, indices),
            weight_decay=0.0,
            momentum=decay,
            lr=lr,
            dampening=1.0 - weight,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
    if loose:
        xs, gs, ms = _pick(xs, loose), _pick(gs, loose), _pick(ms, loose)
        torch._foreach_mul_(ms, decay)
        torch._foreach_add_(ms, gs, alpha=weight)
        torch._foreach_add_(xs, ms, alpha=-lr)


def _pick(tensors: list[Tensor], indices: Sequence[int]) -> list[Tensor]:
    return tensors if len(indices) == len(tensors) else [tensors[i] for i in indices]


def descend(xs: list[Tensor], gs: list[Tensor], lr: float) -> None:
    """Do ``x -= lr·g`` in place for every tensor.

    Example:
        >>> x = [torch.ones(2)]
        >>> descend(x, [torch.ones(2)], lr=0.25)
        >>> x[0].tolist()
        [0.75, 0.75]
    """
    torch._foreach_add_(xs, gs, alpha=-lr)


def shrink(xs: list[Tensor], rate: float) -> None:
    """Decoupled weight decay: do ``x *= 1 - rate`` in place; a rate of 0 touches nothing.

    Example:
        >>> x = [torch.ones(2)]
        >>> shrink(x, 0.5)
        >>> x[0].tolist()
        [0.5, 0.5]
    """
    if rate:
        torch._foreach_mul_(xs, 1.0 - rate)
