"""The update of every rule with a buffer in one pass over memory, with torch's fused kernel where it is correct.

``m = decay·m + weight·g; x -= lr·m`` is what torch's fused SGD computes with ``momentum = decay`` and
``dampening = 1 - weight``. Ordered momentum is this with ``weight = beta(1-beta)^delay``; the STORM rules use it on
``(d, w)`` and Algorithm 2 on ``(q, w)`` with ``decay = weight = 1``.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

__all__ = ["accumulate_and_descend", "combine", "descend", "is_finite", "shrink"]

_FUSED_DEVICES = frozenset(_get_fused_kernels_supported_devices())
_FUSED_CPU_DTYPES = frozenset({torch.float32, torch.float64})
_PROBED_CPU_DTYPES = frozenset({torch.bfloat16, torch.float16})


@functools.cache
def _fused_cpu_is_right(dtype: torch.dtype) -> bool:
    """Whether this torch's fused SGD computes 16-bit parameters right on the CPU; found out on a small example.

    The kernel of some releases leaves whole vectors of them untouched and fills their buffers with garbage (pytorch
    issue 191763; torch 2.12 and 2.13, not 2.15). Those take the foreach path. The result is checked, not the version:
    builds and backports differ.
    """
    size = 83  # longer than two vectors of any processor, and not a multiple of one
    start = torch.linspace(-1.0, 1.0, size).to(dtype)
    fused, unfused = ([start.clone(), start.flip(0), start * 0.5] for _ in range(2))
    for step, (x, g, m) in ((_fused, fused), (_unfused, unfused)):
        step([x], [g], [m], 0.5, 0.25, 0.5)
    return all(torch.allclose(a, b, rtol=0.02, atol=0.02) for a, b in zip(fused, unfused, strict=True))


def _fusable(x: Tensor, g: Tensor, m: Tensor) -> bool:
    """Whether torch's fused SGD kernel gives correct results for these three tensors.

    The CPU kernel ignores strides: with a transposed gradient or a strided parameter it silently pairs the wrong
    elements. It is correct if all three are dense and have the same layout.
    """
    dtype = x.dtype
    if dtype is not g.dtype or dtype is not m.dtype:
        return False
    if x.is_cpu:
        if dtype not in _FUSED_CPU_DTYPES and not (dtype in _PROBED_CPU_DTYPES and _fused_cpu_is_right(dtype)):
            return False
    elif x.device.type not in _FUSED_DEVICES or not dtype.is_floating_point:
        return False
    if x.is_contiguous():
        return g.is_contiguous() and m.is_contiguous()
    channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return channels_last and x.stride() == g.stride() == m.stride()


def _imprecise_as_dampening(weight: float, xs: list[Tensor]) -> bool:
    """Whether a small weight would lose significant digits in ``1 - dampening``."""
    digits = 1e-13 if any(x.dtype == torch.float64 for x in xs) else 1e-8
    return abs(weight - (1.0 - (1.0 - weight))) > digits * weight


def _same_kind(xs: list[Tensor]) -> bool:
    """Whether all tensors have one device and one dtype, as a fused call requires."""
    return len(xs) == 1 or len({(x.device, x.dtype) for x in xs}) == 1


def accumulate_and_descend(
    xs: list[Tensor], gs: list[Tensor] | None, ms: list[Tensor], *, decay: float, weight: float, lr: float
) -> None:
    """Do ``m = decay·m + weight·g; x -= lr·m`` in place for every tensor; ``gs=None`` means zero gradients."""
    if gs is None:
        torch._foreach_mul_(ms, decay)
        torch._foreach_add_(xs, ms, alpha=-lr)
    elif decay == 0.0 or _imprecise_as_dampening(weight, xs):  # with momentum 0 torch's fused kernel ignores the buffer
        _unfused(xs, gs, ms, decay, weight, lr)
    elif all(map(_fusable, xs, gs, ms)) and _same_kind(xs):
        _fused(xs, gs, ms, decay, weight, lr)
    else:
        kinds: dict[tuple[torch.device, torch.dtype] | None, list[tuple[Tensor, Tensor, Tensor]]] = {}
        for triple in zip(xs, gs, ms, strict=True):
            kind = (triple[0].device, triple[0].dtype) if _fusable(*triple) else None
            kinds.setdefault(kind, []).append(triple)
        for kind, triples in kinds.items():
            some_xs, some_gs, some_ms = (list(tensors) for tensors in zip(*triples, strict=True))
            (_unfused if kind is None else _fused)(some_xs, some_gs, some_ms, decay, weight, lr)


def _fused(xs: list[Tensor], gs: list[Tensor], ms: list[Tensor], decay: float, weight: float, lr: float) -> None:
    torch._fused_sgd_(
        xs,
        gs,
        ms,
        weight_decay=0.0,
        momentum=decay,
        lr=lr,
        dampening=1.0 - weight,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _unfused(xs: list[Tensor], gs: list[Tensor], ms: list[Tensor], decay: float, weight: float, lr: float) -> None:
    torch._foreach_mul_(ms, decay)
    torch._foreach_add_(ms, gs, alpha=weight)
    torch._foreach_add_(xs, ms, alpha=-lr)


def descend(xs: list[Tensor], gs: list[Tensor], lr: float) -> None:
    """Do ``x -= lr·g`` in place for every tensor."""
    torch._foreach_add_(xs, gs, alpha=-lr)


def shrink(xs: list[Tensor], rate: float) -> None:
    """Apply decoupled weight decay: ``x *= 1 - rate`` in place."""
    if rate:
        torch._foreach_mul_(xs, 1.0 - rate)


def combine(g: Tensor, g_prev: Tensor, here: float, before: float) -> Tensor:
    """Set ``g`` to ``here·g + before·g_prev`` in place, and return it."""
    # At version 1 g_prev is g itself, and the second term needs it unscaled.
    if here != 1.0:
        g_prev = g_prev.clone() if g_prev is g else g_prev
        g.mul_(here)
    return g.add_(g_prev, alpha=before) if before else g


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor is free of NaN and infinities."""
    # A sum is one pass without a temporary; only if it is not finite are the entries checked.
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())
