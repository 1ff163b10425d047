"""Corners that a change could break without anything else noticing."""

from __future__ import annotations

import math

import pytest
import torch

from latecomer.optim import Arrival, Ball, Box, DelayAdaptiveSGD, DelayFilteredSGD, OrderedMu2Anytime
from latecomer.optim._coefficients import missed, retained
from support import flat, make, parameters, run


@pytest.mark.parametrize("beta", [1e-12, 1e-9, 1e-3, 0.5, 1.0])
def test_the_missed_displacement_has_no_cancellation(beta: float) -> None:
    """lr·(1-(1-beta)^d) to full precision, also where (1-beta)^d is all but one."""
    for delay in (1, 2, 5, 1000):
        got = missed([(1, beta, 2.0)], version=3, t=3 + delay)
        exact = 2.0 * (1.0 if beta == 1.0 else -math.expm1(delay * math.log1p(-beta)))
        assert got == pytest.approx(exact, rel=1e-14)
        assert retained([(1, beta, 2.0)], 3, 3 + delay) == pytest.approx((1 - beta) ** delay, rel=1e-12)


def test_a_delay_at_the_threshold_counts() -> None:
    x = torch.nn.Parameter(torch.zeros(1))
    opt = DelayFilteredSGD([x], lr=1.0, threshold=2)
    for delay in (0, 1, 2):
        x.grad = torch.ones(1)
        opt.step(delay=delay)
    assert (x.item(), opt.dropped) == (-3.0, 0)
    assert opt.needs(Arrival(4, 2))
    assert not opt.needs(Arrival(4, 1))


def test_groups_may_have_their_own_threshold_and_the_strictest_counts_what_was_dropped() -> None:
    a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    opt = DelayFilteredSGD([{"params": [a], "threshold": 0}, {"params": [b]}], lr=1.0, threshold=5)
    for delay in (0, 1):
        a.grad, b.grad = torch.ones(1), torch.ones(1)
        opt.step(delay=delay)
    assert (a.item(), b.item(), opt.dropped) == (-1.0, -2.0, 1)
    assert [group["dropped"] for group in opt.param_groups] == [1, 0]


def test_the_number_of_workers_that_was_given_wins_over_the_servers() -> None:
    x = torch.nn.Parameter(torch.zeros(1))
    opt = DelayAdaptiveSGD([x], lr=1.0, workers=1)
    for t, version in ((1, 1), (2, 2), (3, 1)):
        x.grad = torch.zeros(1) if t < 3 else torch.ones(1)
        opt.step(arrival=Arrival(t, version, workers=100))
    assert x.item() == -0.5


def test_a_start_just_outside_the_set_is_refused_and_one_on_its_edge_is_not() -> None:
    params = parameters()
    norm = float(flat(params).norm())
    OrderedMu2Anytime(params, lr=0.1, projection=Ball(norm))
    with pytest.raises(ValueError, match="start outside the feasible set"):
        OrderedMu2Anytime(params, lr=0.1, projection=Ball(0.99 * norm))


def test_weights_that_start_to_decrease_later_are_found_then() -> None:
    opt = make("ordered-mu2-anytime", parameters(), weights=[1.0, 2.0, 3.0, 2.0])
    run(opt, [0, 0])
    before = flat(opt._all_params())
    with pytest.raises(ValueError, match="must not decrease: a_3 = 3, a_4 = 2"):
        run(opt, [0])
    assert torch.equal(flat(opt._all_params()), before)
    assert opt.t == 2


def test_the_ball_counts_parameters_that_had_no_gradient_this_time() -> None:
    still, moving = torch.nn.Parameter(torch.tensor([3.0])), torch.nn.Parameter(torch.tensor([0.0]))
    opt = OrderedMu2Anytime([still, moving], lr=1.0, projection=Ball(5.0))
    moving.grad = torch.tensor([-100.0])
    opt.step()
    w = torch.stack([opt.state[p]["w"] for p in (still, moving)]).flatten()
    assert w.norm().item() == pytest.approx(5.0)
    assert w[0] < 3.0  # scaled down together
    assert still.item() == 3.0  # but a parameter without gradient is not moved


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_ball_of_sixteen_bit_parameters(dtype: torch.dtype) -> None:
    x = [torch.full((70_000,), 2.0, dtype=dtype)]  # the squares add up to more than float16 can hold
    Ball(radius=100.0)(x)
    assert x[0].double().norm().item() == pytest.approx(100.0, rel=0.01)


