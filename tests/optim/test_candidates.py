"""What the experimental methods promise beyond equality with their twins."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import latecomer as lc
from latecomer.optim import METHODS, Arrival, CatchUpDebt, DecreasingBeta, OrderedAdamW, OrderedFilled, OrderedMomentum
from latecomer.problems import Digits
from latecomer.research import applied_influence, slow_over_fast
from support import OPTIONS, any_delays, delays_of, feed, flat, like, make, parameters, relative, run, worker_delays

CLIPPED = [name for name in METHODS if "clipped" in name]
LATE = [0, 0, 1, 0, 3, 2, 0, 6, 1, 4]


# ---- clipping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLIPPED)
@given(delays=any_delays())
def test_a_clip_that_never_bites_changes_no_bit(name: str, delays: list[int]) -> None:
    plain, clipped = parameters(), parameters()
    options = {option: value for option, value in OPTIONS[name].items() if not option.startswith("clip")}
    run(METHODS[name.removeprefix("clipped-")](plain, **options), delays)
    run(make(name, clipped, clip=1e9), delays)
    assert torch.equal(flat(plain), flat(clipped))


@given(norms=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=30), c=st.floats(1.01, 10.0))
def test_nothing_above_the_threshold_passes_and_what_is_below_does_so_whole(norms: list[float], c: float) -> None:
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = METHODS["clipped-async-sgd"]([x], lr=1.0, clip=c, clip_rate=0.1)
    for norm in norms:
        scale = (opt.param_groups[0]["clip_scales"] or [0.0])[0]
        before = x.item()
        feed(opt, [torch.full((1,), norm, dtype=torch.float64)])
        moved = before - x.item()
        expected = min(norm, c * scale) if scale else norm
        assert moved == pytest.approx(expected, abs=1e-6, rel=1e-9)
        assert opt.last_scale == pytest.approx(expected / norm if norm else 1.0, rel=1e-12)


def test_a_scale_that_a_zero_gradient_found_at_zero_is_set_by_the_next_one() -> None:
    x = torch.nn.Parameter(torch.zeros(1))
    opt = METHODS["clipped-async-sgd"]([x], lr=1.0)
    for g in (0.0, 3.0):
        feed(opt, [torch.tensor([g])])
    assert (x.item(), opt.param_groups[0]["clip_scales"]) == (-3.0, [3.0])


@pytest.mark.parametrize("threshold", [{"clip_norm": 2.0}, {"clip": 1.2, "clip_rate": 0.2}], ids=["fixed", "adaptive"])
@given(delays=any_delays(), seed=st.integers(0, 1000))
def test_full_feedback_loses_nothing(threshold: dict[str, float], delays: list[int], seed: int) -> None:
    """Under asynchronous SGD the parameters and what is kept are together the plain run's."""
    plain, clipped = parameters(), parameters()
    run(METHODS["async-sgd"](plain, lr=0.1), delays, seed)
    opt = METHODS["clipped-async-sgd"](clipped, lr=0.1, feedback=1.0, **threshold)
    run(opt, delays, seed)
    kept = flat([opt.state[p]["e"] for p in clipped])
    assert relative(flat(clipped) - 0.1 * kept, flat(plain)) < 1e-12


@pytest.mark.parametrize("feedback", [0.0, 0.7, 1.0])
@given(order=st.lists(st.integers(0, 3), min_size=2, max_size=30), seed=st.integers(0, 100))
def test_the_applied_influence_is_what_one_hot_gradients_read_off(feedback: float, order: list[int], seed: int) -> None:
    """Arrival t carries a multiple of e_t: afterwards x_t over that multiple is the weight it has had."""
    delays = delays_of(order)
    sizes = np.random.default_rng(seed).lognormal(sigma=1.0, size=len(delays))
    x = torch.nn.Parameter(torch.zeros(len(delays), dtype=torch.float64))
    options = {"clip": 1.5, "clip_rate": 0.2, "feedback": feedback}
    opt = METHODS["clipped-async-sgd"]([x], lr=1.0, **options)
    scales = []
    for t, (delay, size) in enumerate(zip(delays, sizes, strict=True)):
        g = torch.zeros_like(x)
        g[t] = size
        feed(opt, [g], delay=delay)
        scales.append(opt.last_scale)
    expected = applied_influence(np.ones(len(delays)), scales, feedback)
    np.testing.assert_allclose(-x.detach().numpy() / sizes, expected, rtol=1e-9, atol=1e-12)


