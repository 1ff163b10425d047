"""What tests share: making a method, its twin and a server, schedules, running two things side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from latecomer import Server
from latecomer.optim import METHODS, Arrival, AsyncOptimizer
from latecomer.optim.reference import TWINS, Twin

EVERY = sorted(METHODS)
NAMES = [n for n in EVERY if METHODS[n].policy is None or n in ("ringleader", "fadas", "ringmaster-lmo")]
"""One method per optimizer: those with a policy share theirs, except for three."""
KINDS = [
    *("async-sgd", "delay-adaptive", "delay-filtered", "momentum", "ordered-momentum", "catch-up", "catch-up-adamw"),
    *("mu2", "ordered-mu2", "ordered-mu2-anytime", "balanced-catch-up"),
    *("ormo", "dana-zero"),
]
"""One of each kind: the others are the clip of balanced-catch-up, or part of it, or SGD with another step."""
SHAPES = ((3, 4), (5,), ())

OPTIONS: dict[str, dict[str, Any]] = {
    "async-sgd": {"lr": 0.1},
    "delay-adaptive": {"lr": 0.1, "workers": 3},
    "delay-filtered": {"lr": 0.1, "threshold": 2.5},
    "momentum": {"lr": 0.1, "beta": 0.3},
    "mu2": {"lr": 0.1, "beta": 0.3, "gamma": 0.4},
    "ordered-momentum": {"lr": 0.1, "beta": 0.3},
    "catch-up": {"lr": 0.1, "beta": 0.3},
    "ordered-mu2": {"lr": 0.1, "beta": 0.3, "gamma": 0.4},
    "ordered-mu2-anytime": {"lr": 0.01},
    # A clip that bites: random gradients of these shapes have norms of 4 ± 0.7.
    "catch-up-adamw": {"lr": 0.1, "beta": 0.3, "beta2": 0.2, "eps": 0.1, "weight_decay": 0.0},
    "clipped-catch-up": {"lr": 0.1, "beta": 0.3, "clip": 1.1, "clip_rate": 0.3},
    "balanced-catch-up": {"lr": 0.1, "beta": 0.3, "clip": 1.1, "clip_rate": 0.3},
    "balanced-momentum": {"lr": 0.1, "beta": 0.3, "clip": 1.1, "clip_rate": 0.3},
    "balanced-adamw": {
        "lr": 0.1,
        "beta": 0.3,
        "beta2": 0.2,
        "eps": 0.1,
        "weight_decay": 0.0,
        "clip": 1.1,
        "clip_rate": 0.3,
    },
}
OPTIONS |= {
    "ormo": {"lr": 0.02, "beta": 0.3, "workers": 3},
    "ormo-da": {"lr": 0.1, "beta": 0.3, "L": 0.5, "workers": 1},
    "ringmaster": {"lr": 0.1, "R": 2},
    "ringmaster-stop": {"lr": 0.1, "R": 2},
    "ringleader": {"lr": 0.1},
    "rennala": {"lr": 0.1, "S": 2},
    "sync-minibatch": {"lr": 0.1},
    "async-minibatch": {"lr": 0.1, "beta": 0.3, "B": 2},
    "picky": {"lr": 0.1, "radius": 1.0},
    "staleness-aware": {"lr": 0.1},
    "dc-asgd": {"lr": 0.1, "lam": 0.3},
    "dana-zero": {"lr": 0.02, "beta": 0.3},
    "asap": {"lr": 0.1, "A": 0.7},
    "fedbuff": {"lr": 0.1, "K": 2},
    "fadas": {"lr": 0.1, "beta": 0.3, "beta2": 0.2, "eps": 0.1, "threshold": 3, "K": 2},
    "anytime-sgd": {"lr": 0.01},
    "clipped": {"lr": 0.1, "clip_at": 3.5},
    "ringmaster-lmo": {"lr": 0.1, "beta": 0.3, "R": 2},
    "rate-free": {"lr": 1.0, "beta": 0.3, "beta2": 0.2, "eps": 0.1},
    "ordered-adamw": {"lr": 0.1, "beta": 0.3, "beta2": 0.2, "eps": 0.1, "weight_decay": 0.0},
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def parameters(dtype: torch.dtype = torch.float64, seed: int = 0, shapes: Sequence[Any] = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(s, dtype=torch.float64, generator=generator).to(dtype)) for s in shapes]


def make(name: str, params: Any, **options: Any) -> AsyncOptimizer:
    return METHODS[name](params, **{**OPTIONS[name], **options})


def make_twin(name: str, params: Sequence[Tensor], **options: Any) -> Twin:
    return TWINS[name](flat(params), **{**OPTIONS[name], **options})


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def like(params: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Random gradients, drawn in float64 so that every dtype sees the same ones up to rounding."""
    return [torch.randn(p.shape, dtype=torch.float64, generator=generator).to(p.dtype) for p in params]


