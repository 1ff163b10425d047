"""torch's fused kernel is used where it is right, and only there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latecomer.optim import OrderedMomentum, _kernels
from latecomer.optim._kernels import _fused_cpu_is_right, accumulate_and_descend, adamw, catch_up
from support import make, parameters, run

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


# ---- buffers in units of their own ----------------------------------------------------------------------------------

SIZES = st.floats(1e-6, 1e3)
SHARES = st.floats(0.0, 1.0)


def drawn(count: int, seed: int, shape: tuple[int, ...] = (37,)) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(count)]


@given(decay=SHARES, weight=SHARES, lr=SIZES, missed=SIZES, scale=st.floats(2e-3, 5e2), seed=st.integers(0, 99))
def test_catching_up_in_one_pass_is_the_two_steps(
    decay: float, weight: float, lr: float, missed: float, scale: float, seed: int
) -> None:
    x, g, b = drawn(3, seed)
    m = decay * scale * b + weight * g
    expected = x - lr * m - missed * g
    after = catch_up([x], [g], [b], decay=decay, weight=weight, lr=lr, missed=missed, scale=scale)
    size = 1.0 + float((lr * m).abs().max() + (missed * g).abs().max())
    assert float((x - expected).abs().max()) < 1e-13 * size
    torch.testing.assert_close(after * b, m, rtol=1e-11, atol=1e-12)


@given(
    decay=st.tuples(SHARES, SHARES), weight=st.tuples(SHARES, st.floats(1e-4, 1.0)), lr=SIZES,
    missed=st.just(0.0) | SIZES, present=st.floats(1e-3, 1.0), scales=st.tuples(*[st.floats(2e-3, 1.0)] * 2),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_adamw_with_any_weights_is_its_formula(
    decay: tuple[float, float], weight: tuple[float, float], lr: float, missed: float, present: float,
    scales: tuple[float, float], seed: int,
) -> None:  # fmt: skip
    x, g, b, c = drawn(4, seed)
    c.square_()
    m, v = decay[0] * scales[0] * b + weight[0] * g, decay[1] * scales[1] * c + weight[1] * g * g
    step = (lr * m + missed * g) / ((v / present).sqrt() + 1e-3)
    expected = 0.99 * x - step
    p, q = adamw(
        [x], [g], [b], [c], decay=decay, weight=weight, lr=lr, missed=missed, present=present, eps=1e-3,
        shrinkage=0.01, scales=scales,
    )  # fmt: skip
    parts = (lr * m).abs() + (missed * g).abs()  # where they cancel, the sum has the precision of its parts
    size = 1.0 + float((parts / ((v / present).sqrt() + 1e-3)).max())
    assert float((x - expected).abs().max()) < 1e-12 * size
    torch.testing.assert_close(p * b, m, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(q * c, v, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("shape", [(700,), (5, 6, 7, 8)], ids=str)
def test_pieces_change_no_bit(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for piece in (1 << 18, 128):  # whole vectors of any processor: what is left over is rounded in another way
        monkeypatch.setattr(_kernels, "_PIECE", piece)
        params = [torch.nn.Parameter(each.float()) for each in (*drawn(2, 0, shape), *drawn(1, 1, (3,)))]
        if len(shape) == 4:
            params[0].data = params[0].data.to(memory_format=torch.channels_last)
        run(make("catch-up-adamw", params), [0, 1, 0, 2, 1, 3])
        ends.append([p.detach().clone() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("name", ["catch-up", "balanced-catch-up", "catch-up-adamw"])
def test_a_parameter_without_gradients_for_a_while_keeps_its_buffers(name: str) -> None:
    """Scales belong to a group: while the others move on, what this parameter remembers must stay what it was."""
    together, apart = parameters(seed=3), parameters(seed=3)
    one = make(name, together)
    two = [make(name, apart[:1]), make(name, apart[1:])]
    if name != "catch-up":  # their norms and weights are the group's: compare the remembered buffers instead
        two = []
    generator = torch.Generator().manual_seed(0)
    remembered: dict[str, torch.Tensor] = {}
    for t, delay in enumerate([0, 1, 0, 2, 3, 1, 2, 0, 4, 1], start=1):
        gone = 4 <= t <= 7
        for p, q in zip(together, apart, strict=True):
            p.grad = q.grad = torch.randn(p.shape, dtype=p.dtype, generator=generator)
        if gone:
            together[0].grad = apart[0].grad = None
        one.step(delay=delay)
        for opt in two:
            opt.step(delay=delay)
        scales = {key: one.param_groups[0].get(f"{key}_scale", 1.0) for key in one.state[together[0]]}
        now = {key: scales[key] * buffer for key, buffer in one.state[together[0]].items()}
        if gone and remembered:
            torch.testing.assert_close(now, remembered, rtol=1e-12, atol=0)
        remembered = now
    if two:
        torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["catch-up", "catch-up-adamw"])
def test_half_precision_has_no_room_for_other_units(name: str) -> None:
    """A buffer a thousand times as large as m overflows in float16, which ends at 65504."""
    x = torch.nn.Parameter(torch.zeros(4, dtype=torch.float16))
    opt = make(name, [x], lr=1e-4, beta=0.001)
    for delay in (0, *[1] * 600):
        x.grad = torch.full_like(x, 100.0)
        opt.step(delay=delay)
    assert x.isfinite().all()
    assert opt.param_groups[0].get("m_scale", 1.0) == 1.0
