"""The rule without a learning rate: its twin, the published rule it is without delay, and how it is used."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import latecomer as lc
from latecomer.optim import Arrival, RateFree
from latecomer.optim._distance import LEVELS
from latecomer.optim.reference.rate_free import RateFreeTwin
from latecomer.theory import CounterExample
from latecomer.theory.measuring import mean_squared_gradient
from latecomer.training import OnArrival
from support import SHAPES, any_delays, flat, like, parameters, relative


def query(opt: RateFree, params: list[Tensor]) -> list[Tensor]:
    out = [torch.empty_like(p) for p in params]
    opt.query([out])
    return out


@given(delays=any_delays(12), zeros=st.sets(st.integers(1, 12)), seed=st.integers(0, 5))
def test_it_is_its_twin_at_the_points_that_workers_get(delays: list[int], zeros: set[int], seed: int) -> None:
    params = parameters(seed=seed)
    opt, twin = RateFree(params, weight_decay=0.1), RateFreeTwin(flat(params), weight_decay=0.1)
    twin.at_query = True
    generator = torch.Generator().manual_seed(seed)
    points = [query(opt, params)]
    for t, delay in enumerate(delays, start=1):
        g, zero = like(params, generator), t in zeros
        opt.receive(Arrival(t, t - delay, point=points[t - delay - 1], zero=zero), g)
        expected = twin.step(flat(g), delay=delay, zero=zero)
        points.append(query(opt, params))
        assert relative(flat(params), expected) < 1e-12
        assert relative(flat(points[-1]), twin.queries[-1]) < 1e-12
        assert opt.distance == pytest.approx(twin.distances[-1], rel=1e-12)


def schedule_free(x: Tensor, grads: list[Tensor], steps: list[float]) -> Tensor:
    """AdamW of The Road Less Scheduled with these learning rates and r = 1, written from its pseudo-code."""
    z, v, total = x.clone(), torch.zeros_like(x), 0.0
    for t, (g, lr) in enumerate(zip(grads, steps, strict=True), start=1):
        v = 0.999 * v + 0.001 * g**2
        z = z - lr * g / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        weight = t * lr**2
        total += weight
        x = (1 - weight / total) * x + weight / total * z
    return x


def test_without_delay_and_for_its_own_steps_it_is_schedule_free_adamw() -> None:
    torch.manual_seed(0)
    x = torch.nn.Parameter(torch.randn(6, dtype=torch.float64))
    start, opt, grads, steps = x.detach().clone(), RateFree([x]), [], []
    for _ in range(40):
        with opt.at_query():
            x.grad = torch.randn(6, dtype=torch.float64) + x.detach()
        grads.append(x.grad)
        opt.step()
        steps.append(0.4 * opt.last_scale * opt.distance)
    assert relative(x.detach(), schedule_free(start, grads, steps)) < 1e-12


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_units_of_loss_do_not_matter_and_units_of_parameters_scale_the_steps(scale: float) -> None:
    """Gradients in other units change nothing; a problem in other units is solved to the same digits."""

    def trained(loss: float, length: float) -> Tensor:
        x = torch.nn.Parameter(torch.full((3,), 4.0 * length, dtype=torch.float64))
        opt = RateFree([x], eps=0.0)
        opt.param_groups[0]["D"] = 1e-3 * length  # the absolute part of the first estimate aside
        for _ in range(200):
            with opt.at_query():
                x.grad = loss * (x.detach() - length) / length
            opt.step()
        return x.detach() / length

    assert relative(trained(scale, 1.0), trained(1.0, 1.0)) < 1e-9
    assert relative(trained(1.0, scale), trained(1.0, 1.0)) < 1e-9


def test_a_large_model_is_trained_by_looking_at_part_of_it() -> None:
    """Also if it is in several tensors, of which only the large ones are looked at."""
    _, block, width = LEVELS[1]
    size = 2 * block + 100
    target = torch.linspace(-1.0, 1.0, size)
    for sizes in ([size], [block, block, 100], [block // 2] * 4 + [100]):
        params = [torch.nn.Parameter(torch.zeros(n)) for n in sizes]
        targets = target.split(sizes)
        opt = RateFree(params)
        for _ in range(300):
            with opt.at_query():
                for p, goal in zip(params, targets, strict=True):
                    p.grad = p.detach() - goal
            opt.step()
        looked = sum(len(state["s"].flatten()) for state in opt.state.values() if "s" in state)
        assert looked == (size if block // 2 in sizes else 2 * width)
        assert float((torch.cat([p.detach() for p in params]) - target).square().mean()) < 1e-3
        resumed = RateFree(params)
        resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
        assert resumed.distance == opt.distance
        copied = copy.deepcopy(opt)  # with parameters of its own
        for each in (opt, copied):
            each.step()
        assert copied.distance == opt.distance


def test_a_late_gradient_moves_z_as_far_as_one_on_time() -> None:
    """The weight on z does not depend on the delay: nothing is shrunk, dropped or caught up."""
    moved = []
    for delay in (0, 5):
        x = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        opt, start = RateFree([x]), x.detach().clone()
        for t in range(1, 7):
            opt.receive(Arrival(t, t, point=[start]), [torch.ones(1, dtype=torch.float64)])
        opt.param_groups[0]["D"], before = 1.0, opt.state[x]["z"].clone()
        opt.param_groups[0]["waits"] = 100 - delay  # the mean wait is the same in both
        opt.receive(Arrival(7, 7 - delay, point=[start]), [torch.ones(1, dtype=torch.float64)])
        moved.append(float(opt.state[x]["z"] - before))
    assert moved[0] == moved[1] != 0.0


def test_parameters_hold_y_only_inside_at_query_and_hold_x_again_after_an_error() -> None:
    params = parameters(shapes=SHAPES)
    opt = RateFree(params)
    for _ in range(3):
        with opt.at_query():
            for p in params:
                p.grad = torch.ones_like(p)
        opt.step()
    x = [p.detach().clone() for p in params]
    y = query(opt, params)
    with contextlib.suppress(RuntimeError), opt.at_query():
        assert all(p.detach().equal(each) for p, each in zip(params, y, strict=True))
        raise RuntimeError("out of memory")
    assert all(p.detach().equal(each) for p, each in zip(params, x, strict=True))
    assert not x[0].equal(y[0])


def test_a_parameter_may_get_its_first_gradient_later_than_others() -> None:
    first, second = (torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
    opt = RateFree([first, second])
    for t in range(6):
        with opt.at_query():
            first.grad = first.detach() - 2.0
            second.grad = second.detach() - 2.0 if t > 2 else None
        opt.step()
    assert first[0] > second[0] > 1.0


def test_a_late_gradient_without_its_point_gets_one_sentence() -> None:
    x = torch.nn.Parameter(torch.ones(2))
    opt = RateFree([x])
    x.grad = torch.ones(2)
    opt.step()
    with pytest.raises(ValueError, match=r"needs the parameters that a gradient of delay 1 was computed at: pass step"):
        opt.step(delay=1)
    with pytest.raises(ValueError, match=r"Arrival.point has 0 tensors for 1 parameters"):
        opt.step(arrival=Arrival(2, 1, point=[]))
    assert opt.t == 1


@given(
    delays=any_delays(20),
    curvature=st.lists(st.floats(0.01, 10.0), min_size=4, max_size=4),
    seed=st.integers(0, 5),
)
def test_where_the_loss_is_convex_the_estimate_never_exceeds_the_distance(
    delays: list[int], curvature: list[float], seed: int
) -> None:
    """docs/rate-free.md has the argument: it needs the point that each gradient was computed at."""
    generator = torch.Generator().manual_seed(seed)
    c = torch.tensor(curvature, dtype=torch.float64)
    x = torch.nn.Parameter(torch.randn(4, dtype=torch.float64, generator=generator))
    best = torch.randn(4, dtype=torch.float64, generator=generator)
    far = float((x.detach() - best).abs().max())
    first = 1e-6 + 0.05 * float(x.detach().square().mean().sqrt())
    opt = RateFree([x])
    points = [query(opt, [x])]
    for t, delay in enumerate(delays, start=1):
        point = points[t - delay - 1]
        opt.receive(Arrival(t, t - delay, point=point), [c * (point[0] - best)])
        points.append(query(opt, [x]))
        assert opt.distance <= max(far, first) * (1 + 1e-9)


def test_the_estimate_does_not_explode_where_the_sum_of_gradients_passes_zero() -> None:
    """One parameter, gradients that cancel while the inner products do not: N/|s| alone would have no limit."""
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = RateFree([x])
    opt.param_groups[0]["D"] = 1.0
    unlimited = 0.0
    for t in range(1, 101):
        g = torch.full((1,), math.cos(t / 5), dtype=torch.float64)
        opt.receive(Arrival(t, t, point=[-g]), [g])  # x_1 is 0: every inner product is positive
        unlimited = max(unlimited, opt.param_groups[0]["N"] / float(opt.state[x]["s"].abs()))
    assert unlimited > 100.0
    assert opt.distance < 20.0


def trained_head(frozen: str) -> float:
    """Train 50 numbers beside 100,000 that stand still; return how far they are from where they should be."""
    torch.manual_seed(0)
    large, small = torch.nn.Parameter(torch.randn(100_000)), torch.nn.Parameter(torch.randn(50))
    groups = [{"params": [large], "lr": 0.0}, {"params": [small]}]
    large.requires_grad_(frozen == "a group without steps")
    opt = RateFree([small] if frozen == "not there" else [large, small] if frozen == "no gradient" else groups)
    for _ in range(400):
        with opt.at_query():
            small.grad = small.detach() - 1.0
            large.grad = torch.randn(100_000) if large.requires_grad else None
        opt.step()
    return float((small.detach() - 1.0).abs().max())


@pytest.mark.parametrize("frozen", ["no gradient", "a group without steps"])
def test_large_tensors_that_stand_still_do_not_hide_small_ones_that_move(frozen: str) -> None:
    assert trained_head(frozen) == trained_head("not there") < 0.01


def test_rows_that_no_batch_uses_do_not_hide_the_others() -> None:
    torch.manual_seed(0)
    table = torch.nn.Parameter(torch.zeros(1100, 64))  # an embedding whose first rows are reserved
    used = (torch.arange(1100) >= 40).float()[:, None]
    opt = RateFree([table])
    for _ in range(300):
        with opt.at_query():
            table.grad = used * (table.detach() - 1.0)
        opt.step()
    assert float((table.detach()[40:] - 1.0).abs().max()) < 0.05


def test_a_gradient_that_is_not_finite_stays_in_its_own_optimizer() -> None:
    ill, well = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))
    first, second = RateFree([ill]), RateFree([well])
    sound = copy.deepcopy(first.state_dict())
    ill.grad, well.grad = torch.full((8,), torch.inf), torch.ones(8)
    first.step()
    second.step()
    assert torch.isfinite(well).all()
    first.load_state_dict(sound)
    ill.data.fill_(1.0)
    ill.grad = torch.ones(8)
    first.step()
    assert ill.detach().equal(well.detach())


def test_a_large_weight_decay_does_not_overshoot() -> None:
    x = torch.nn.Parameter(torch.full((4,), 1000.0))
    opt = RateFree([x], weight_decay=1.0)
    for _ in range(200):
        with opt.at_query():
            x.grad = x.detach() - 1.0
        opt.step()
    assert x.detach().abs().max() < 1000.0


def test_where_the_loss_has_no_minimum_the_estimate_ends_somewhere() -> None:
    x = torch.nn.Parameter(torch.zeros(8))
    opt = RateFree([x])
    for _ in range(1500):
        x.grad = torch.ones(8)
        opt.step()
    assert 1e12 < opt.distance <= 1e15
    assert torch.isfinite(x).all()


def test_the_counter_example_to_theorem_1_is_passed() -> None:
    """Most of the noise in flight has one sign there; the bound of Theorem 1 stands for what a method should reach."""
    example = CounterExample(workers=21)
    for seed in range(2):
        found = mean_squared_gradient(example.problem, "rate-free", example.trace(seed=seed), lr=1.0, beta=0.2)
        assert found < 0.3 * example.promised.bound


def test_slow_samples_with_ten_times_the_gradient_keep_their_weight() -> None:
    """A limit that falls on every one of them, as one of twice the usual size does, leaves an excess loss above 1."""
    trace = lc.delays.DataDependent(workers=7, slow_share=0.1, exact=False).trace(steps=3750, seed=0)
    kept: list[float] = []

    def note(server: lc.Server) -> None:
        assert isinstance(server.optimizer, RateFree)
        kept.append(server.optimizer.last_scale)

    run = lc.simulate(lc.problems.quadratic(centres=[0.0, 30.0]), "rate-free", trace, callbacks=[OnArrival(note)])
    slow = run.trace.group == 1
    assert np.mean(np.array(kept)[slow]) > 0.95
    assert run.final["loss"] < 0.3


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.mT.contiguous().mT,
    "strided": lambda t: torch.stack([t, t], dim=-1)[..., 0],
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_how_gradients_lie_in_memory_does_not_matter(layout: str) -> None:
    plain, other = (torch.nn.Parameter(torch.ones(2, 3, 4, 5, dtype=torch.float64)) for _ in range(2))
    other.data = LAYOUTS[layout](other.data) if layout == "channels last" else other.data
    one, two = RateFree([plain]), RateFree([other])
    for t in range(1, 6):
        g = torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(t))
        start = torch.ones_like(g)
        plain.grad, other.grad = g, LAYOUTS[layout](g)
        for opt in (one, two):
            opt.step(arrival=Arrival(t, 1, point=[start]))
    assert relative(other.detach(), plain.detach()) < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_parameters_follow_wide_ones(dtype: torch.dtype) -> None:
    narrow = torch.nn.Parameter(torch.linspace(1, 2, 90).to(dtype))
    wide = torch.nn.Parameter(narrow.detach().double())
    for x in (narrow, wide):
        opt = RateFree([x])
        opt.param_groups[0]["D"] = 0.05  # a step that all of them can represent
        for t in range(1, 20):
            x.grad = torch.linspace(-1, 1, 90).roll(t).to(dtype).to(x.dtype)
            opt.step()
    assert relative(narrow.detach(), wide.detach()) < (0.1 if dtype == torch.bfloat16 else 4e-3)


def test_complex_parameters_are_pairs_of_real_ones() -> None:
    x = torch.nn.Parameter(torch.ones(4, dtype=torch.complex128))
    pairs = torch.nn.Parameter(torch.view_as_real(x.detach().clone()).clone())
    opt, same = RateFree([x]), RateFree([pairs])
    opt.param_groups[0]["D"] = same.param_groups[0]["D"] = 1e-3
    for t in range(10):
        x.grad = torch.randn(4, dtype=torch.complex128, generator=torch.Generator().manual_seed(t))
        pairs.grad = torch.view_as_real(x.grad)
        opt.step()
        same.step()
    assert relative(torch.view_as_real(x.detach()), pairs.detach()) < 1e-12


def test_a_frozen_group_stays_and_does_not_count_in_the_estimate() -> None:
    torch.manual_seed(0)
    free, frozen = (torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
    opt = RateFree([{"params": [free]}, {"params": [frozen], "lr": 0.0}])
    alone = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    other = RateFree([alone])
    for _ in range(20):
        free.grad = alone.grad = torch.randn(3, dtype=torch.float64) + 1
        frozen.grad = 1e9 * torch.randn(3, dtype=torch.float64)
        opt.step()
        other.step()
    assert frozen.detach().equal(torch.ones(3, dtype=torch.float64))
    assert free.detach().equal(alone.detach())


@pytest.mark.parametrize("workers", [2, 7])
def test_it_trains_digits_without_a_setting(workers: int) -> None:
    """The same class for any number of workers, as workers get it: gradients at y, the model at x."""
    trace = lc.delays.DataDependent(workers=workers, slow_share=0.1).trace(steps=500, seed=0)
    run = lc.simulate(lc.problems.digits(network="mlp", cubic=False), RateFree, trace, seed=0)
    assert run.final["f1"] > 0.85
