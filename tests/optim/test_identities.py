"""The identities of the method on arbitrary arrival orders, and what is left of it when nothing is late."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from latecomer.optim import METHODS, AsyncOptimizer, Ball, Mu2SGD, OrderedMomentum, OrderedMu2Anytime, OrderedMu2SGD
from latecomer.optim.reference import anytime_gd, anytime_storm, storm, synchronous_momentum
from support import (
    NAMES,
    OPTIONS,
    TOLERANCE,
    any_delays,
    delays_of,
    flat,
    like,
    parameters,
    relative,
    worker_delays,
)

DTYPES = [torch.float64, torch.float32]
BETA, LR = 0.2, 0.1


def gradients(delays: list[int], dtype: torch.dtype = torch.float64, seed: int = 0) -> list[tuple[int, list[Tensor]]]:
    """(version, gradient) of every arrival."""
    generator = torch.Generator().manual_seed(seed)
    return [(t - d, like(parameters(dtype), generator)) for t, d in enumerate(delays, start=1)]


def momentum_after(pairs: list[tuple[int, list[Tensor]]], dtype: torch.dtype = torch.float64) -> Tensor:
    params = parameters(dtype)
    opt = OrderedMomentum(params, lr=LR, beta=BETA)
    for t, (version, g) in enumerate(pairs, start=1):
        for p, own in zip(params, g, strict=True):
            p.grad = own
        opt.step(delay=t - version)
    return flat([opt.state[p]["m"] for p in params])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@example(delays=[0, *range(59)], seed=0)
@given(delays=st.one_of(any_delays(60), worker_delays(60)), seed=st.integers(0, 10**6))
def test_unrolled_identity(dtype: torch.dtype, delays: list[int], seed: int) -> None:
    """m_t = sum over arrived k of beta(1-beta)^(t-k)·g_k, version 1 counted once."""
    pairs = gradients(delays, dtype, seed)
    t = len(pairs)
    terms = [BETA * (1 - BETA) ** (t - k) * flat(g) for s, (k, g) in enumerate(pairs, start=1) if k > 1 or s == 1]
    assert relative(momentum_after(pairs, dtype), torch.stack(terms).sum(0)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(delays=st.one_of(any_delays(60), worker_delays(60)), seed=st.integers(0, 10**6))
def test_catch_up_identity(dtype: torch.dtype, delays: list[int], seed: int) -> None:
    """At every t the parameters are what sequential momentum makes of the gradients that have arrived."""
    params = parameters(dtype, seed)
    x1 = flat(params)
    opt = OrderedMomentum(params, lr=LR, beta=BETA, catch_up=True)
    arrived: list[tuple[int, Tensor]] = []
    for t, (version, g) in enumerate(gradients(delays, dtype, seed), start=1):
        for p, own in zip(params, g, strict=True):
            p.grad = own
        opt.step(delay=t - version)
        if version > 1 or t == 1:
            arrived.append((version, flat(g)))
        total = torch.stack([(1 - (1 - BETA) ** (t - k + 1)) * g_k for k, g_k in arrived]).sum(0)
        assert relative(flat(params), x1 - LR * total) < TOLERANCE[dtype]


@given(order=st.permutations(range(2, 12)), seed=st.integers(0, 100))
def test_catch_up_undoes_any_order(order: list[int], seed: int) -> None:
    """Gradients 2..11 late and in any order, then as they should have come: the same parameters."""
    generator = torch.Generator().manual_seed(seed)
    g = {k: like(parameters(), generator) for k in range(1, 22)}
    # Versions 2..11 arrive at 12..21; what arrives before is as good as nothing.
    late: list[tuple[int, list[Tensor] | None]] = [(t, None) for t in range(1, 12)] + [(k, g[k]) for k in order]
    in_time: list[tuple[int, list[Tensor] | None]] = [(t, g[t] if 2 <= t < 12 else None) for t in range(1, 22)]
    ends = []
    for pairs in (late, in_time):
        params = parameters()
        opt = OrderedMomentum(params, lr=LR, beta=BETA, catch_up=True)
        for t, (k, own) in enumerate(pairs, start=1):
            for i, p in enumerate(params):
                p.grad = torch.zeros_like(p) if own is None else own[i]
            opt.step(delay=t - k)
        ends.append(flat(params))
    assert relative(ends[0], ends[1]) < 1e-12


@given(delays=worker_delays(30), data=st.data())
def test_the_order_of_arrival_does_not_matter_once_both_have_arrived(delays: list[int], data: st.DataObject) -> None:
    pairs = gradients(delays)
    expected = momentum_after(pairs)
    for _ in range(10):
        # Swap neighbours wherever both may come at that moment. Version 1 counts by who is first, so leave it alone.
        ks = [k for k, _ in pairs]
        free = [i for i in range(1, len(ks) - 1) if ks[i + 1] <= i + 1 and ks[i] > 1 and ks[i + 1] > 1]
        if not free:
            break
        i = data.draw(st.sampled_from(free))
        pairs[i], pairs[i + 1] = pairs[i + 1], pairs[i]
    assert relative(momentum_after(pairs), expected) < 1e-12


@given(order=st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_first_gradient_rule(order: list[int]) -> None:
    """The first arrival of version 1 counts, all later ones move nothing by themselves."""
    delays = delays_of(order)
    params = parameters()
    opt = OrderedMomentum(params, lr=LR, beta=BETA)
    generator = torch.Generator().manual_seed(0)
    for t, delay in enumerate(delays, start=1):
        version = t - delay
        m = flat([opt.state[p]["m"] for p in params]) if t > 1 else torch.zeros_like(flat(params))
        g = like(params, generator)
        if version == 1 and t > 1:
            g = [torch.full_like(own, math.nan) for own in g]  # not even read
        for p, own in zip(params, g, strict=True):
            p.grad = own
        opt.step(delay=delay)
        after = flat([opt.state[p]["m"] for p in params])
        if version == 1 and t > 1:
            assert relative(after, (1 - BETA) * m) < 1e-12
        else:
            assert relative(after, (1 - BETA) * m + BETA * (1 - BETA) ** delay * flat(g)) < 1e-12


# ---- nothing late ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["momentum", "ordered-momentum", "catch-up", "balanced-catch-up"])
@given(seed=st.integers(0, 10**6), beta=st.floats(0.01, 0.99))
def test_zero_delay_is_torch_sgd_with_a_zero_seeded_buffer(
    name: str, dtype: torch.dtype, seed: int, beta: float
) -> None:
    ours, theirs = parameters(dtype, seed), parameters(dtype, seed)
    opt = METHODS[name](ours, lr=LR, beta=beta)
    peer = torch.optim.SGD(theirs, lr=LR, momentum=1 - beta, dampening=1 - beta)
    for p in theirs:
        peer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        for p, q, g in zip(ours, theirs, like(ours, generator), strict=True):
            p.grad, q.grad = g, g.clone()
        opt.step()
        peer.step()
        assert relative(flat(ours), flat(theirs)) < TOLERANCE[dtype]


def test_zero_delay_differs_from_torch_sgd_as_it_seeds_its_buffer_itself() -> None:
    """The trap the test above steps around is real."""
    ours, theirs = parameters(), parameters()
    opt = METHODS["momentum"](ours, lr=LR, beta=0.1)
    peer = torch.optim.SGD(theirs, lr=LR, momentum=0.9, dampening=0.9)
    for p, q in zip(ours, theirs, strict=True):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    opt.step()
    peer.step()
    assert relative(flat(ours), flat(theirs)) > 1e-2


def noisy(seed: int, noise: float) -> Callable[[Tensor, int], Tensor]:
    """Gradient oracle of a random quadratic whose samples differ in curvature and in centre."""
    generator = torch.Generator().manual_seed(seed)
    curvature = 0.5 + torch.rand(200, 5, dtype=torch.float64, generator=generator) * noise
    centre = noise * torch.randn(200, 5, dtype=torch.float64, generator=generator)
    return lambda x, t: curvature[t] * (x - centre[t])


def closed_loop(
    make_opt: Callable[[list[Tensor]], AsyncOptimizer], grad: Callable[[Tensor, int], Tensor], steps: int
) -> list[Tensor]:
    """x_1..x_{steps+1} with the gradients taken where the optimizer says."""
    x = torch.nn.Parameter(torch.linspace(1, 2, 5, dtype=torch.float64))
    opt = make_opt([x])
    xs = [x.detach().clone()]
    for t in range(1, steps + 1):
        here, before = torch.empty_like(x), torch.empty_like(x)
        opt.query([[here], [before]] if opt.points == 2 else [[here]])
        x.grad = grad(here, t)
        opt.step(previous_grads=[grad(before, t)] if opt.points == 2 else None)
        xs.append(x.detach().clone())
    return xs


def same(xs: list[Tensor], ys: list[Tensor]) -> bool:
    return len(xs) == len(ys) and all(relative(x, y) < 1e-12 for x, y in zip(xs, ys, strict=True))


X1 = torch.linspace(1, 2, 5, dtype=torch.float64)


@given(seed=st.integers(0, 1000), beta=st.floats(0.01, 1.0))
def test_zero_delay_is_synchronous_momentum(seed: int, beta: float) -> None:
    grad = noisy(seed, 1.0)
    expected = synchronous_momentum(X1, grad, 25, lr=LR, beta=beta)
    for catch_up in (False, True):
        got = closed_loop(lambda p, c=catch_up: OrderedMomentum(p, lr=LR, beta=beta, catch_up=c), grad, 25)
        assert same(got, expected)


@pytest.mark.parametrize("optimizer", [Mu2SGD, OrderedMu2SGD])
@given(seed=st.integers(0, 1000), beta=st.floats(0.01, 1.0))
def test_zero_delay_and_gamma_one_is_storm(optimizer: type, seed: int, beta: float) -> None:
    grad = noisy(seed, 1.0)
    expected = storm(X1, grad, 25, lr=LR, beta=beta)
    assert same(closed_loop(lambda p: optimizer(p, lr=LR, beta=beta, gamma=1.0), grad, 25), expected)


@given(seed=st.integers(0, 1000), radius=st.sampled_from([3.5, 100.0]), power=st.sampled_from([0, 1, 2]))
def test_zero_delay_is_anytime_gd_on_the_storm_estimate(seed: int, radius: float, power: int) -> None:
    def a(t: int) -> float:
        return float(t**power)

    grad = noisy(seed, 1.0)
    expected = anytime_storm(X1, grad, 25, lr=0.02, a=a, projection=Ball(radius))
    got = closed_loop(lambda p: OrderedMu2Anytime(p, lr=0.02, weights=a, projection=Ball(radius)), grad, 25)
    assert same(got, expected)


def test_zero_delay_and_no_noise_is_anytime_gd() -> None:
    """Without noise the increments telescope: a_t·d_t is a_t times the gradient."""
    grad = noisy(0, 0.0)
    expected = anytime_gd(X1, grad, 25, lr=0.02, projection=Ball(100.0))
    got = closed_loop(lambda p: OrderedMu2Anytime(p, lr=0.02, projection=Ball(100.0)), grad, 25)
    assert same(got, expected)


# ---- influence ------------------------------------------------------------------------------------------------------

WORKERS, TAIL = 5, 500


@pytest.mark.parametrize(
    "name", [n for n in NAMES if METHODS[n].weight is not None and "anytime" not in n and "adamw" not in n]
)
@given(order=st.lists(st.integers(0, WORKERS - 1), min_size=2, max_size=40))
def test_one_hot_gradients_read_off_the_influence_of_every_arrival(name: str, order: list[int]) -> None:
    """Arrival t carries the gradient e_t; after a tail of zeros x/lr is the lifetime weight of every arrival."""
    delays = delays_of(order)
    n = len(delays)
    x = torch.nn.Parameter(torch.zeros(n, dtype=torch.float64))
    options = {
        **OPTIONS[name],
        "lr": 1.0,
        **({"workers": WORKERS} if name in ("delay-adaptive", "ormo", "ormo-da") else {}),
    }
    opt = METHODS[name]([x], **options)
    for t in range(1, n + TAIL):
        x.grad = torch.zeros_like(x)
        if t <= n:
            x.grad[t - 1] = 1.0
        # The same gradient at both points: what STORM makes of a linear loss.
        previous = [x.grad.clone()] if opt.points == 2 else None
        opt.step(delay=delays[t - 1] if t <= n else 0, previous_grads=previous)
    total = 1.0 / options["beta"] if name in ("ormo", "ormo-da", "dana-zero") else 1.0  # no beta before the gradient
    declared = [total * METHODS[name].influence(delay=d, **{"workers": WORKERS, **options}) for d in delays]
    if METHODS[name].optimizer.first_version_once:  # Algorithm 1 counts version 1 once
        declared = [0.0 if t == d + 1 > 1 else w for t, (d, w) in enumerate(zip(delays, declared, strict=True), 1)]
    torch.testing.assert_close(-x.detach(), torch.tensor(declared, dtype=torch.float64), rtol=0, atol=1e-12)


@given(order=st.lists(st.integers(0, WORKERS - 1), min_size=2, max_size=40))
def test_increments_of_algorithm_2_never_decay(order: list[int]) -> None:
    """Each increment weighs lr on w for every update since it arrived: the declared influence is 1 in the long run."""
    delays = delays_of(order)
    n, steps = len(delays), len(delays) + 60
    x = torch.nn.Parameter(torch.zeros(n, dtype=torch.float64))
    opt = OrderedMu2Anytime([x], lr=1.0)
    for t in range(1, steps + 1):
        x.grad = torch.zeros_like(x)
        version = t - (delays[t - 1] if t <= n else 0)
        if t <= n:  # s = a_k·g - a_{k-1}·g' = e_t
            x.grad[t - 1] = 1.0 / version
        opt.step(delay=t - version, previous_grads=[torch.zeros_like(x)])
    expected = torch.tensor([float(steps - t + 1) for t in range(1, n + 1)], dtype=torch.float64)
    torch.testing.assert_close(-opt.state[x]["w"], expected, rtol=1e-12, atol=0)
    assert METHODS["ordered-mu2-anytime"].influence(delay=30) == 1.0