def test_the_box_has_two_sides_and_may_differ_by_coordinate() -> None:
    x = [torch.tensor([-9.0, 0.0, 9.0])]
    Box([torch.tensor([-1.0, -2.0, -3.0])], [torch.tensor([1.0, 2.0, 3.0])])(x)
    assert x[0].tolist() == [-1.0, 0.0, 3.0]
    Box(-math.inf, 0.5)(x)
    assert x[0].tolist() == [-1.0, 0.0, 0.5]


@pytest.mark.parametrize("name", ["mu2", "ordered-mu2", "ordered-mu2-anytime"])
def test_a_closure_cannot_stand_for_a_late_gradient_of_version_1_either(name: str) -> None:
    opt = make(name, parameters())
    run(opt, [0, 0])
    with pytest.raises(ValueError, match="cannot give a gradient of delay 2"):
        opt.step(lambda: 0.0, delay=2)
    assert opt.t == 2


def test_the_iterate_kept_is_the_one_before_the_arrival() -> None:
    x = torch.nn.Parameter(torch.zeros(1))
    opt = make("async-sgd", [x], lr=1.0, output="uniform")
    x.grad = torch.ones(1)
    opt.step()
    assert opt.output_parameters()[0].item() == 0.0  # x_1, whatever the draw


@pytest.mark.parametrize("name", ["mu2", "ordered-mu2", "ordered-mu2-anytime"])
def test_the_iterate_before_of_a_parameter_that_stood_still_is_itself(name: str) -> None:
    params = parameters()
    opt = make(name, params)
    run(opt, [0, 0])
    for p in params:
        p.grad = torch.ones_like(p)
    params[1].grad = None
    opt.step(previous_grads=[torch.ones_like(p) for p in params])
    here, before = ([torch.empty_like(p) for p in params] for _ in range(2))
    opt.query([here, before])
    assert torch.equal(before[1], here[1])
    assert not torch.equal(before[0], here[0])


@pytest.mark.parametrize(
    ("arrival", "error"),
    [
        (Arrival(3, 1.5), TypeError),
        (Arrival(3.0, 2), TypeError),
        (Arrival(3, 2, workers=-2), ValueError),
        (Arrival(3, 2, workers=0), ValueError),
    ],
)
def test_arrivals_are_made_of_whole_numbers(arrival: Arrival, error: type[Exception]) -> None:
    opt = make("delay-adaptive", parameters())
    run(opt, [0, 0])
    with pytest.raises(error, match="Invalid"):
        opt.step(arrival=arrival)
    assert opt.t == 2


def test_two_optimizers_made_from_one_list_of_groups_count_for_themselves() -> None:
    groups = [{"params": parameters()}]
    first = make("async-sgd", groups)
    run(first, [0, 0])
    second = make("ordered-momentum", groups)
    assert (second.t, second.param_groups[0]["method"]) == (0, "ordered-momentum")
    assert first.t == 2


def test_what_arrives_is_used_before_its_history_is_forgotten() -> None:
    ends = []
    for oldest in (None, 5):
        params = parameters()
        opt = make("ordered-momentum", params)
        for t in range(1, 6):
            opt.param_groups[0]["beta"] = 0.5 / t
            for p in params:
                p.grad = torch.ones_like(p)
            version = 2 if t == 5 else t
            opt.step(arrival=Arrival(t, version, oldest=oldest if t == 5 else None))
        ends.append(flat(params))
    assert torch.equal(ends[0], ends[1])


@pytest.mark.parametrize(("workers", "error"), [("many", TypeError), (-3, ValueError)])
def test_a_groups_own_number_of_workers_is_checked(workers: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="Invalid workers value"):
        DelayAdaptiveSGD([{"params": parameters(), "workers": workers}], lr=0.1)
