"""What the methods that clip promise beyond equality with their twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latecomer.optim import METHODS, Arrival
from latecomer.optim._clipping import next_scale
from support import OPTIONS, any_delays, delays_of, feed, flat, like, make, parameters, relative, run

LINEAR = {"clipped-catch-up": "catch-up", "balanced-catch-up": "catch-up", "balanced-momentum": "momentum"}
"""Rules whose step is linear in the clipped gradients, by the rule without clip."""
RULES = {**LINEAR, "balanced-adamw": "catch-up-adamw"}


@pytest.mark.parametrize("name", RULES)
@given(delays=any_delays())
def test_a_clip_that_never_bites_changes_no_bit(name: str, delays: list[int]) -> None:
    plain, clipped = parameters(), parameters()
    options = {option: value for option, value in OPTIONS[name].items() if not option.startswith("clip")}
    run(METHODS[RULES[name]](plain, **options), delays)
    run(make(name, clipped, clip=1e9), delays)
    assert torch.equal(flat(plain), flat(clipped))


# Squares of smaller norms underflow: a norm is then zero, as if nothing had come.
@given(norms=st.lists(st.just(0.0) | st.floats(1e-100, 1e6), min_size=1, max_size=30), c=st.floats(1.01, 10.0))
def test_gradients_above_the_threshold_are_clipped_and_others_are_not(norms: list[float], c: float) -> None:
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = METHODS["clipped-catch-up"]([x], lr=1.0, beta=1.0, clip=c, clip_rate=0.1)
    for norm in norms:
        scale, before = opt.param_groups[0]["clip_scale"], x.item()
        feed(opt, [torch.full((1,), norm, dtype=torch.float64)])
        expected = min(norm, c * scale) if scale else norm
        assert before - x.item() == pytest.approx(expected, abs=1e-6, rel=1e-9)
        assert opt.last_scale == pytest.approx(expected / norm if norm else 1.0, rel=1e-12)


def test_a_scale_that_a_zero_gradient_found_at_zero_is_set_by_the_next_one() -> None:
    x = torch.nn.Parameter(torch.zeros(1))
    opt = METHODS["clipped-catch-up"]([x], lr=1.0, beta=1.0)
    for g in (0.0, 3.0):
        feed(opt, [torch.tensor([g])])
    assert (x.item(), opt.param_groups[0]["clip_scale"]) == (-3.0, 3.0)


@pytest.mark.parametrize("name", RULES)
@given(delays=any_delays(), seed=st.integers(0, 1000))
def test_the_parameters_are_what_the_rule_makes_of_clipped_gradients(name: str, delays: list[int], seed: int) -> None:
    clipped, plain = parameters(), parameters()
    opt, rule = make(name, clipped), make(RULES[name], plain)
    generator = torch.Generator().manual_seed(seed)
    for delay in delays:
        grads = like(clipped, generator)
        feed(opt, grads, delay=delay)
        feed(rule, [g * opt.last_scale for g in grads], delay=delay)
    assert relative(flat(clipped), flat(plain)) < 1e-11


@pytest.mark.parametrize("name", LINEAR)
@given(order=st.lists(st.integers(0, 3), min_size=2, max_size=30), seed=st.integers(0, 100))
def test_the_influence_is_the_declared_one_times_what_passed(name: str, order: list[int], seed: int) -> None:
    """Arrival t carries a multiple of e_t: after a tail of zeros x_t over that multiple is the weight it has had."""
    delays, tail = delays_of(order), 200
    sizes = np.random.default_rng(seed).lognormal(sigma=1.0, size=len(delays))
    x = torch.nn.Parameter(torch.zeros(len(delays), dtype=torch.float64))
    opt = METHODS[name]([x], lr=1.0, beta=0.3, clip=1.5, clip_rate=0.2)
    passed = []
    for t, (delay, size) in enumerate(zip(delays, sizes, strict=True)):
        g = torch.zeros_like(x)
        g[t] = size
        feed(opt, [g], delay=delay)
        passed.append(opt.last_scale)
    for _ in range(tail):
        feed(opt, [torch.zeros_like(x)])
    assert METHODS[name].influence(delay=7) == 1.0
    np.testing.assert_allclose(-x.detach().numpy() / sizes, passed, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("clip", 1.0, ValueError, r"Invalid clip value: 1 \(expected 1 < clip < inf\); at 1 or below"),
        ("clip", "2", TypeError, "Invalid clip value: '2'"),
        ("clip_rate", 0.0, ValueError, r"Invalid clip_rate value: 0 \(expected 0 < clip_rate <= 1\)"),
    ],
)
def test_bad_clips(name: str, option: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(name, parameters(), **{option: value})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_bad_fixed_norms(value: float) -> None:
    with pytest.raises(ValueError, match="Invalid clip_at value"):
        make("clipped-catch-up", parameters(), clip_at=value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", RULES)
def test_a_gradient_that_is_not_finite_passes_as_it_is_and_moves_no_scale(name: str, bad: float) -> None:
    x = torch.nn.Parameter(torch.zeros(2))
    opt = make(name, [x])
    for delay, g in [(0, 1.0), (1, 1.0), (0, 2.0)]:
        feed(opt, [torch.tensor([g, g])], delay=delay)
    kept = [key for key in ("clip_scale", "clip_usual", "clip_ratios", "clip_visits") if key in opt.param_groups[0]]
    before = [opt.param_groups[0][key] for key in kept]
    feed(opt, [torch.tensor([bad, 1.0])])
    assert [opt.param_groups[0][key] for key in kept] == before
    assert x.isfinite().tolist() == [False, True]


@pytest.mark.parametrize("name", LINEAR)
def test_a_norm_that_overflows_is_clipped_all_the_same(name: str) -> None:
    x = torch.nn.Parameter(torch.zeros(2))
    opt = METHODS[name]([x], lr=1.0, beta=1.0, clip=2.0)
    for delay, size in [(0, 1.0), (0, 1.0), (1, 1.0), (0, 1e30)]:  # in 32 bits 1e60 is infinite
        before = x.detach().clone()
        feed(opt, [torch.tensor([size, 0.0])], delay=delay)
    assert (before - x)[0].item() == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_zero_gradients_do_not_change_the_scale(name: str) -> None:
    """Of samples already learnt a hinge loss has no gradient; those that have one keep theirs."""
    x = torch.nn.Parameter(torch.zeros(1))
    opt, passed = METHODS[name]([x], lr=0.0), []
    for t, some in enumerate(np.random.default_rng(0).random(3000) < 0.3):
        feed(opt, [torch.tensor([float(some)])], delay=t % 3 if t > 2 else 0)
        passed.append(opt.last_scale)
    assert min(passed) > 0.99


def test_what_a_rare_group_keeps_under_one_scale() -> None:
    """The fixed point of the page: c·(1-q)/(1-c·q)·a/b of its influence, or all of it from c = 1/q on."""
    slow = np.random.default_rng(0).random(20_000) < 0.2
    for c, b in ((2.0, 10.0), (3.0, 100.0), (6.0, 1000.0)):
        scale, left = 1.0, []
        for is_slow in slow:
            norm = b if is_slow else 1.0
            if is_slow:
                left.append(min(1.0, c * scale / norm))
            scale = next_scale(scale, norm, clip=c, rate=0.002)
        expected = c * 0.8 / (1 - c * 0.2) / b if c < 5 else 1.0
        assert np.mean(left[2000:]) == pytest.approx(expected, rel=0.1)


# ---- the balanced clip ----------------------------------------------------------------------------------------------


def shares(name: str, c: float, norms: np.ndarray, slow: np.ndarray, workers: np.ndarray) -> tuple[float, float]:
    """Return the mean factors of fast and of slow gradients in the second half."""
    x = torch.nn.Parameter(torch.zeros(1))
    opt = METHODS[name]([x], lr=0.0, clip=c)
    factors = []
    for t, (norm, late, worker) in enumerate(zip(norms, slow, workers, strict=True), start=1):
        x.grad = torch.tensor([float(norm)])
        delay = min(max(0, t - 2), int((worker + 1) * (30 if late else 3)))  # of version 1 only the first counts
        opt.step(arrival=Arrival(t=t, version=t - delay, worker=int(worker)))
        factors.append(opt.last_scale)
    half = len(norms) // 2
    seen, late = np.array(factors[half:]), slow[half:]
    return float(seen[~late].mean()), float(seen[late].mean())


@pytest.mark.parametrize("c", [1.25, 1.5, 2.0])
def test_late_gradients_that_are_always_larger_are_not_clipped_for_it(c: float) -> None:
    """One scale clips the large tenth; with balanced clipping, fast and slow keep the same share."""
    rng = np.random.default_rng(0)
    slow, workers = rng.random(6000) < 0.1, rng.integers(0, 3, size=6000)
    norms = rng.lognormal(0.0, 0.5, size=6000) * np.where(slow, 10.0, 1.0)
    fast_one, slow_one = shares("clipped-catch-up", c, norms, slow, workers)
    assert slow_one < 0.4 * fast_one
    fast, slow_late = shares("balanced-catch-up", c, norms, slow, workers)
    assert slow_late == pytest.approx(fast, rel=0.1)
    assert fast < 1.0


def test_a_slow_worker_is_not_late() -> None:
    """Only the wait beyond a worker's own mean counts: with constant waits there is one class."""
    x = torch.nn.Parameter(torch.zeros(1))
    opt = METHODS["balanced-momentum"]([x], lr=0.0)
    late = []
    for t in range(1, 400):
        x.grad = torch.ones(1)
        worker = t % 2
        opt.step(arrival=Arrival(t=t, version=max(1, t - 40 * worker), worker=worker))
        late.append(sum(opt.param_groups[0]["clip_visits"][2:]))
    assert late[-1] == late[150]  # at the start the waits still grow
    assert opt.param_groups[0]["clip_scale"] == opt.param_groups[0]["clip_usual"] == 1.0


