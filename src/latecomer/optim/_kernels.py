"""The update of every rule with a buffer in one pass over memory, with torch's fused kernel where it is correct.

``m = decay·m + weight·g; x -= lr·m`` is what torch's fused SGD computes with ``momentum = decay`` and
``dampening = 1 - weight``. Ordered momentum is this with ``weight = beta(1-beta)^delay``; the STORM rules use it on
``(d, w)`` and Algorithm 2 on ``(q, w)`` with ``decay = weight = 1``.

Two kernels do more than torch meant them for, because a buffer may be kept in units of its own: ``m = scale·b``, with b
the tensor in memory and the scale a number. Nesterov's form adds ``b`` times the momentum to the gradient, so with the
right scale it makes the step of the momentum and the catch-up at once; and with such scales AdamW's kernel, whose
weights add up to one, takes a gradient of any weight.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

__all__ = [
    "Scratch",
    "accumulate_and_descend",
    "adam_and_average",
    "adamw",
    "catch_up",
    "combine",
    "descend",
    "descend_by_root",
    "is_finite",
    "shrink",
]

_FUSED_CPU_DTYPES = frozenset({torch.float32, torch.float64})
_PROBED_CPU_DTYPES = frozenset({torch.bfloat16, torch.float16})
_SCALES = 1e-3, 1e3
"""Range of a buffer's scale: outside of it the buffer's numbers would lose their range."""
_LEAST_SHARE = 0.1
"""Least share of the old buffer in a step from which the buffer can be found again without losing digits."""
_PIECE = 1 << 20
"""Elements per piece where a second pass follows: the first one has left them in the processor's cache."""


@functools.cache
def _has_fused_kernels(device_type: str) -> bool:
    """Whether torch has fused kernels for devices of this type; asked late, because a backend may be loaded late."""
    return device_type in _get_fused_kernels_supported_devices()


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
    elif not (dtype.is_floating_point and _has_fused_kernels(x.device.type)):
        return False
    if x.is_contiguous():
        return g.is_contiguous() and m.is_contiguous()
    channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return channels_last and x.stride() == g.stride() == m.stride()


def _plain(tensors: Sequence[list[Tensor]]) -> bool:
    """Whether all tensors are dense, of one dtype and on the CPU: the usual case, asked per update for every tensor."""
    dtype = tensors[0][0].dtype
    if dtype not in _FUSED_CPU_DTYPES:
        return False
    for several in tensors:
        for tensor in several:
            if tensor.dtype is not dtype or not tensor.is_cpu or not tensor.is_contiguous():
                return False
    return True


def _imprecise_as_dampening(weight: float, xs: list[Tensor]) -> bool:
    """Whether a small weight would lose significant digits in ``1 - dampening``."""
    digits = 1e-13 if any(x.dtype == torch.float64 for x in xs) else 1e-8
    return abs(weight - (1.0 - (1.0 - weight))) > digits * weight


def _same_kind(xs: list[Tensor]) -> bool:
    """Whether all tensors have one device and one dtype, as a fused call requires."""
    return len(xs) == 1 or len({(x.device, x.dtype) for x in xs}) == 1


def accumulate_and_descend(
    xs: list[Tensor],
    gs: list[Tensor] | None,
    ms: list[Tensor],
    *,
    decay: float,
    weight: float,
    lr: float,
    missed: float = 0.0,
) -> None:
    """Do ``m = decay·m + weight·g; x -= lr·m + missed·g`` in place; ``gs=None`` means zero gradients.

    One pass over memory makes all of it if ``missed`` is zero, or if ``lr == decay·missed``, which `catch_up` arranges.
    """
    if gs is None:
        torch._foreach_mul_(ms, decay)
        torch._foreach_add_(xs, ms, alpha=-lr)
        return
    nesterov = missed != 0.0 and lr == decay * missed
    # With momentum 0 torch's fused kernel ignores the buffer.
    exact = decay != 0.0 and not _imprecise_as_dampening(weight, xs)
    for fusable, (x, g, m) in _by_kind(xs, gs, ms):
        if not exact or not fusable or (nesterov and _probed(x[0])):
            _unfused(x, g, m, decay, weight, lr)
        else:
            _fused(x, g, m, decay, weight, missed if nesterov else lr, nesterov)
            if nesterov:
                continue
        if missed:
            descend(x, g, missed)


def _by_kind(*tensors: list[Tensor]) -> Iterator[tuple[bool, Sequence[list[Tensor]]]]:
    """Split lists of parameters, gradients and buffers by what one fused call can take; first, whether there is one."""
    if _plain(tensors):
        yield True, tensors
        return
    fusable = [all(_fusable(x, g, b) for b in own) for x, g, *own in zip(*tensors, strict=True)]
    if all(fusable) and _same_kind(tensors[0]):
        yield True, tensors
        return
    kinds: dict[tuple[torch.device, torch.dtype] | None, list[tuple[Tensor, ...]]] = {}
    for possible, together in zip(fusable, zip(*tensors, strict=True), strict=True):
        kinds.setdefault((together[0].device, together[0].dtype) if possible else None, []).append(together)
    for kind, several in kinds.items():
        yield kind is not None, [list(each) for each in zip(*several, strict=True)]