def test_each_range_of_delays_has_its_scale() -> None:
    x = torch.nn.Parameter(torch.zeros(1))
    opt = METHODS["clipped-async-sgd"]([x], lr=1.0, clip_scale="delay", clip_rate=1.0)
    for delay, g in zip([0, 0, 0, 0, 1, 2, 3, 4], [1.0, 1.0, 1.0, 1.0, 10.0, 100.0, 110.0, 1000.0], strict=True):
        feed(opt, [torch.tensor([g])], delay=delay)
        assert opt.last_scale == 1.0
    assert opt.param_groups[0]["clip_scales"] == [1.0, 10.0, 110.0, 1000.0]


def test_the_simulator_says_where_the_tensors_of_a_flat_parameter_are() -> None:
    """A scale per tensor in one flat parameter is a scale per tensor of the module."""
    trace = lc.delays.DataDependent(workers=3, slow_share=0.2).trace(steps=20, seed=0)
    problem, seen = Digits(network="mlp"), []

    def watch(server: lc.Server) -> None:
        seen.append((server.optimizer.last_scale, len(server.optimizer.param_groups[0]["clip_scales"])))

    options: dict[str, Any] = {"lr": 0.1, "beta": 0.1, "clip": 1.05}
    lc.simulate(problem, "clipped-catch-up", trace, watch=watch, clip_scale="tensor", **options)
    tensors = len(list(problem.model(0).parameters()))
    assert seen[-1][1] == tensors > 1
    assert min(scale for scale, _ in seen if scale) < 1.0


