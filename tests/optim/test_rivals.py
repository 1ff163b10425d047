"""The field's other methods: special cases that must coincide, and policies against their publications."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import latecomer as lc
from latecomer.optim import METHODS, Arrival, Ball
from latecomer.optim.reference import (
    FADASTwin,
    async_minibatch,
    fedbuff,
    rennala,
    ringleader,
    ringmaster,
)
from latecomer.policy import AsyncMiniBatch, FedBuff, Policy, Rennala, Ringleader, Ringmaster
from latecomer.policy.asking import allowed
from support import any_delays, everything, feed, flat, like, make, parameters, relative, run, side_by_side

X1 = torch.linspace(1.0, 2.0, 4, dtype=torch.float64)
ORDERS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
few = settings(max_examples=40)


def gradient(x: Tensor, n: int) -> Tensor:
    """Gradient of the n-th sample, of a quadratic with noise."""
    return 0.3 * x + torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(n))


def served(name: str, order: list[int], policy: Policy, workers: int = 4, **options: Any) -> lc.Server:
    """Let workers arrive in this order at a server; a worker without a job is passed over."""
    opt = METHODS[name].optimizer([torch.nn.Parameter(X1.clone())], **{"lr": 0.1, **options})
    server, n = lc.Server(opt, workers=workers, policy=policy), 0
    for worker in order:
        for idle in range(workers):
            if server.holds(idle) is None and allowed(policy, server.outstanding):
                server.issue(idle)
        ticket = server.holds(worker)
        if ticket is not None:
            server.receive(ticket, lambda t=ticket, n=n: gradient(server.point(t)[0][0], n))
            n += 1
    return server


def end(server: lc.Server) -> Tensor:
    return server.parameters[0]


# ---- policies on arbitrary orders, against the publications ---------------------------------------------------------


@few
@given(order=ORDERS, R=st.sampled_from([1, 2, 3, math.inf]))
def test_ringmaster(order: list[int], R: float) -> None:
    server = served("async-sgd", order, Ringmaster(4, R))
    assert relative(end(server), ringmaster(X1, order, gradient, lr=0.1, R=R)) < 1e-12


@few
@given(order=ORDERS, S=st.integers(1, 4))
def test_rennala(order: list[int], S: int) -> None:
    server = served("async-sgd", order, Rennala(4, S))
    assert relative(end(server), rennala(X1, order, gradient, lr=0.1, S=S)) < 1e-12


@few
@given(order=ORDERS, B=st.integers(1, 4), beta=st.sampled_from([0.3, 1.0]))
def test_async_minibatch(order: list[int], B: int, beta: float) -> None:
    server = served("async-minibatch", order, AsyncMiniBatch(4, B), beta=beta)
    assert relative(end(server), async_minibatch(X1, order, gradient, lr=0.1, beta=beta, B=B)) < 1e-12


@few
@given(order=ORDERS, K=st.integers(1, 4), level=st.booleans())
def test_fedbuff(order: list[int], K: int, level: bool) -> None:
    server = served("async-sgd", order, FedBuff(4, K, flat=level))
    assert relative(end(server), fedbuff(X1, order, gradient, lr=0.1, K=K, flat=level)) < 1e-12


@few
@given(order=ORDERS, workers=st.integers(1, 4))
def test_ringleader(order: list[int], workers: int) -> None:
    """Also: no gradient is older than 2M - 2 updates, as published."""
    order = [worker % workers for worker in order]
    server = served("ringleader", order, Ringleader(workers), workers)
    expected, largest = ringleader(X1, order, gradient, lr=0.1, workers=workers)
    assert relative(end(server), expected) < 1e-12
    assert largest <= 2 * workers - 2 or workers == 1
    again = lc.Server(METHODS["ringleader"].optimizer([torch.nn.Parameter(X1.clone())], lr=0.1), workers=workers,
                      policy=Ringleader(workers))  # fmt: skip
    again.load_state_dict(everything(server))  # what is held, and whose turn it was
    for each in (server, again):
        for worker in range(workers):
            ticket = each.holds(worker) or each.issue(worker)
            each.receive(ticket, gradient(each.point(ticket)[0][0], 1000 + worker))
    assert torch.equal(end(server), end(again))


@few
@given(order=ORDERS, threshold=st.sampled_from([None, 0, 2]))
def test_fadas_gets_the_largest_delay_of_its_buffer(order: list[int], threshold: int | None) -> None:
    options = {"lr": 0.1, "beta": 0.3, "beta2": 0.2, "eps": 0.1, "threshold": threshold}
    server = served("fadas", order, FedBuff(4, 3, flat=True), **options)
    x, version, points, batch, twin = X1, 1, {}, [], FADASTwin(X1, **options)
    for n, worker in enumerate(order):
        at, since = points.get(worker, (X1, 1))
        batch.append((gradient(at, n), version - since))
        if len(batch) == 3:
            # The twin takes the largest delay as that of the mean; its count of updates starts late enough for it.
            largest = max(delay for _, delay in batch)
            x = twin.step(sum(g for g, _ in batch) / 3, delay=largest)
            version, batch = version + 1, []
        points[worker] = (x, version)
    assert relative(end(server), x) < 1e-12


# ---- special cases --------------------------------------------------------------------------------------------------

MODEL = lc.delays.SampleCost(workers=4, cost=(1.0, 6.0), slow_share=0.2)


def simulated(name: str, policy: Policy | None = None, steps: int = 80, **options: Any) -> tuple[Tensor, lc.Trace]:
    rule = METHODS[name]
    made = lc.policy.as_policy(rule.policy, 4, rule.policy_options(options)) if policy is None else policy
    trace = MODEL.trace(steps, 1, policy=made)
    given_policy = {} if policy is None else {"policy": policy}
    found = lc.simulate(
        lc.problems.quadratic(), name, trace, evaluate_every=steps, **{"lr": 0.05, **options, **given_policy}
    )
    return found.state["x"], found.trace


@pytest.mark.parametrize(
    ("one", "options", "near", "other"),
    [
        ("ringmaster", {"R": math.inf}, {"R": 5}, ("async-sgd", None, {})),
        ("ringmaster-stop", {"R": math.inf}, {"R": 5}, ("async-sgd", None, {})),
        ("rennala", {"S": 1}, {"S": 2}, ("ringmaster", None, {"R": 1})),
        ("fedbuff", {"K": 1, "flat": True}, {"K": 1, "flat": False}, ("async-sgd", None, {})),
        ("async-minibatch", {"B": 3, "beta": 1.0}, {"B": 3, "beta": 0.9}, ("rennala", None, {"S": 3})),
        ("rennala", {"S": 3}, {"S": 4}, ("async-sgd", AsyncMiniBatch(4, 3), {})),
        ("picky", {"radius": 1e9}, {"radius": 0.3}, ("async-sgd", None, {})),
        ("dc-asgd", {"lam": 0.0}, {"lam": 0.01}, ("async-sgd", None, {})),
        ("asap", {"A": 0.0}, {"A": 0.01}, ("async-sgd", None, {})),
        ("clipped", {"clip_at": 1e9}, {"clip_at": 1.0}, ("async-sgd", None, {})),
        ("ormo-da", {"beta": 0.3, "L": 1e-9}, {"beta": 0.3, "L": 9.0}, ("ormo", None, {"beta": 0.3})),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)  # fmt: skip
def test_methods_that_coincide(one: str, options: Any, near: Any, other: Any) -> None:
    """With these options they do; with others that are near they do not, so the test could fail."""
    (expected, trace), (x, found), (another, _) = (
        simulated(other[0], other[1], **other[2]), simulated(one, **options), simulated(one, **near)
    )  # fmt: skip
    assert relative(x, expected) < 1e-12
    assert found.update.tolist() == trace.update.tolist()
    assert relative(another, expected) > 1e-6


def alone(name: str, **options: Any) -> Tensor:
    """Train on one worker, through the server."""
    rule = METHODS[name]
    policy = lc.policy.as_policy(rule.policy, 1, rule.policy_options(options))
    trace = lc.delays.WorkerSpeeds([1.0]).trace(24, 0, policy=policy)
    return lc.simulate(lc.problems.quadratic(), name, trace, **{"lr": 0.05, **options}).state["x"]


def mean_gradient(x: Tensor, n: int, batch: int = 1) -> Tensor:
    """Return the mean gradient at a point of the n-th batch of the samples that `alone` trains on."""
    problem, trace = lc.problems.quadratic(), lc.delays.WorkerSpeeds([1.0]).trace(24, 0)
    found = []
    for place in range(n * batch, (n + 1) * batch):
        found.append(torch.empty_like(x))
        problem.gradient(x, problem.batch(int(trace.sample[place]), int(trace.group[place])), found[-1])
    return torch.stack(found).mean(0)


def by_torch(batch: int = 1, optimizer: Any = torch.optim.SGD, **options: Any) -> Tensor:
    """Train with an optimizer of torch on the same samples."""
    x = torch.nn.Parameter(torch.full((10,), 5.0, dtype=torch.float64))
    opt = optimizer([x], **{"lr": 0.05, **options})
    for n in range(24 // batch):
        x.grad = mean_gradient(x.detach(), n, batch)
        opt.step()
    return x.detach()


@pytest.mark.parametrize(
    ("name", "options", "ordinary"),
    [
        ("ormo", {"beta": 0.2}, {"momentum": 0.8}),
        ("ormo-da", {"beta": 0.2, "L": 1.0}, {"momentum": 0.8}),
        ("dana-zero", {"beta": 0.2}, {"momentum": 0.8, "nesterov": True}),
        ("delay-adaptive", {}, {}),
        ("ringmaster", {}, {}),
        ("ringmaster-stop", {}, {}),
        ("ringleader", {}, {}),
        ("rennala", {"S": 3}, {"batch": 3}),
        ("sync-minibatch", {}, {}),
        ("async-minibatch", {"beta": 1.0, "B": 4}, {"batch": 4}),
        ("picky", {"radius": 1e-9}, {}),
        ("staleness-aware", {}, {}),
        ("dc-asgd", {"lam": 3.0}, {}),
        ("dc-asgd", {"lam": 3.0, "adaptive": True}, {}),
        ("asap", {"A": 0.4}, {"lr": 0.05 * 0.6}),  # F is always 1: the formula as published
        ("fedbuff", {"K": 2}, {"batch": 2}),
        ("ordered-adamw", {"lr": 0.01}, {"optimizer": torch.optim.AdamW, "lr": 0.01}),
    ],
)
def test_with_one_worker_every_rule_is_its_ordinary_form(name: str, options: Any, ordinary: Any) -> None:
    # Adam divides by a root, and the others round in another order.
    assert relative(alone(name, **options), by_torch(**ordinary)) < 1e-9


@pytest.mark.parametrize(
    ("name", "options", "batch", "step"),
    [
        ("clipped", {"clip_at": 2.0}, 1, lambda g, m, v: g * min(1.0, 2.0 / float(g.norm()))),
        ("ringmaster-lmo", {"beta": 0.2}, 1, lambda g, m, v: m / m.norm()),
        ("fadas", {"beta": 0.2, "beta2": 0.3}, 1, lambda g, m, v: m / (v.sqrt() + 1e-8)),
        ("fadas", {"beta": 0.2, "beta2": 0.3, "K": 3}, 3, lambda g, m, v: m / (v.sqrt() + 1e-8)),
        ("async-minibatch", {"beta": 0.2, "B": 4}, 4, lambda g, m, v: m),
    ],
)
def test_with_one_worker_clipping_normalising_and_moments_are_their_ordinary_forms(
    name: str, options: Any, batch: int, step: Any
) -> None:
    x = torch.full((10,), 5.0, dtype=torch.float64)
    m, v, largest = (torch.zeros_like(x) for _ in range(3))
    for n in range(24 // batch):
        g = mean_gradient(x, n, batch)
        m, v = 0.8 * m + 0.2 * g, 0.7 * v + 0.3 * g * g
        largest = torch.maximum(largest, v)
        x = x - 0.05 * step(g, m, largest)
    assert relative(alone(name, **options), x) < 1e-12


def test_with_one_worker_anytime_sgd_queries_the_weighted_average() -> None:
    """x_t is the mean of w_1 to w_t with weights 1 to t, and w descends along t times the gradient there."""
    iterates = [torch.full((10,), 5.0, dtype=torch.float64)]
    for t in range(1, 25):
        x = sum(s * w for s, w in enumerate(iterates, 1)) / (t * (t + 1) / 2)
        iterates.append(iterates[-1] - 0.003 * t * mean_gradient(x, t - 1))
    x = sum(s * w for s, w in enumerate(iterates, 1)) / (25 * 26 / 2)
    assert relative(alone("anytime-sgd", lr=0.003), x) < 1e-12


# ---- what is particular to a rule -----------------------------------------------------------------------------------


@few
@given(delays=any_delays(), seed=st.integers(0, 1000), weight_decay=st.sampled_from([0.0, 0.2]))
def test_adaptive_delay_compensation_is_its_twin(delays: list[int], seed: int, weight_decay: float) -> None:
    _, _, worst = side_by_side("dc-asgd", delays, seed=seed, adaptive=True, lam=2.0, weight_decay=weight_decay)
    assert worst < 1e-12


@few
@given(delays=any_delays(), seed=st.integers(0, 1000))
def test_anytime_sgd_projects(delays: list[int], seed: int) -> None:
    if flat(parameters(seed=seed)).norm() < 7.0:
        _, _, worst = side_by_side("anytime-sgd", delays, seed=seed, lr=1.0, projection=Ball(radius=7.0))
        assert worst < 1e-12


def test_the_spectral_oracle_is_the_polar_factor_as_muon_approximates_it() -> None:
    """An independent way to the same numbers: the polynomial applied to the singular values."""
    for shape in ((3, 5), (5, 3), (4, 2, 3)):
        p = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        opt = make("ringmaster-lmo", [p], lr=1.0, beta=1.0, oracle="spectral")
        g = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        feed(opt, [g])
        u, s, vh = torch.linalg.svd(g.reshape(shape[0], -1), full_matrices=False)
        s = s / s.norm()
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        assert relative(-p.detach(), (u * s @ vh).reshape(shape)) < 1e-10
        assert 0.6 < float(s.min()) <= float(s.max()) < 1.3
        feed(make("ringmaster-lmo", [p], oracle="spectral"), [torch.zeros_like(p)])  # no direction, no step
        assert bool(p.isfinite().all())


def test_dana_keeps_one_momentum_per_worker_through_a_checkpoint() -> None:
    params, again = parameters(), parameters()
    opts = make("dana-zero", params), make("dana-zero", again)
    for t, worker in enumerate((0, 2, 2, 0, 1), 1):
        opts[0].receive(Arrival(t, t, worker=worker), like(params, torch.Generator().manual_seed(t)))
    assert {key for p in params for key in opts[0].state[p]} == {"v0", "v1", "v2"}
    opts[1].load_state_dict(copy.deepcopy(opts[0].state_dict()))
    torch._foreach_copy_([p.data for p in again], [p.data for p in params])
    for opt, own in zip(opts, (params, again), strict=True):
        opt.receive(Arrival(6, 6, worker=2), like(own, torch.Generator().manual_seed(9)))
    assert torch.equal(flat(params), flat(again))


def test_an_earlier_state_dict_stays_as_it_was() -> None:
    """Rules change lists and dicts of their groups in place."""
    for name in ("asap", "ringleader", "balanced-catch-up", "ordered-momentum"):
        params = parameters()
        opt = make(name, params)
        run(opt, [0, 1, 0, 2])
        before = repr(opt.state_dict()["param_groups"])
        kept = opt.state_dict()
        run(opt, [3, 1, 0])
        assert repr(kept["param_groups"]) == before, name


def test_a_rule_that_needs_the_stale_point_says_so() -> None:
    for name in ("picky", "dc-asgd"):
        params = parameters()
        opt = make(name, params)
        feed(opt, like(params, torch.Generator()))  # without delay there is nothing to know
        for p in params:
            p.grad = torch.ones_like(p)
        with pytest.raises(ValueError, match=r"a gradient of delay 1 was computed at: pass step\(arrival=Arrival"):
            opt.step(delay=1)
        with pytest.raises(ValueError, match="has 1 tensors for 3 parameters"):
            opt.step(arrival=Arrival(2, 1, point=[params[0]]))


@pytest.mark.parametrize("name", ["picky", "dc-asgd", "ormo", "dana-zero", "ringleader"])
def test_param_groups_see_their_own_part_of_the_point(name: str) -> None:
    """One group with all parameters, or one per parameter in another order: the same steps."""
    ends = []
    for grouped in (False, True):
        params = parameters()
        given_params = [{"params": [p]} for p in reversed(params)] if grouped else params
        opt = make(name, given_params)
        order = list(reversed(params)) if grouped else params
        points = [[p.detach().clone() for p in order]]
        for t, delay in enumerate([0, 1, 0, 2, 4], 1):
            grads = like(params, torch.Generator().manual_seed(t))
            if name == "dc-asgd" and t == 4:
                grads[1] = None  # a parameter that takes no part
            arrival = Arrival(t, t - delay, worker=t % 2, workers=2, point=points[t - delay - 1])
            opt.receive(arrival, grads[::-1] if grouped else grads)
            points.append([p.detach().clone() for p in order])
        ends.append(flat(params))
    assert relative(*ends) < 1e-13


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ringmaster", {"R": 0}, r"Invalid R value: 0 .expected R >= 1"),
        ("ringmaster", {"R": 2.5}, r"Invalid R value: 2.5 .expected a whole number"),
        ("rennala", {"S": 0}, "Invalid S value: 0"),
        ("fedbuff", {"K": 2, "flat": 1}, "Invalid flat value: 1"),
        ("picky", {}, "picky needs a value for 'radius'"),
        ("clipped", {"clip_at": 0.0}, "Invalid clip_at value: 0"),
        ("asap", {"A": 1.5}, r"Invalid A value: 1.5 .expected 0 <= A <= 1"),
        ("ormo-da", {"L": -1.0}, "Invalid L value: -1"),
        ("ringmaster-lmo", {"oracle": "nuclear"}, "Invalid oracle value: 'nuclear'"),
        ("fadas", {"threshold": -1}, "Invalid threshold value: -1"),
        ("dc-asgd", {"adaptive": "yes"}, "Invalid adaptive value: 'yes'"),
    ],
)
def test_bad_values_get_a_sentence(name: str, options: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        lc.fit(lc.problems.quadratic(), method=name, lr=0.1, engine="inline", workers=2, steps=5, **options)


def test_a_record_with_a_policy_of_the_library_replays_with_its_options(tmp_path: Any) -> None:
    problem = lc.problems.quadratic()
    given_run: dict[str, Any] = {"workers": 3, "engine": "inline", "steps": 40, "lr": 0.05}
    for i, (method, how) in enumerate(
        [("momentum", {"policy": Rennala(3, 2)}), ("fadas", {"K": 2}), ("ringmaster", {"R": 2})]
    ):
        done = lc.fit(problem, method=method, record=tmp_path / f"{i}.parquet", **given_run, **how)
        again = lc.training.replay(done.record, problem)
        assert again.difference == 0.0, again.verdict


class Counting(lc.problems.Quadratic):
    evaluated = 0

    def gradient(self, x: Tensor, batch: Any, out: Tensor) -> bool:
        self.evaluated += 1
        return super().gradient(x, batch, out)


@pytest.mark.parametrize(
    ("name", "options"),
    [("ringmaster", {"R": 2}), ("ringmaster-stop", {"R": 2}), ("rennala", {"S": 2}), ("async-minibatch", {"B": 3}),
     ("picky", {"radius": 0.3}), ("delay-filtered", {"threshold": 1})],
)  # fmt: skip
def test_what_is_dropped_or_cancelled_is_never_computed(name: str, options: Any) -> None:
    problem, rule = Counting(), METHODS[name]
    policy = lc.policy.as_policy(rule.policy, 6, rule.policy_options(options))
    trace = lc.delays.SampleCost(workers=6, cost=(1.0, 7.0), slow_share=0.3).trace(150, 0, policy=policy)
    done = lc.simulate(problem, name, trace, lr=0.05, evaluate_every=150, **options)
    used = int(sum((done.trace.status == status).sum() for status in ("applied", "held")))
    assert problem.evaluated == used
    wasted = done.trace.columns["status"]
    codes = [lc.trace.STATUSES.index(status) for status in ("dropped", "cancelled")]
    assert sum(int((wasted == code).sum()) for code in codes) > 20


def test_points_are_stored_once_per_version_under_a_policy_that_holds() -> None:
    """Forty workers under mini-batches: as many points as distinct versions in flight, and not forty."""
    from latecomer.simulation.simulate import Simulation

    policy = Rennala(40, 10)
    trace = lc.delays.WorkerSpeeds([1.0 + 0.01 * i for i in range(40)]).trace(200, 0, policy=policy)
    simulation = Simulation(lc.problems.quadratic(), "rennala", trace, {"lr": 0.05, "S": 10}, policy=Rennala(40, 10))
    most = 0
    while not simulation.over:
        simulation.advance()
        state = simulation.server._slots.state_dict()
        versions = {ticket.version for ticket in simulation.server.in_flight}
        assert len(state["points"]) == len(versions)
        most = max(most, len(versions))
    assert most < 10


def test_a_worker_that_joins_has_no_place_in_the_table_of_ringleader() -> None:
    servers = [served("ringleader", [0, 1, 0, 1, 1], Ringleader(2), 2) for _ in range(2)]
    for worker in range(2):  # both have a job before the third worker joins, which has no effect on them
        for server in servers:
            if server.holds(worker) is None:
                server.issue(worker)
    late = servers[1].issue(servers[1].join())
    servers[1].receive(late, torch.ones(4, dtype=torch.float64))
    for n, worker in enumerate((0, 1, 1, 0, 0, 1)):
        for server in servers:
            ticket = server.holds(worker) or server.issue(worker)
            server.receive(ticket, gradient(server.point(ticket)[0][0], n))
    assert torch.equal(end(servers[0]), end(servers[1]))
