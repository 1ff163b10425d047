"""Recorded runs in which things happened, under any policy, replay to the same bits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import latecomer as lc
from latecomer.problems import Quadratic
from latecomer.simulation import Simulation
from latecomer.trace import STATUSES
from support import KINDS, OPTIONS


def eventful(method: str, problem: Quadratic, **options: Any) -> tuple[lc.Server, torch.Tensor]:
    """A run by hand in which a worker dies, one leaves, two join, one pauses and a job is called off."""
    x = torch.nn.Parameter(torch.full((10,), 5.0, dtype=torch.float64))
    server = lc.Server(lc.optim.METHODS[method]([x], **options), workers=3, seed=7, groups=("fast", "slow"))

    def arrive(worker: int, group: int = 0) -> None:
        ticket = server.holds(worker)
        assert ticket is not None

        def contribution() -> torch.Tensor:
            grads = []
            for point in server.point(ticket):
                grads.append(torch.empty(10, dtype=torch.float64))
                problem.gradient(point[0], problem.batch(ticket.sample, group), grads[-1])
            if len(grads) == 1:
                return grads[0]
            return server.optimizer.contribution([grads[0]], [grads[1]], ticket.version)[0]

        server.receive(ticket, contribution, group=group)

    for worker in range(3):
        server.issue(worker)
    for _ in range(4):
        arrive(1)
        server.issue(1)
    server.lose(server.holds(0))
    arrive(1)
    server.issue(1)  # takes over ticket 0
    newcomer = server.join()
    arrive(1, group=1)
    for worker in (1, newcomer, 0):
        server.issue(worker)
    arrive(newcomer)
    server.cancel(server.holds(2))
    server.issue(newcomer)
    for _ in range(3):
        arrive(1)
        server.issue(1)
    server.leave(1)
    server.issue(server.join())
    arrive(newcomer, group=1)
    arrive(0)
    server.issue(0)
    arrive(0)
    return server, x.detach()


@pytest.mark.parametrize("name", KINDS)
def test_an_eventful_recorded_run_replays_to_the_bit(name: str, tmp_path: Path) -> None:
    problem, options = Quadratic(), {**OPTIONS[name], "lr": 1e-3}
    server, x = eventful(name, problem, **options)
    trace = lc.Trace.load(server.trace().save(tmp_path / "run.parquet"))
    assert {"lost", "cancelled"} <= {STATUSES[code] for code in trace.columns["status"] if code >= 0}
    assert (trace.header.joined, trace.header.left) == (((5, 3), (10, 4)), ((10, 1),))
    assert trace.workers.tolist() == [3] * 5 + [4] * 8
    text = trace.describe()
    assert "2 joined and 1 left during the run: 3 to 4 workers" in text
    assert "cancelled 1, lost 2" in text
    run = lc.simulate(problem, name, trace, **options)
    assert torch.equal(run.state["x"], x)
    assert run.trace.digest == trace.digest
    path = tmp_path / "ckpt"
    for stop in range(1, len(trace)):

        def watch(server: lc.Server, stop: int = stop) -> None:
            if server.arrivals == stop + 1:
                raise RuntimeError("killed")

        with pytest.raises(RuntimeError, match="killed"):
            lc.simulate(
                problem,
                name,
                trace,
                checkpoint=path,
                checkpoint_every=1,
                callbacks=[lc.training.OnArrival(watch)],
                **options,
            )
        resumed = lc.simulate(problem, name, trace, checkpoint=path, **options)
        assert torch.equal(resumed.state["x"], x)
        assert resumed.trace.digest == trace.digest
        shutil.rmtree(path)


class MeanOfThree(lc.policy.Policy):
    """Hold two, flush with the third; call off what is three versions behind."""

    name = "mean-of-three"

    def receive(self, ticket: lc.policy.Ticket, delay: int) -> lc.policy.Decision:
        self.state["n"] = self.state.get("n", 0) + 1
        if delay == 2:
            return lc.policy.Decision("drop")
        return lc.policy.Decision("flush" if self.state["n"] % 3 == 0 else "hold")

    def cancel(self, in_flight: Any, version: int) -> list[lc.policy.Ticket]:
        return [ticket for ticket in in_flight if version - ticket.version >= 3]


@pytest.mark.parametrize("name", ["delay-filtered", "catch-up"])
def test_a_run_under_another_policy_replays_to_the_bit(name: str) -> None:
    x = torch.nn.Parameter(torch.full((10,), 5.0, dtype=torch.float64))
    problem, options = Quadratic(), {**OPTIONS[name], "lr": 0.01}
    method = lc.optim.METHODS[name]
    server = lc.Server(method([x], **options), workers=5, policy=MeanOfThree(), groups=("fast", "slow"))
    rng = np.random.default_rng(0)
    for _ in range(80):
        for worker in range(5):
            if server.holds(worker) is None:
                server.issue(worker)
        ticket = server.holds(min(int(rng.geometric(0.4)) - 1, 4))
        assert ticket is not None
        gradient = torch.empty(10, dtype=torch.float64)
        problem.gradient(server.point(ticket)[0][0], problem.batch(ticket.sample, 0), gradient)
        server.receive(ticket, gradient)
    trace = server.trace()
    words = {STATUSES[code] for code in trace.columns["status"] if code >= 0}
    assert {"applied", "held", "dropped", "cancelled"} <= words
    assert 10 < trace.update.max() < 40
    assert trace.delay.min() == 0
    run = lc.simulate(problem, name, trace, policy=MeanOfThree(), **options)
    assert torch.equal(run.state["x"], x.detach())
    assert run.trace.digest == trace.digest
    columns = {**trace.columns, "version": trace.columns["version"].copy()}
    columns["version"][40] += 1
    with pytest.raises(lc.trace.TraceError, match=r"Row 40 breaks the rule .a ticket starts from the newest iterate"):
        lc.Trace(trace.header, columns)


def test_a_ticket_that_its_own_worker_gets_again_replays() -> None:
    """A worker loses its ticket and has it again before the next arrival."""
    problem = Quadratic()
    server = lc.Server(
        lc.optim.AsyncSGD([torch.nn.Parameter(torch.zeros(10, dtype=torch.float64))], lr=0.01),
        workers=2, groups=("fast", "slow"),
    )  # fmt: skip
    for _ in range(4):
        for worker in range(2):
            if server.holds(worker) is None:
                server.issue(worker)
        for again in range(2):
            mine = server.holds(0)
            assert mine is not None
            server.lose(mine)
            assert server.issue(0).number == mine.number, again
        ticket = server.holds(1)
        assert ticket is not None
        server.receive(ticket, torch.zeros(10, dtype=torch.float64))
    trace = server.trace()
    assert (trace.columns["status"] == STATUSES.index("lost")).sum() == 8
    assert lc.simulate(problem, "async-sgd", trace, lr=0.01).trace.digest == trace.digest


def test_what_was_cancelled_is_forgotten() -> None:
    """Else memory would grow with every cancelled ticket of a long run."""
    policy = lc.policy.RingmasterStop(8, R=2)
    trace = lc.delays.WorkerSpeeds([1.0 + i for i in range(8)], "exponential").trace(60, 0, policy=policy)
    assert (trace.columns["status"] == STATUSES.index("cancelled")).sum() > 100
    simulation = Simulation(lc.problems.quadratic(), "async-sgd", trace, {"lr": 0.01}, policy=policy)
    while not simulation.over:
        simulation.advance()
        assert len(simulation._replayer._rows) <= 8 + 8  # those in flight, and those that the last arrival cancelled