@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("clip", 1.0, ValueError, r"Invalid clip value: 1 \(expected 1 < clip < inf\); at 1 or below"),
        ("clip", "2", TypeError, "Invalid clip value: '2'"),
        ("clip_rate", 0.0, ValueError, r"Invalid clip_rate value: 0 \(expected 0 < clip_rate <= 1\)"),
        ("clip_scale", "layer", ValueError, "Invalid clip_scale value: 'layer' .expected one of all, tensor, delay"),
        ("clip_norm", 0.0, ValueError, "Invalid clip_norm value: 0"),
        ("feedback", 1.5, ValueError, r"Invalid feedback value: 1.5 \(expected 0 <= feedback <= 1\)"),
    ],
)
def test_bad_clips(name: str, option: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(name, parameters(), **{option: value})


def test_sizes_that_do_not_fit_the_parameter() -> None:
    with pytest.raises(ValueError, match=r"Invalid sizes value: they add up to 5, the parameters have shapes .\(4,\)"):
        make("clipped-momentum", [{"params": [torch.nn.Parameter(torch.ones(4))], "sizes": [2, 3]}])


@pytest.mark.parametrize("options", [{"clip_scale": "tensor"}, {"clip_scale": "lateness"}, {"feedback": 0.9}], ids=str)
@pytest.mark.parametrize("name", CLIPPED)
def test_every_way_to_clip_resumes_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    straight = parameters()
    opt = make(name, straight, **options)
    run(opt, LATE)
    saved, halfway = copy.deepcopy(opt.state_dict()), [torch.nn.Parameter(p.detach().clone()) for p in straight]
    run(opt, LATE)
    resumed = make(name, halfway, **options)
    resumed.load_state_dict(saved)
    run(resumed, LATE)
    assert torch.equal(flat(straight), flat(halfway))
    assert opt.param_groups[0]["clip_scales"] == resumed.param_groups[0]["clip_scales"]


# ---- debt -----------------------------------------------------------------------------------------------------------


@given(delays=any_delays(), seed=st.integers(0, 1000))
def test_a_debt_paid_at_once_is_catch_up(delays: list[int], seed: int) -> None:
    at_once, jumping = parameters(), parameters()
    run(CatchUpDebt(at_once, lr=0.1, beta=0.2, rho=1.0), delays, seed)
    run(OrderedMomentum(jumping, lr=0.1, beta=0.2, catch_up=True), delays, seed)
    assert relative(flat(at_once), flat(jumping)) < 1e-12


@given(delays=any_delays(), rho=st.floats(0.05, 1.0))
def test_what_is_owed_is_what_catch_up_is_ahead(delays: list[int], rho: float) -> None:
    paying, jumping = parameters(), parameters()
    opt = CatchUpDebt(paying, lr=0.1, beta=0.2, rho=rho)
    run(opt, delays)
    run(OrderedMomentum(jumping, lr=0.1, beta=0.2, catch_up=True), delays)
    assert relative(flat(paying) - flat(opt.debt()), flat(jumping)) < 1e-12


# ---- stand-ins ------------------------------------------------------------------------------------------------------


@given(delays=worker_delays(40), beta=st.floats(0.01, 0.9))
def test_the_places_present_and_in_flight_add_up(delays: list[int], beta: float) -> None:
    """phi and the weight in m are together 1-(1-beta)^t, whatever arrives when."""
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = OrderedFilled([x], lr=0.0, beta=beta)
    for t, delay in enumerate(delays, start=1):
        feed(opt, [torch.ones(1, dtype=torch.float64)], delay=delay)
        assert opt.phi + opt.state[x]["m"].item() == pytest.approx(1 - (1 - beta) ** t, abs=1e-12)
        assert len(opt.param_groups[0]["flying"]) <= len(delays)


def test_stand_ins_give_slow_samples_their_say_in_the_mean() -> None:
    """Group 1 pulls one way, group 0 the other: with stand-ins the displacement is that of all gradients alike."""
    trace = lc.delays.DataDependent(workers=7, slow_share=0.1).trace(steps=6000, seed=0)
    say = {}
    for name in ("ordered-momentum", "ordered-filled", "catch-up"):
        x = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        opt = METHODS[name]([x], lr=1.0, beta=0.1)
        for delay, group in zip(trace.delay.tolist(), trace.group.tolist(), strict=True):
            feed(opt, [torch.tensor([1.0 - group, float(group)], dtype=torch.float64)], delay=delay)
        counts = np.bincount(trace.group, minlength=2)
        fast, slow = -x.detach().numpy() / counts
        say[name] = slow / fast
    assert say["ordered-momentum"] < 0.4
    assert say["catch-up"] == pytest.approx(1.0, abs=0.02)
    assert say["ordered-filled"] == pytest.approx(1.0, abs=0.05)


def test_constant_gradients_fill_every_place() -> None:
    """If all gradients are alike so are the stand-ins, and the run is sequential momentum."""
    late, sequential = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    a, b = OrderedFilled([late], lr=0.1, beta=0.2), OrderedMomentum([sequential], lr=0.1, beta=0.2)
    moved = []
    for delay in [0, 1, *[2] * 30]:
        for opt in (a, b):
            feed(opt, [torch.ones(1, dtype=torch.float64)], delay=0 if opt is b else delay)
        moved.append((late.item(), sequential.item()))
    steps = np.diff(np.array(moved)[4:], axis=0)
    np.testing.assert_allclose(steps[:, 0], steps[:, 1], rtol=1e-12)


def test_a_version_that_never_arrives_is_forgotten() -> None:
    x = torch.nn.Parameter(torch.zeros(1))
    opt = OrderedFilled([x], lr=0.1, beta=0.1)
    for t in range(1, 11):  # version 4 was called off; version 5 arrives twice, the second time out of nowhere
        x.grad = torch.ones(1)
        opt.step(arrival=Arrival(t, 5 if t == 6 else t if t != 4 else 3, oldest=5 if t == 10 else None))
    assert opt.param_groups[0]["flying"] == [6]
    assert opt.phi == pytest.approx(0.1 * 0.9**4)


# ---- AdamW ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", [False, True])
@given(seed=st.integers(0, 10**6), beta=st.floats(0.01, 0.99), beta2=st.floats(0.001, 0.5))
def test_zero_delay_is_torch_adamw(catch_up: bool, seed: int, beta: float, beta2: float) -> None:
    ours, theirs = parameters(seed=seed), parameters(seed=seed)
    opt = OrderedAdamW(ours, lr=0.01, beta=beta, beta2=beta2, weight_decay=0.1, catch_up=catch_up)
    peer = torch.optim.AdamW(theirs, lr=0.01, betas=(1 - beta, 1 - beta2), weight_decay=0.1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        for p, q, g in zip(ours, theirs, like(ours, generator), strict=True):
            p.grad, q.grad = g, g.clone()
        opt.step()
        peer.step()
        assert relative(flat(ours), flat(theirs)) < 1e-10


def test_the_defaults_are_those_of_torch_adamw() -> None:
    ours, theirs = parameters(), parameters()
    opt, peer = OrderedAdamW(ours), torch.optim.AdamW(theirs)
    for p, q in zip(ours, theirs, strict=True):
        p.grad = q.grad = torch.ones_like(p)
    opt.step()
    peer.step()
    assert relative(flat(ours), flat(theirs)) < 1e-12


def test_adamw_with_catch_up_gives_slow_samples_their_say() -> None:
    """Gradients of one size: the denominator is the same for all, and the rule is linear in what arrives."""
    trace = lc.delays.DataDependent(workers=7, slow_share=0.1).trace(steps=3000, seed=0)
    say = {}
    for catch_up in (False, True):
        x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        opt = OrderedAdamW([x], lr=1.0, beta=0.1, weight_decay=0.0, catch_up=catch_up)
        signs = np.where(trace.group == 1, 1.0, -1.0)
        for delay, sign in zip(trace.delay.tolist(), signs.tolist(), strict=True):
            feed(opt, [torch.tensor([sign], dtype=torch.float64)], delay=delay)
        say[catch_up] = x.item() / -signs.sum()
    assert say[True] == pytest.approx(1.0, abs=0.02)
    assert say[False] > 1.1  # the fast group's sign has too much weight


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("beta2", 1.5, r"Invalid beta2 value: 1.5 \(expected 0 < beta2 <= 1\); beta2 is the weight of the new square"),
        ("eps", -1.0, "Invalid eps value: -1"),
    ],
)
def test_bad_options_of_adamw(option: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OrderedAdamW(parameters(), **{option: value})


def test_adamw_with_and_without_catch_up_are_two_methods() -> None:
    plain, catching = make("ordered-adamw", parameters()), make("ordered-adamw-catch-up", parameters())
    with pytest.raises(ValueError, match=r"'catch_up': True.*not of.*'catch_up': False"):
        plain.load_state_dict(catching.state_dict())


@pytest.mark.parametrize(("name", "option"), [("catch-up-debt", "rho"), ("ordered-filled", "fill_rate")])
@pytest.mark.parametrize("value", [0.0, 1.1])
def test_shares_lie_between_zero_and_one(name: str, option: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"Invalid {option} value: {value:g} \(expected 0 < {option} <= 1\)"):
        make(name, parameters(), **{option: value})


# ---- a falling beta -------------------------------------------------------------------------------------------------


def test_a_falling_beta_is_the_schedule_by_hand_and_resumes(tmp_path: Any) -> None:
    trace = lc.delays.DataDependent(workers=4, slow_share=0.2).trace(steps=60, seed=0)
    problem, rule = lc.problems.quadratic(), DecreasingBeta(power=0.5, least=0.02)
    options: dict[str, Any] = {"lr": 0.01, "beta": 0.5, "schedule": rule}
    betas: list[float] = []

    def watch(server: lc.Server) -> None:
        betas.append(server.optimizer.param_groups[0]["beta"])

    whole = lc.simulate(problem, "catch-up", trace, watch=watch, **options)
    assert betas[1:4] == pytest.approx([0.5 * t**-0.5 for t in (3, 4, 5)])

    def stop(done: int, total: int) -> None:
        if done == 30:
            raise RuntimeError("stop")

    path = tmp_path / "run.ckpt"
    with pytest.raises(RuntimeError, match="stop"):
        lc.simulate(problem, "catch-up", trace, checkpoint=path, evaluate_every=15, progress=stop, **options)
    resumed = lc.simulate(problem, "catch-up", trace, checkpoint=path, **options)
    assert torch.equal(whole.state["x"], resumed.state["x"])


@pytest.mark.parametrize(("arguments", "message"), [({"power": -1.0}, "power"), ({"least": 2.0}, "least")])
def test_bad_schedules(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"Invalid {message} value"):
        DecreasingBeta(**arguments)


# ---- the influence a clip leaves ------------------------------------------------------------------------------------


def test_a_clip_that_falls_on_the_slow_group_takes_its_say_and_feedback_gives_it_back() -> None:
    group = np.array([0, 0, 0, 1] * 50)
    scale = np.where(group == 1, 0.25, 1.0)
    assert slow_over_fast(group, applied_influence(np.ones(200), scale)) == 0.25
    assert slow_over_fast(group[:-4], applied_influence(np.ones(200), scale, feedback=1.0)[:-4]) == 1.0


# ---- clipping by lateness -------------------------------------------------------------------------------------------


def clipped_by(scale: str, c: float, norms: np.ndarray, slow: np.ndarray, workers: np.ndarray) -> tuple[float, float]:
    """Return the mean factors of fast and of slow gradients in the second half, under a clip at c times the scale."""
    x = torch.nn.Parameter(torch.zeros(1))
    opt = METHODS["clipped-async-sgd"]([x], lr=0.0, clip=c, clip_scale=scale)
    factors = []
    for t, (norm, late, worker) in enumerate(zip(norms, slow, workers, strict=True), start=1):
        x.grad = torch.tensor([float(norm)])
        delay = min(t - 1, int((worker + 1) * (30 if late else 3)))
        opt.step(arrival=Arrival(t=t, version=t - delay, worker=int(worker)))
        factors.append(opt.last_scale)
    half = len(norms) // 2
    seen, late = np.array(factors[half:]), slow[half:]
    return float(seen[~late].mean()), float(seen[late].mean())


@pytest.mark.parametrize("c", [1.25, 1.5, 2.0])
def test_late_gradients_that_are_always_larger_are_not_clipped_for_it(c: float) -> None:
    """One scale cuts the tenth that is ten times as large; by lateness fast and slow keep the same share of theirs."""
    rng = np.random.default_rng(0)
    slow, workers = rng.random(6000) < 0.1, rng.integers(0, 3, size=6000)
    norms = rng.lognormal(0.0, 0.5, size=6000) * np.where(slow, 10.0, 1.0)
    fast_one, slow_one = clipped_by("all", c, norms, slow, workers)
    assert slow_one < 0.4 * fast_one
    fast, slow_late = clipped_by("lateness", c, norms, slow, workers)
    assert slow_late == pytest.approx(fast, rel=0.1)
    assert fast < 1.0


def test_by_lateness_a_slow_worker_is_not_late() -> None:
    """Only the wait beyond a worker's own mean counts: with constant waits there is one class, whoever is slow."""
    x = torch.nn.Parameter(torch.zeros(1))
    opt = METHODS["clipped-async-sgd"]([x], lr=0.0, clip_scale="lateness")
    late = []
    for t in range(1, 400):
        x.grad = torch.ones(1)
        worker = t % 2
        opt.step(arrival=Arrival(t=t, version=max(1, t - 40 * worker), worker=worker))
        late.append(sum(opt.param_groups[0]["clip_visits"][2:]))
    assert late[-1] == late[150]  # at the start the waits still grow
    assert opt.param_groups[0]["clip_scales"][:2] == [1.0, 1.0]


@pytest.mark.parametrize("rule", ["async-sgd", "momentum", "ordered-momentum", "catch-up"])
def test_before_anything_was_late_a_clip_by_lateness_changes_no_bit(rule: str) -> None:
    first, second = parameters(), parameters()
    plain, clipped = make(rule, first), make(f"clipped-{rule}", second, clip_scale="lateness")
    for size in np.random.default_rng(1).lognormal(0.0, 2.0, size=50):
        for params, opt in ((first, plain), (second, clipped)):
            for p in params:
                p.grad = torch.full_like(p, float(size))
            opt.step()
        assert clipped.last_scale == 1.0
    assert torch.equal(flat(first), flat(second))
    for delay in (1, 0):  # from the first late arrival on it clips, also what is in time
        for p in second:
            p.grad = torch.full_like(p, 1e6)
        clipped.step(delay=delay)
        assert clipped.last_scale < 0.1


@pytest.mark.parametrize("scale", ["all", "delay", "lateness"])
def test_without_delay_clipped_catch_up_is_clipped_momentum(scale: str) -> None:
    first, second = parameters(), parameters()
    for name, params in (("clipped-catch-up", first), ("clipped-momentum", second)):
        run(make(name, params, clip_scale=scale), [0] * 30)
    assert torch.equal(flat(first), flat(second))