def feed(
    opt: AsyncOptimizer, grads: Sequence[Tensor | None], previous: Sequence[Tensor] | None = None, **how: Any
) -> None:
    params = [p for group in opt.param_groups for p in group["params"]]
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    if opt.reads_point and how.get("delay"):
        # Any point will do where runs are compared with each other.
        how["arrival"] = Arrival(opt.t + 1, opt.t + 1 - how.pop("delay"), point=[0.5 * p.detach() for p in params])
    opt.step(previous_grads=previous if opt.points == 2 else None, **how)


def run(opt: AsyncOptimizer, delays: Sequence[int], seed: int = 0) -> None:
    """Feed random gradients with these delays, starting wherever the optimizer is."""
    params = [p for group in opt.param_groups for p in group["params"]]
    for delay in delays:
        generator = torch.Generator().manual_seed(1000 * seed + opt.t)
        feed(opt, like(params, generator), like(params, generator), delay=delay)


def side_by_side(
    name: str,
    delays: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    schedule: Callable[[int], dict[str, float]] = lambda t: {},
    shapes: Sequence[Any] = SHAPES,
    **options: Any,
) -> tuple[AsyncOptimizer, Twin, float]:
    """Run a method and its twin on the same random gradients; return both and the largest relative difference."""
    params = parameters(dtype, seed, shapes)
    opt, twin = make(name, params, **options), make_twin(name, params, **options)
    generator = torch.Generator().manual_seed(seed + 1)
    worst, points = 0.0, [[p.detach().clone() for p in params]]
    for t, delay in enumerate(delays, start=1):
        for key, value in schedule(t).items():
            twin.options[key] = value
            for group in opt.param_groups:
                group[key] = value
        g, before = like(params, generator), like(params, generator)
        if opt.reads_point:
            feed(opt, g, arrival=Arrival(t, t - delay, point=points[t - delay - 1]))
        else:
            feed(opt, g, before, delay=delay)
        points.append([p.detach().clone() for p in params])
        expected = twin.step(flat(g), delay=delay, previous=flat(before))
        worst = max(worst, relative(flat(params), expected))
    return opt, twin, worst


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))


@st.composite
def any_delays(draw: st.DrawFn, max_size: int = 20) -> list[int]:
    """Any delay the optimizer accepts: at arrival t anything from 0 to t - 1."""
    n = draw(st.integers(1, max_size))
    return [draw(st.integers(0, t - 1)) for t in range(1, n + 1)]


@st.composite
def worker_delays(draw: st.DrawFn, max_size: int = 20) -> list[int]:
    """Delays that M workers can produce: each continues from the iterate its last arrival made."""
    workers = draw(st.integers(1, 6))
    order = draw(st.lists(st.integers(0, workers - 1), min_size=1, max_size=max_size))
    return delays_of(order)


def delays_of(order: Sequence[int]) -> list[int]:
    """The delays that follow when workers hand in in this order."""
    version: dict[int, int] = {}
    delays = []
    for t, worker in enumerate(order, start=1):
        delays.append(t - version.get(worker, 1))
        version[worker] = t + 1
    return delays


# ---- servers of four numbers ----------------------------------------------------------------------------------------


def server(name: str = "async-sgd", workers: int = 3, **options: Any) -> Server:
    return Server(make(name, [torch.nn.Parameter(torch.ones(4, dtype=torch.float64))]), workers=workers, **options)


def vector(value: float = 1.0) -> torch.Tensor:
    return torch.full((4,), value, dtype=torch.float64)


def everything(s: Server) -> dict[str, Any]:
    return copy.deepcopy(s.state_dict())


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