@pytest.mark.parametrize("name", [name for name in RULES if name.startswith("balanced")])
def test_before_anything_was_late_the_rule_is_that_without_clip_to_the_bit(name: str) -> None:
    first, second = parameters(), parameters()
    plain, balanced = make("catch-up-adamw" if "adamw" in name else "momentum", first), make(name, second)
    for size in np.random.default_rng(1).lognormal(0.0, 2.0, size=50):
        for params, opt in ((first, plain), (second, balanced)):
            for p in params:
                p.grad = torch.full_like(p, float(size))
            opt.step()
        assert balanced.last_scale == 1.0
    assert torch.equal(flat(first), flat(second))
    for delay in (1, 0):  # from the first late arrival on it clips, also what is in time
        for p in second:
            p.grad = torch.full_like(p, 1e6)
        balanced.step(delay=delay)
        assert balanced.last_scale < 0.1


@given(sizes=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=40), seed=st.integers(0, 100))
def test_one_gradient_raises_the_threshold_by_a_bounded_factor(sizes: list[float], seed: int) -> None:
    """The steps that the page states: 1 + rate·(c-1) a gradient for the scale, and 3 % or 3/2 of a young ratio."""
    rng, x = np.random.default_rng(seed), torch.nn.Parameter(torch.zeros(1))
    opt = METHODS["balanced-catch-up"]([x], lr=0.0, clip=1.5, clip_rate=0.01)
    for t, size in enumerate(sizes, start=1):
        group = opt.param_groups[0]
        scale, ratios, visits = group["clip_scale"], group["clip_ratios"], group["clip_visits"]
        x.grad = torch.tensor([size])
        opt.step(arrival=Arrival(t=t, version=t - int(rng.integers(0, max(1, t - 1))), worker=int(rng.integers(2))))
        if scale:
            assert group["clip_scale"] <= scale * (1 + 0.01 * 0.5) * (1 + 1e-12)
        for before, after, count in zip(ratios, group["clip_ratios"], visits, strict=False):
            assert after <= before * (1 + 3 * max(0.01, 1 / (count + 2))) * (1 + 1e-12)


