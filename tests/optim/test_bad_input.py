"""Bad input gets the value and the remedy, and leaves everything as it was."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from latecomer.optim import (
    METHODS,
    Arrival,
    AsyncOptimizer,
    AsyncSGD,
    Ball,
    Box,
    DelayAdaptiveSGD,
    DelayFilteredSGD,
    Momentum,
    Mu2SGD,
    OrderedMomentum,
    OrderedMu2Anytime,
)
from support import KINDS, flat, make, parameters, run


def snapshot(opt: AsyncOptimizer) -> Any:
    state = copy.deepcopy(opt.state_dict())
    tensors = [p.detach().clone() for p in opt._all_params()]
    grads = [None if p.grad is None else p.grad.clone() for p in opt._all_params()]
    return state, tensors, grads, opt.delay


def unchanged(opt: AsyncOptimizer, before: Any) -> bool:
    state, tensors, grads, delay = before
    now = opt.state_dict()
    return (
        now["param_groups"] == state["param_groups"]
        and now["state"].keys() == state["state"].keys()
        and all(torch.equal(v, now["state"][i][k]) for i, s in state["state"].items() for k, v in s.items())
        and all(torch.equal(a, b) for a, b in zip(opt._all_params(), tensors, strict=True))
        and all(
            (p.grad is None and g is None) or torch.equal(p.grad, g)
            for p, g in zip(opt._all_params(), grads, strict=True)
        )
        and opt.delay == delay
    )


def running(name: str, arrivals: int = 4, **options: Any) -> AsyncOptimizer:
    opt = make(name, parameters(), **options)
    run(opt, [0] * arrivals)
    return opt


BAD_DELAYS = [
    (-1, ValueError, r"Invalid delay value: -1 \(expected delay >= 0\)"),
    (1.0, TypeError, r"Invalid delay value: 1.0 \(expected a whole number, got float\)"),
    (True, TypeError, "expected a whole number, got bool"),
    ("2", TypeError, "expected a whole number, got str"),
    (None, TypeError, "expected a whole number, got NoneType"),
    (math.nan, TypeError, "expected a whole number"),
    (
        5,
        ValueError,
        r"value: 5 at arrival 5 means version 0 \(expected 0 <= delay <= 4\).*load_state_dict",
    ),
    (10**30, ValueError, "versions start at 1"),
]


@pytest.mark.parametrize(("delay", "error", "message"), BAD_DELAYS, ids=[repr(d[0]) for d in BAD_DELAYS])
@pytest.mark.parametrize("name", KINDS)
def test_bad_delays(name: str, delay: Any, error: type[Exception], message: str) -> None:
    opt = running(name)
    before = snapshot(opt)
    previous = [torch.zeros_like(p) for p in opt._all_params()] if opt.points == 2 else None
    with pytest.raises(error, match=message):
        opt.step(delay=delay, previous_grads=previous)
    assert unchanged(opt, before)


@pytest.mark.parametrize(("delay", "error", "message"), BAD_DELAYS[:6], ids=[repr(d[0]) for d in BAD_DELAYS[:6]])
def test_bad_delay_attributes(delay: Any, error: type[Exception], message: str) -> None:
    opt = running("momentum")
    with pytest.raises(error, match=message):
        opt.delay = delay
    assert opt.delay == 0


def test_numpy_integers_are_whole_numbers() -> None:
    a, b = running("ordered-momentum"), running("ordered-momentum")
    run(a, [np.int64(2)])
    run(b, [2])
    assert torch.equal(flat(a._all_params()), flat(b._all_params()))


def test_two_delays_that_contradict_each_other() -> None:
    opt = running("momentum")
    opt.delay = 2
    before = snapshot(opt)
    with pytest.raises(ValueError, match=r"step\(delay=1\) contradicts opt.delay = 2"):
        opt.step(delay=1)
    assert unchanged(opt, before)
    with pytest.raises(ValueError, match="contradicts an arrival with delay 0"):
        opt.step(arrival=Arrival(5, 5))
    assert unchanged(opt, before)
    opt.step(delay=2)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("arrival", "error", "message"),
    [
        (Arrival(7, 6), ValueError, "t=7 does not follow: this optimizer has counted 4 arrivals and expects t=5"),
        (Arrival(5, 6), ValueError, "version 6"),
        (Arrival(5, 0), ValueError, "version 0"),
        ((5, 5), TypeError, "expected a latecomer.optim.Arrival"),
    ],
)
def test_bad_arrivals(name: str, arrival: Any, error: type[Exception], message: str) -> None:
    opt = running(name)
    before = snapshot(opt)
    with pytest.raises(error, match=message):
        opt.step(arrival=arrival)
    assert unchanged(opt, before)


@pytest.mark.parametrize("name", ["mu2", "ordered-mu2", "ordered-mu2-anytime"])
def test_bad_second_gradients(name: str) -> None:
    opt = running(name)
    before = snapshot(opt)
    good = [torch.zeros_like(p) for p in opt._all_params()]
    for bad, error, message in [
        (None, ValueError, "needs the gradients of the same sample at the previous iterate.*previous_grads"),
        (good[:2], ValueError, "Got 2 previous_grads for 3 parameters"),
        (good[0], TypeError, "previous_grads is a Tensor .expected a list with one tensor per parameter"),
        (iter(good), TypeError, "expected a list"),
        ([good[0], None, good[2]], TypeError, r"previous_grads\[1\] is None"),
        ([good[1], good[0], good[2]], ValueError, r"previous_grads\[0\] is .* of shape \(5,\)"),
        ([good[0].float(), good[1], good[2]], ValueError, r"previous_grads\[0\] is torch.float32"),
    ]:
        with pytest.raises(error, match=message):
            opt.step(previous_grads=bad)
        assert unchanged(opt, before)
    with pytest.raises(ValueError, match="previous_grads and arrival exclude each other"):
        opt.step(previous_grads=good, arrival=Arrival(5, 5))
    assert unchanged(opt, before)
    with pytest.raises(ValueError, match="cannot give a gradient of delay 2"):
        opt.step(lambda: 0.0, delay=2)
    assert unchanged(opt, before)
    opt.step(previous_grads=good)


def test_one_point_rules_refuse_a_second_gradient() -> None:
    opt = running("momentum")
    before = snapshot(opt)
    with pytest.raises(ValueError, match="Momentum evaluates one point: call it without previous_grads"):
        opt.step(previous_grads=[torch.zeros_like(p) for p in opt._all_params()])
    with pytest.raises(ValueError, match="closure and arrival exclude each other"):
        opt.step(lambda: 0.0, arrival=Arrival(5, 5))
    assert unchanged(opt, before)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("lr", -0.1, ValueError),
        ("lr", math.nan, ValueError),
        ("lr", math.inf, ValueError),
        ("lr", "0.1", TypeError),
        ("lr", None, TypeError),
        ("lr", torch.zeros(2), ValueError),
        ("weight_decay", -1.0, ValueError),
        ("output", "best", ValueError),
        ("output_seed", -1, ValueError),
        ("output_seed", 0.5, TypeError),
    ],
)
def test_bad_options_of_every_method(name: str, option: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"Invalid {option} value"):
        make(name, parameters(), **{option: value})


@pytest.mark.parametrize(
    ("make_it", "error", "message"),
    [
        (
            lambda p: Momentum(p, lr=0.1, beta=1.2),
            ValueError,
            r"Invalid beta value: 1.2 \(expected 0 < beta <= 1\)",
        ),
        (lambda p: OrderedMomentum(p, lr=0.1, beta=0), ValueError, "Invalid beta value: 0"),
        (lambda p: OrderedMomentum(p, lr=0.1, beta=True), TypeError, "expected a number, got bool"),
        (lambda p: OrderedMomentum(p, lr=0.1, catch_up=1), TypeError, "Invalid catch_up value: 1"),
        (lambda p: Mu2SGD(p, lr=0.1, gamma=0.0), ValueError, r"Invalid gamma value: 0 \(expected 0 < gamma <= 1\)"),
        (lambda p: DelayFilteredSGD(p, lr=0.1, threshold=-1), ValueError, "Invalid threshold value: -1"),
        (lambda p: DelayAdaptiveSGD(p, lr=0.1, workers=0), ValueError, "Invalid workers value: 0"),
        (lambda p: DelayAdaptiveSGD(p, lr=0.1, L=1.0, sigma=1.0), ValueError, "missing: delta, steps"),
        (
            lambda p: DelayAdaptiveSGD(p, lr=0.1, workers=2, L=0.0, delta=1.0, sigma=1.0, steps=5),
            ValueError,
            "Invalid L value: 0",
        ),
        (lambda p: OrderedMu2Anytime(p, lr=0.1, projection=3), TypeError, "Invalid projection value: 3"),
        (lambda p: OrderedMu2Anytime(p, lr=0.1, weights=3), TypeError, "Invalid weights value: 3"),
        (lambda p: OrderedMu2Anytime(p, lr=0.1, weights=[2.0, 1.0]), ValueError, "must not decrease: a_1 = 2, a_2 = 1"),
        (lambda p: OrderedMu2Anytime(p, lr=0.1, weights=lambda t: -t), ValueError, "Invalid weight a_1 value: -1"),
        (lambda p: OrderedMu2Anytime(p, lr=0.1, projection=Ball(1e-3)), ValueError, "start outside the feasible set"),
        (
            lambda p: OrderedMu2Anytime(p, lr=0.1, projection=Ball(1.0, centre=[torch.zeros(2)])),
            ValueError,
            r"The centre has tensors of shapes \[\(2,\)\]",
        ),
        (
            lambda p: OrderedMu2Anytime(p, lr=0.1, projection=lambda tensors: tensors[:1]),
            ValueError,
            "must return one tensor per parameter",
        ),
        (lambda p: Ball(0.0), ValueError, "Invalid radius value: 0"),
        (lambda p: Ball(1.0, centre="origin"), TypeError, "Invalid centre value: str"),
        (lambda p: Ball(1.0, centre=math.nan), ValueError, "Invalid centre value: nan"),
        (lambda p: Box(1, 0), ValueError, "low 1 is above high 0"),
        (lambda p: AsyncSGD([], lr=0.1), ValueError, "empty parameter list"),
        (lambda p: AsyncSGD([1.0], lr=0.1), TypeError, "can only optimize Tensors"),
    ],
)
def test_bad_options_of_one_method(make_it: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_it(parameters())


@pytest.mark.parametrize("name", KINDS)
def test_a_schedule_that_leaves_the_range_is_stopped_before_anything_moves(name: str) -> None:
    opt = running(name)
    opt.param_groups[0]["lr"] = math.nan
    state = opt._all_params()[0].detach().clone()
    with pytest.raises(ValueError, match="Invalid lr value: nan"):
        opt.step(previous_grads=[torch.zeros_like(p) for p in opt._all_params()] if opt.points == 2 else None)
    assert opt.t == 4
    assert torch.equal(state, opt._all_params()[0])


def test_delay_adaptive_needs_the_number_of_workers_only_when_it_matters() -> None:
    opt = make("delay-adaptive", parameters(), workers=None)
    run(opt, [0, 0])
    before = snapshot(opt)
    with pytest.raises(ValueError, match=r"the number of workers: use DelayAdaptiveSGD\(params, lr=..., workers=M\)"):
        opt.step(delay=1)
    assert unchanged(opt, before)
    opt.step(arrival=Arrival(3, 2, workers=4))


def test_weights_that_run_out() -> None:
    opt = make("ordered-mu2-anytime", parameters(), weights=[1.0, 2.0, 3.0])
    run(opt, [0, 0])
    before = snapshot(opt)
    with pytest.raises(ValueError, match="end at a_3, but arrival 3 needs a_4"):
        opt.step(previous_grads=[torch.zeros_like(p) for p in opt._all_params()])
    assert unchanged(opt, before)


def test_sparse_gradients_are_refused() -> None:
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    opt = OrderedMomentum(embedding.parameters(), lr=0.1)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match=r"Gradients must be dense.*sparse=False"):
        opt.step()
    assert opt.t == 0


@pytest.mark.parametrize("name", KINDS)
def test_foreign_checkpoints_are_refused(name: str) -> None:
    opt = running(name)
    before = snapshot(opt)
    other = running("async-sgd" if METHODS[name].optimizer is not AsyncSGD else "momentum")
    with pytest.raises(ValueError, match=f"'method': '{other.method}'.*this optimizer is .*'method': '{opt.method}'"):
        opt.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="'method': None"):
        opt.load_state_dict(torch.optim.SGD(parameters()).state_dict())
    whole = {"model": {}, "optimizer": opt.state_dict()}
    for wrong, shown in [
        (whole, "keys .'model', 'optimizer'."),
        ({}, "keys"),
        (None, "None"),
        ("run.ckpt", "run.ckpt"),
    ]:
        with pytest.raises(ValueError, match=f"Not the state_dict of an optimizer: .*{shown}"):
            opt.load_state_dict(wrong)
    for change, error, message in [
        ({"t": -5}, ValueError, "Invalid t in the state_dict value: -5"),
        ({"t": None}, TypeError, "Invalid t in the state_dict value: None"),
        ({"lr": -1.0}, ValueError, "Invalid lr value: -1"),
    ]:
        state = copy.deepcopy(opt.state_dict())
        state["param_groups"][0].update(change)
        with pytest.raises(error, match=message):
            opt.load_state_dict(state)
    assert unchanged(opt, before)
    if opt.state_dict()["state"]:
        reshaped = make(name, parameters(shapes=((4, 3), (5,), ())))
        run(reshaped, [0, 0])
        with pytest.raises(ValueError, match=r"of parameter 0 has shape \(4, 3\).*belongs to another model"):
            opt.load_state_dict(reshaped.state_dict())
        assert unchanged(opt, before)


@pytest.mark.parametrize("name", KINDS)
def test_query_needs_room_for_its_points(name: str) -> None:
    opt = running(name)
    with pytest.raises(ValueError, match=f"query needs {opt.points} sequences of 3 tensors"):
        opt.query([[torch.zeros(1)]])


def test_catch_up_is_another_method_than_plain_ordered_momentum() -> None:
    plain, catching = running("ordered-momentum"), running("catch-up")
    with pytest.raises(ValueError, match=r"'catch_up': True.*this optimizer is.*'catch_up': False"):
        plain.load_state_dict(catching.state_dict())


def test_torchs_argument_names_get_a_hint() -> None:
    with pytest.raises(ValueError, match=r"momentum=0\.9 is beta=0\.1"):
        Momentum([{"params": parameters(), "momentum": 0.9}], lr=0.1)
    opt = running("momentum")
    before = snapshot(opt)
    with pytest.raises(TypeError, match="a delay is a keyword"):
        opt.step(3)
    assert unchanged(opt, before)


def test_influence_is_only_declared_for_what_can_be() -> None:
    for arguments, error in [
        ({"delay": -1, "beta": 0.1}, ValueError),
        ({"delay": 1.5, "beta": 0.1}, TypeError),
        ({"delay": 1, "beta": 2.0}, ValueError),
    ]:
        with pytest.raises(error, match="Invalid"):
            METHODS["ordered-momentum"].influence(**arguments)


def test_a_long_schedule_does_not_flood_the_screen() -> None:
    opt = make("catch-up", parameters())
    for t in range(1, 200):
        opt.param_groups[0]["lr"] = 0.1 / t
        run(opt, [0])
    assert len(opt.param_groups[0]["runs"]) == 199
    assert len(repr(opt)) < 300
    assert "199 arrivals" in repr(opt)
    opt.forget(oldest=190)
    assert len(opt.param_groups[0]["runs"]) == 10