def catch_up(
    xs: list[Tensor], gs: list[Tensor], ms: list[Tensor], *, decay: float, weight: float, lr: float, missed: float,
    scale: float,
) -> float:  # fmt: skip
    """Do ``m = decay·m + weight·g; x -= lr·m + missed·g`` in place, with ``m = scale·b``, and return the new scale.

    Nesterov's form of torch's kernel does ``b = n·b + w·g; x -= missed·(g + n·b)``. That is the same for
    ``n² = decay·scale·lr/missed``, ``w = weight/scale'`` and the new scale ``scale' = n·missed/lr``. The scale does not
    depend on how the parameters are laid out.
    """
    if lr > 0.0 and missed > 0.0 and decay > 0.0 and _rescalable(xs):
        n = math.sqrt(decay * scale * lr / missed)
        after = n * missed / lr
        if _SCALES[0] < after < _SCALES[1]:
            accumulate_and_descend(xs, gs, ms, decay=n, weight=weight / after, lr=n * missed, missed=missed)
            return after
    accumulate_and_descend(xs, gs, ms, decay=decay, weight=weight / scale, lr=lr * scale, missed=missed)
    return scale


def adamw(
    xs: list[Tensor], gs: list[Tensor], ms: list[Tensor], vs: list[Tensor], *, decay: tuple[float, float],
    weight: tuple[float, float], lr: float, missed: float, present: float, eps: float, shrinkage: float,
    scales: tuple[float, float],
) -> tuple[float, float]:  # fmt: skip
    """Do the step of AdamW in place, for a gradient of any weight, and return the new scales.

    ``m = decay·m + weight·g; v = decay'·v + weight'·g²``
    ``x = (1-shrinkage)·x - (lr·m + missed·g)/(sqrt(v/present) + eps)``

    with ``m = p·b`` and ``v = q·c``. torch's kernel does ``b = a·b + (1-a)·g``, the same for c. That is right for the
    new scale ``decay·p + weight`` and ``a = decay·p/scale'``; without delay both scales stay 1. If the gradient has
    missed a step, ``a`` is chosen for the step instead, and a second pass takes back from b what belongs to the step
    alone.

    Args:
        xs: The parameters.
        gs: The gradients.
        ms: The buffers b.
        vs: The buffers c.
        decay: What is left of m and of v.
        weight: Weight of the gradient in m, and of its square in v.
        lr: Step per unit of m.
        missed: Step that the gradient missed.
        present: The weight present in v.
        eps: Added to the denominator.
        shrinkage: Weight decay times learning rate.
        scales: p and q.
    """
    p, q = scales
    after, after2 = decay[0] * p + weight[0], decay[1] * q + weight[1]
    old, new = lr * decay[0] * p, lr * weight[0] + missed  # the step is (old·b + new·g) / (sqrt(v/present) + eps)
    a = old / (old + new) if old + new > 0.0 else 1.0
    e = decay[1] * q / after2 if after2 > 0.0 else 1.0
    exact = min(after, after2) > _SCALES[0] and max(a, e) < 1.0 - 1e-9 and (not missed or a > _LEAST_SHARE)
    exact = exact and _rescalable(xs)
    if not exact:
        after, after2 = p, q
    root = math.sqrt(after2 / present)
    rate = (old + new) / root
    for fusable, lists in _by_kind(xs, gs, ms, vs):
        if not exact or not fusable or _probed(lists[0][0]):
            x, g, b, c = lists
            shrink(x, shrinkage)
            torch._foreach_mul_(b, decay[0] * p / after)
            torch._foreach_add_(b, g, alpha=weight[0] / after)
            torch._foreach_mul_(c, decay[1] * q / after2)
            torch._foreach_addcmul_(c, g, g, value=weight[1] / after2)
            descend_by_root(x, b, c, lr=lr * after, present=present / after2, eps=eps)
            if missed:
                descend_by_root(x, g, c, lr=missed, present=present / after2, eps=eps)
            continue
        for x, g, b, c in _in_pieces(*lists) if missed else (lists,):
            torch._fused_adamw_(
                x, g, b, c, [], [_late_step(x[0].device)] * len(x), amsgrad=False, lr=rate, beta1=a, beta2=e,
                weight_decay=shrinkage / rate, eps=eps / root, maximize=False,
            )  # fmt: skip
            if missed:
                torch._foreach_lerp_(b, g, 1.0 - decay[0] * p / (after * a))
    return after, after2


