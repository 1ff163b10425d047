"""Every optimizer equals its textbook twin on arbitrary arrival orders."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latecomer.optim import METHODS, Arrival, Ball, Box
from support import NAMES, TOLERANCE, any_delays, flat, like, make, make_twin, parameters, relative, side_by_side

DTYPES = [torch.float64, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
@given(delays=any_delays(), seed=st.integers(0, 10**6), weight_decay=st.sampled_from([0.0, 0.2]))
def test_equals_its_twin(name: str, dtype: torch.dtype, delays: list[int], seed: int, weight_decay: float) -> None:
    _, _, worst = side_by_side(name, delays, dtype=dtype, seed=seed, weight_decay=weight_decay)
    assert worst < TOLERANCE[dtype]


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("ordered-mu2-anytime",)])
@given(
    delays=any_delays(),
    lrs=st.lists(st.sampled_from([0.01, 0.1, 0.5]), min_size=24, max_size=24),
    betas=st.lists(st.sampled_from([0.01, 0.3, 0.9, 1.0]), min_size=24, max_size=24),
)
def test_schedules_of_lr_and_beta_follow_the_version(
    name: str, delays: list[int], lrs: list[float], betas: list[float]
) -> None:
    """Decision 10, against the twin's explicit products and sums."""

    def schedule(t: int) -> dict[str, float]:
        return {"lr": lrs[t - 1], "beta": betas[t - 1], "beta2": betas[-t]}

    _, _, worst = side_by_side(name, delays, schedule=schedule, weight_decay=0.1)
    assert worst < 1e-12


@given(delays=any_delays(), gammas=st.lists(st.sampled_from([0.1, 0.5, 1.0]), min_size=24, max_size=24))
def test_gamma_may_follow_a_schedule(delays: list[int], gammas: list[float]) -> None:
    _, _, worst = side_by_side("ordered-mu2", delays, schedule=lambda t: {"gamma": gammas[t - 1]})
    assert worst < 1e-12


@pytest.mark.parametrize("beta", [1e-6, 0.5, 1.0])
@pytest.mark.parametrize("name", [n for n in NAMES if "beta" in METHODS[n].optimizer.ranges])
@given(delays=any_delays())
def test_extreme_betas(name: str, beta: float, delays: list[int]) -> None:
    _, _, worst = side_by_side(name, delays, beta=beta)
    assert worst < (1e-10 if "adamw" in name else 1e-12)  # Adam divides by a weight of order beta


@given(delays=any_delays(), workers=st.integers(1, 4), sigma=st.sampled_from([0.0, 2.0]))
def test_delay_adaptive_with_the_constants_of_eq_3(delays: list[int], workers: int, sigma: float) -> None:
    constants = {"L": 2.0, "delta": 3.0, "sigma": sigma, "steps": 50}
    _, _, worst = side_by_side("delay-adaptive", delays, lr=0.7, workers=workers, **constants)
    assert worst < 1e-12


@given(delays=any_delays(), seed=st.integers(0, 10**6))
def test_a_fixed_clip(delays: list[int], seed: int) -> None:
    _, _, worst = side_by_side("clipped-catch-up", delays, seed=seed, clip_at=3.0)
    assert worst < 1e-12


PROJECTIONS = {
    "ball": Ball(radius=7.0),
    "tight ball": Ball(radius=4.5),
    "box": Box(-4, 4),
    "callable, in place": lambda tensors: [t.clamp_(max=4) for t in tensors] and None,
    "callable, returns": lambda tensors: [t.clamp(max=4) for t in tensors],
}


@pytest.mark.parametrize("projection", PROJECTIONS.values(), ids=PROJECTIONS.keys())
@given(delays=any_delays(), seed=st.integers(0, 20))
def test_projections_of_algorithm_2(projection, delays: list[int], seed: int) -> None:
    # A large lr, so that the projection has something to do.
    if isinstance(projection, Ball) and flat(parameters(seed=seed)).norm() > projection.radius:
        return
    _, _, worst = side_by_side("ordered-mu2-anytime", delays, seed=seed, lr=1.0, projection=projection)
    assert worst < 1e-12


def test_the_ball_is_joint_over_all_parameters_and_keeps_every_iterate_inside() -> None:
    params = parameters(seed=1)
    centre = [p.detach() + 0.1 for p in params]
    opt = make("ordered-mu2-anytime", params, lr=1.0, projection=Ball(radius=2.0, centre=centre))
    generator = torch.Generator().manual_seed(0)
    reached = 0.0
    for t in range(1, 40):
        for p, g in zip(params, like(params, generator), strict=True):
            p.grad = g
        opt.step(previous_grads=like(params, generator), delay=min(3, t - 1))
        reached = max(reached, float((flat(params) - flat(centre)).norm()))
        w = [opt.state[p]["w"] for p in params]
        assert (flat(w) - flat(centre)).norm() <= 2.0 + 1e-12
    assert 1.5 < reached <= 2.0 + 1e-12