@given(sizes=st.lists(st.floats(1e-3, 1e6), min_size=4, max_size=30), seed=st.integers(0, 100))
def test_an_arrival_moves_the_parameters_by_at_most_its_threshold_over_its_life(sizes: list[float], seed: int) -> None:
    """Arrival t carries a multiple of e_t; after a tail of zeros x_t is all it has ever moved."""
    rng = np.random.default_rng(seed)
    x = torch.nn.Parameter(torch.zeros(len(sizes), dtype=torch.float64))
    opt, limits = METHODS["balanced-catch-up"]([x], lr=1.0, beta=0.3), []
    for t, size in enumerate(sizes, start=1):
        group, delay, worker = opt.param_groups[0], int(rng.integers(0, max(1, t - 1))), int(rng.integers(2))
        limits.append(group["clip"] * group["clip_scale"])  # times the ratio of its class, which is read off below
        g = torch.zeros_like(x)
        g[t - 1] = size
        x.grad, before = g, dict(enumerate(group["clip_ratios"]))
        visits = list(group["clip_visits"])
        opt.step(arrival=Arrival(t=t, version=t - delay, worker=worker))
        place = next((i for i, n in enumerate(group["clip_visits"]) if n != (visits[i] if i < len(visits) else 0)), 0)
        late = any(mean != 1.0 for mean, _ in group["clip_waits"].values())
        limits[-1] = limits[-1] * before.get(place, 1.0) if late and limits[-1] else size
    for t in range(len(sizes) + 1, len(sizes) + 120):
        x.grad = torch.zeros_like(x)
        opt.step(arrival=Arrival(t=t, version=t))
    assert (-x.detach().numpy() <= np.array(limits) * (1 + 1e-9)).all()