def adam_and_average(
    xs: list[Tensor], gs: list[Tensor], zs: list[Tensor], vs: list[Tensor], *, decay: float, lr: float, present: float,
    eps: float, shrinkage: float, share: float, scratch: Scratch,
) -> None:  # fmt: skip
    """Do a step of AdamW without momentum for z, and move x towards z, in place.

    ``v = decay·v + (1-decay)·g²; z = (1-shrinkage)·z - lr·g/(sqrt(v/present) + eps); x += share·(z - x)``

    torch's kernel for AdamW does the first two, piece by piece: z is still in the processor's cache when x moves. The
    buffer it wants for the mean of gradients stays there too: all pieces share it.
    """
    for fusable, lists in _by_kind(zs, gs, vs, xs):
        if not fusable or not lr or _probed(lists[0][0]):
            z, g, v, x = lists
            torch._foreach_mul_(v, decay)
            torch._foreach_addcmul_(v, g, g, value=1.0 - decay)
            shrink(z, shrinkage)
            descend_by_root(z, g, v, lr=lr, present=present, eps=eps)
            torch._foreach_lerp_(x, z, share)
            continue
        root = math.sqrt(present)
        for z, g, v, x in _in_pieces(*lists):
            torch._fused_adamw_(
                z, g, scratch.like(z), v, [], [_late_step(z[0].device)] * len(z), amsgrad=False, lr=lr * root,
                beta1=0.0, beta2=decay, weight_decay=shrinkage / (lr * root), eps=eps * root, maximize=False,
            )  # fmt: skip
            torch._foreach_lerp_(x, z, share)


class Scratch:
    """Memory for a buffer that a kernel wants and nobody needs; one per optimizer.

    Its values do not matter, as long as they are finite: a kernel multiplies them by zero.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._views: dict[tuple[object, ...], Tensor] = {}

    def like(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return tensors of the same layouts, of at most a piece each, all in the same memory."""
        device, dtype = tensors[0].device, tensors[0].dtype
        return [self._view(device, dtype, tensor.size(), tensor.stride()) for tensor in tensors]

    def _view(self, device: torch.device, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        key = (device, dtype, size, stride)
        if key not in self._views:
            if (device, dtype) not in self._memory:
                self._memory[device, dtype] = torch.zeros(_PIECE, device=device, dtype=dtype)
            self._views[key] = self._memory[device, dtype].as_strided(size, stride)
        return self._views[key]


def descend_by_root(
    xs: list[Tensor], ns: list[Tensor], vs: list[Tensor], *, lr: float, present: float, eps: float
) -> None:
    """Do ``x -= lr·n/(sqrt(v/present) + eps)`` in place for every tensor."""
    denominator = torch._foreach_sqrt(vs)
    torch._foreach_div_(denominator, math.sqrt(present))
    torch._foreach_add_(denominator, eps)
    torch._foreach_addcdiv_(xs, ns, denominator, value=-lr)


def _in_pieces(*tensors: list[Tensor]) -> Iterator[Sequence[list[Tensor]]]:
    """Split lists of tensors of the same layout so that what one call touches fits into the processor's cache."""
    small: Sequence[list[Tensor]] = [[] for _ in tensors]
    size = 0
    for together in zip(*tensors, strict=True):
        numel = together[0].numel()
        if numel > _PIECE:
            # The memory is dense, and element by element the order does not matter.
            flat = (each.as_strided((numel,), (1,)) for each in together)
            for pieces in zip(*(each.split(_PIECE) for each in flat), strict=True):
                yield [[piece] for piece in pieces]
            continue
        if size and size + numel > _PIECE:
            yield small
            small, size = [[] for _ in tensors], 0
        for several, each in zip(small, together, strict=True):
            several.append(each)
        size += numel
    if small[0]:
        yield small


@functools.cache
def _late_step(device: torch.device) -> Tensor:
    """Return a count of steps after which torch's own correction of the bias is 1."""
    return torch.full((), 1e18, device=device)


def _rescalable(xs: list[Tensor]) -> bool:
    """Whether buffers have room for units of their own; float16 would overflow, or lose its small numbers."""
    return all(x.dtype is not torch.float16 for x in xs)


def _probed(x: Tensor) -> bool:
    """Whether the kernel was only found right in its plain form, as for 16-bit parameters on the CPU."""
    return x.is_cpu and x.dtype in _PROBED_CPU_DTYPES


def _fused(
    xs: list[Tensor], gs: list[Tensor], ms: list[Tensor], decay: float, weight: float, lr: float, nesterov: bool = False
) -> None:
    torch._fused_sgd_(
        xs,
        gs,
        ms,
        weight_decay=0.0,
        momentum=decay,
        lr=lr,
        dampening=1.0 - weight,
        nesterov=nesterov,
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