@pytest.mark.parametrize("weights", [lambda t: t**2, lambda t: 1.0, lambda t: float(t + 3)], ids=["t²", "1", "t+3"])
@given(delays=any_delays())
def test_importance_weights_may_be_any_increasing_sequence(weights, delays: list[int]) -> None:
    _, _, worst = side_by_side("ordered-mu2-anytime", delays, lr=0.001, weights=weights, weight_decay=0.1)
    assert worst < 1e-12
    as_list = [weights(t) for t in range(1, len(delays) + 2)]
    params, opts = [parameters() for _ in range(2)], []
    for own, w in zip(params, (weights, as_list), strict=True):
        opts.append(make("ordered-mu2-anytime", own, weights=w))
        generator = torch.Generator().manual_seed(5)
        for delay in delays:
            for p, g in zip(own, like(own, generator), strict=True):
                p.grad = g
            opts[-1].step(previous_grads=like(own, generator), delay=delay)
    assert torch.equal(flat(params[0]), flat(params[1]))


@pytest.mark.parametrize("name", NAMES)
@given(delays=any_delays(), zeros=st.lists(st.booleans(), min_size=24, max_size=24))
def test_an_arrival_of_weight_zero_counts_and_its_values_are_never_read(
    name: str, delays: list[int], zeros: list[bool]
) -> None:
    params = parameters()
    opt, twin = make(name, params, weight_decay=0.1), make_twin(name, params, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    points = [[p.detach().clone() for p in params]]
    for t, delay in enumerate(delays, start=1):
        version = t - delay
        g, before = like(params, generator), like(params, generator)
        sent = opt.contribution(g, before if opt.points == 2 else None, version)
        if zeros[t - 1]:
            sent = [torch.full_like(p, torch.nan) for p in params]
        for p, s in zip(params, sent, strict=True):
            p.grad = s
        opt.step(arrival=Arrival(t, version, point=points[version - 1], zero=zeros[t - 1]))
        points.append([p.detach().clone() for p in params])
        expected = twin.step(flat(g), delay=delay, previous=flat(before), zero=zeros[t - 1])
        assert relative(flat(params), expected) < 1e-12
    assert opt.t == len(delays)


@pytest.mark.parametrize("name", [n for n in NAMES if not METHODS[n].optimizer.reads_point])
@given(delays=any_delays())
def test_through_a_server_or_in_a_loop_is_the_same_to_the_bit(name: str, delays: list[int]) -> None:
    """contribution on the worker and step(arrival=...) equal step(delay=..., previous_grads=...)."""
    alone, served = parameters(), parameters()
    a, b = make(name, alone), make(name, served)
    generator = torch.Generator().manual_seed(1)
    for t, delay in enumerate(delays, start=1):
        g, before = like(alone, generator), like(alone, generator)
        sent = b.contribution(g, before if b.points == 2 else None, t - delay)
        for p, q, own, s in zip(alone, served, g, sent, strict=True):
            p.grad, q.grad = own, s
        a.step(delay=delay, previous_grads=before if a.points == 2 else None)
        b.step(arrival=Arrival(t, t - delay, worker=0, workers=1 if name == "ringleader" else 3))
        assert torch.equal(flat(alone), flat(served))


@pytest.mark.parametrize(
    "name",
    ["ordered-momentum", "catch-up", "ordered-mu2", "balanced-catch-up", "catch-up-adamw", "balanced-adamw"],
)
def test_a_schedule_that_is_not_needed_any_more_is_dropped(name: str) -> None:
    """With the oldest version in flight known, a per-update schedule stays a short list, and nothing else changes."""
    runs = []
    for oldest in (False, True):
        params = parameters()
        opt = make(name, params)
        generator = torch.Generator().manual_seed(1)
        for t in range(1, 101):
            delay = min(t - 1, (7 * t) % 5)
            opt.param_groups[0].update(beta=0.3 + 0.001 * t, lr=0.1 / t)
            for p, s in zip(params, like(params, generator), strict=True):
                p.grad = s
            opt.step(arrival=Arrival(t, t - delay, oldest=max(1, t - 4) if oldest else None))
        runs.append((flat(params), len(opt.param_groups[0]["runs"])))
    assert torch.equal(runs[0][0], runs[1][0])
    assert runs[0][1] == 100
    assert runs[1][1] <= 5
