"""Seats on a Ray cluster: one that falls silent and comes back, one that finds room later, one that only evaluates."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch

import latecomer as lc
from latecomer.engines import Died, Done, Job, Ready, WorkerSpec
from latecomer.engines.ray import RayEngine
from processes import ended
from ray_marks import ON_RAY

pytestmark = ON_RAY
TIMEOUT = 120.0  # seconds
SPEC = WorkerSpec(lc.problems.quadratic(noise=0.0), size=10, dtype=torch.float64)


def hear(engine: RayEngine, *kinds: type) -> list[Any]:
    """Wait for one event of each kind, and no other."""
    found: list[Any] = []
    until = time.monotonic() + TIMEOUT
    while len(found) < len(kinds):
        assert time.monotonic() < until, found
        found += engine.events(1.0)
    assert [type(event) for event in found] == list(kinds)
    return found


def test_a_silent_worker_is_replaced_and_its_later_messages_reach_no_slot(ray_cluster: Any) -> None:
    with RayEngine(ray_cluster.address, shared=False, silence=6.0) as engine:
        (slot,) = engine.start(SPEC, seats=1, slots=1)
        (old,) = hear(engine, Ready)
        os.kill(old.pid, signal.SIGSTOP)
        try:
            engine.submit(0, Job(number=4, slot=0))  # it has it, and will go on with it
            (died,) = hear(engine, Died)
            assert died == Died(0, "no message for 6 s")
            engine.restart(0)
            (new,) = hear(engine, Ready)
            assert new.pid != old.pid
            slot.points[0].fill_(5.0)
            engine.submit(0, Job(number=4, slot=0))
            (done,) = hear(engine, Done)
            assert done.number == 4
            assert float(slot.gradient[0]) == pytest.approx(0.2)
            slot.gradient.fill_(3.0)
        finally:
            os.kill(old.pid, signal.SIGCONT)
        assert ended({old.pid})
        assert engine.events(0.5) == []
        assert (slot.gradient == 3.0).all()
        engine.submit(0, Job(number=5, slot=0))
        assert hear(engine, Done)[0].number == 5


def test_an_evaluating_worker_needs_no_free_resources(ray_cluster: Any) -> None:
    import ray

    spec = WorkerSpec(SPEC.problem, size=10, dtype=torch.float64, evaluators=1)
    with RayEngine(ray_cluster.address, cpus=ray.cluster_resources()["CPU"] - 1) as engine:
        engine.start(spec, seats=2, slots=1)
        assert {event.seat for event in hear(engine, Ready, Ready)} == {0, 1}


class Join(lc.training.Callback):
    """Adds a node once a worker is ready, and ends the run when a worker is ready there."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.node, self.workers = cluster, None, set[int]()
        self.until = time.monotonic() + TIMEOUT

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        self.workers.add(ticket.worker)
        if self.node is None:
            self.node = self.cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", resources={"place": 1})
        if len(self.workers) == 2 or time.monotonic() > self.until:
            run.stop()


@pytest.mark.filterwarnings("ignore:A worker has joined")
def test_a_worker_joins_when_a_node_does(ray_cluster: Any) -> None:
    problem, join = lc.problems.quadratic(), Join(ray_cluster)
    problem.evaluates = False  # type: ignore[attr-defined]
    first = ray_cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", resources={"place": 1})
    try:
        with pytest.warns(UserWarning, match="The cluster has 1 of 'place', and 2 workers need 2: "):
            lc.fit(
                problem, lr=0.01, workers=1, max_workers=2, steps=10_000_000, callbacks=[join],
                engine=RayEngine(ray_cluster.address, resources={"place": 1}),
            )  # fmt: skip
    finally:
        for node in (first, join.node):
            if node is not None:
                ray_cluster.remove_node(node)
    assert join.workers == {0, 1}
