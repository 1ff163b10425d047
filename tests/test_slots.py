"""Tickets of one version share the memory of its points; no result depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import latecomer as lc
from latecomer.core import state
from latecomer.optim import Momentum, Ringleader
from latecomer.slots import FlatSlots, VersionSlots


class PerWorker(Momentum):
    """A rule with points of its own for every worker."""

    def query(self, out: Any, worker: int | None = None) -> None:
        super().query(out, worker)
        torch._foreach_add_(list(out[0]), 0.01 * (worker or 0))


def simulated(method: Any, trace: lc.Trace, **options: Any) -> list[bytes]:
    run = lc.simulate(lc.problems.quadratic(), method, trace, lr=0.02, **options)
    return [tensor.numpy().tobytes() for tensor in run.state.values()]


@given(
    st.sampled_from(["momentum", "ordered-mu2", "ordered-mu2-anytime", "ringleader", PerWorker, torch.optim.SGD]),
    st.lists(st.integers(0, 4), min_size=1, max_size=40),
    st.sampled_from(["async", "synchronous"]),
)
@settings(deadline=None, max_examples=30)
@pytest.mark.filterwarnings("ignore:.*applies gradients as they come")
def test_results_do_not_depend_on_who_shares(method: Any, order: list[int], policy: str) -> None:
    speeds = [1.0 + pace for pace in [*order, 0][:5]]
    policy = "ringleader" if method == "ringleader" else policy
    trace = lc.delays.WorkerSpeeds(speeds, "exponential").trace(len(order), seed=sum(order), policy=policy)
    shared = simulated(method, trace, policy=policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "VersionSlots", FlatSlots)
        assert simulated(method, trace, policy=policy) == shared


class Counting:
    """Counts the memory that is made."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> list[Tensor]:
        self.made += 1
        return [torch.zeros(2)]


@pytest.mark.parametrize(("rule", "expected"), [(Momentum, 1), (Ringleader, 1), (PerWorker, 1000)])
def test_a_thousand_workers_start_from_one_copy(rule: Any, expected: int) -> None:
    x = nn.Parameter(torch.ones(2))
    optimizer, make = rule([x], lr=0.1), Counting()
    server = lc.Server(optimizer, workers=1000, slots=VersionSlots(make))
    tickets = [server.issue(worker) for worker in range(1000)]
    assert make.made == expected
    server.receive(tickets[0], torch.ones(2))
    late = server.issue(0)
    assert make.made == max(expected, 2)
    assert server.point(tickets[1])[0][0].tolist() == pytest.approx([1.0, 1.0], abs=0.02)
    assert server.point(late)[0][0].tolist() == x.tolist()
    for ticket in (*tickets[1:], late):
        server.receive(ticket, torch.ones(2))
    server.issue(0)
    assert make.made == max(expected, 2)  # what nobody uses is used again


def test_a_resumed_run_goes_on_from_shared_points(tmp_path: Path) -> None:
    trace = lc.delays.DataDependent(7, 0.2).trace(60, 0)
    straight = simulated("momentum", trace)

    def die(server: lc.Server) -> None:
        if server.arrivals == 31:
            raise RuntimeError("died")

    with pytest.raises(RuntimeError, match="died"):
        simulated("momentum", trace, checkpoint=tmp_path, checkpoint_every=5, callbacks=[lc.training.OnArrival(die)])
    assert simulated("momentum", trace, checkpoint=tmp_path, checkpoint_every=5) == straight


class InPlace(lc.problems.Quadratic):
    def gradient(self, x: Tensor, batch: Any, out: Tensor) -> bool:
        x.mul_(2.0)
        return super().gradient(x, batch, out)


def test_a_gradient_that_changes_its_point_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient changes the point in place, which other tickets start from too"):
        lc.simulate(InPlace(), "momentum", lc.delays.Constant(3).trace(9), lr=0.1)
