"""torch's fused kernel is used where it is right, and only there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from latecomer.optim import OrderedMomentum
from latecomer.optim._kernels import _fused_cpu_is_right, accumulate_and_descend
from support import parameters, run

Tensors = list[torch.Tensor]
SIXTEEN_BITS = [torch.bfloat16, torch.float16]


def sgd(xs: Tensors, gs: Tensors, ms: Tensors, **options: Any) -> None:
    """Do what torch's fused kernel should do."""
    for x, g, m in zip(xs, gs, ms, strict=True):
        m.mul_(options["momentum"]).add_(g, alpha=1.0 - options["dampening"])
        x.sub_(m, alpha=options["lr"])


def sgd_that_skips_vectors(xs: Tensors, gs: Tensors, ms: Tensors, **options: Any) -> None:
    """Do what the kernel of pytorch issue 191763 does: nothing up to the last whole vector of 16 elements."""
    for x, g, m in zip(xs, gs, ms, strict=True):
        whole = len(x) // 16 * 16
        m[:whole] = 1e4
        sgd([x[whole:]], [g[whole:]], [m[whole:]], **options)


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    _fused_cpu_is_right.cache_clear()
    yield
    _fused_cpu_is_right.cache_clear()


@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
@pytest.mark.parametrize("right", [True, False], ids=["right kernel", "wrong kernel"])
@pytest.mark.usefixtures("fresh_probe")
def test_sixteen_bits_take_the_fused_kernel_only_where_it_is_right(
    dtype: torch.dtype, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever torch this is, both paths give the right numbers."""
    lengths = []

    def kernel(xs: Tensors, gs: Tensors, ms: Tensors, **options: Any) -> None:
        lengths.extend(len(x) for x in xs)
        (sgd if right else sgd_that_skips_vectors)(xs, gs, ms, **options)

    monkeypatch.setattr(torch, "_fused_sgd_", kernel)
    x, g, m = (torch.ones(64, dtype=dtype) for _ in range(3))
    accumulate_and_descend([x], [g], [m], decay=0.5, weight=0.5, lr=0.5)
    assert torch.equal(x, torch.full_like(x, 0.5))
    assert torch.equal(m, torch.ones_like(m))
    assert (64 in lengths) == right


@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
def test_the_probe_of_the_fused_kernel_says_what_this_torch_does(dtype: torch.dtype) -> None:
    """The kernel of this torch, at many lengths: right at all of them where the probe says so, else wrong at some."""
    rest = {"weight_decay": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}
    found = []
    for length in (1, 15, 16, 17, 64, 100, 1000):
        x, g, m = (torch.ones(length, dtype=dtype) for _ in range(3))
        torch._fused_sgd_([x], [g], [m], momentum=0.5, lr=0.5, dampening=0.5, **rest)
        found.append(torch.equal(x, torch.full_like(x, 0.5)) and torch.equal(m, torch.ones_like(m)))
    assert all(found) == _fused_cpu_is_right(dtype)


def test_the_fused_kernel_is_really_used(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = torch._fused_sgd_
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *a, **k: (calls.append(len(a[0])), real(*a, **k)))
    opt = OrderedMomentum(parameters(torch.float32), lr=0.1)
    run(opt, [0, 1])
    assert calls == [3]  # one call for all parameters; the late gradient of version 1 needs none
    accumulate_and_descend([torch.ones(2)], [torch.ones(2)], [torch.ones(2)], decay=0.0, weight=1.0, lr=1.0)
    assert calls == [3]
