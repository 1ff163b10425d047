"""A task in the simulator: the groups of its own batches decide which jobs take long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import latecomer as lc
from latecomer.delays import DataDependent, MeasuredDurations, SampleCost, WorkerSpeeds


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def is_large(batch: Any) -> int:
    return int(batch[0].abs().max() > 1.8)


def epochs(group_fn: Any = is_large) -> lc.Task:
    """A dataset in epochs, whose batches are known by ticket number and the run's seed, not by the ticket's seed."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 2))).float()
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    return lc.Task(lambda: nn.Linear(2, 1), loss, data, batch_size=4, group_fn=group_fn, groups=("usual", "large"))


@pytest.mark.parametrize("policy", [None, "rennala"])
def test_the_batches_of_a_task_decide_how_long_jobs_take(policy: str | None) -> None:
    task = epochs()
    options = {} if policy is None else {"policy": lc.policy.POLICIES[policy](3)}
    trace = SampleCost(4, cost=(1.0, 9.0), task=task).trace(steps=1300, seed=1, **options)  # more than a block of jobs
    assert trace.header.groups == ("usual", "large")
    here = task.with_seed(1)
    for ticket, sample, group in zip(trace.ticket.tolist(), trace.sample.tolist(), trace.group.tolist(), strict=True):
        assert group == is_large(here.batch_of(ticket, sample, 0))
    assert {0, 1} == set(trace.group.tolist())
    np.testing.assert_allclose(trace.end - trace.start, np.where(trace.group == 1, 9.0, 1.0))
    run = lc.simulate(task, "async-sgd" if policy is None else policy, trace, lr=0.05, **options)
    assert (run.trace.group == trace.group).all()


@pytest.mark.parametrize("policy", [None, "rennala"])
def test_measured_durations_of_a_run_follow_the_batches_of_its_task(policy: str | None, tmp_path: Path) -> None:
    task = epochs()
    options = {} if policy is None else {"policy": lc.policy.POLICIES[policy](2)}
    recorded = lc.fit(task, method="momentum", lr=0.05, workers=2, engine="inline", steps=60, seed=7).trace
    model = MeasuredDurations.of(recorded, task=task)
    trace = model.trace(300, seed=1, **options)
    assert trace.header.groups == ("usual", "large")
    assert {0, 1} == set(trace.group.tolist())
    assert trace == model.trace(300, seed=1, **options)
    of_worker = {
        (worker, group): set((recorded.end - recorded.start)[(recorded.worker == worker) & (recorded.group == group)])
        for worker in (0, 1)
        for group in (0, 1)
    }
    for worker, group, took in zip(trace.worker, trace.group, trace.end - trace.start, strict=True):
        assert min(abs(took - own) for own in of_worker[worker, group]) < 1e-9
    run = lc.simulate(task, "async-sgd" if policy is None else policy, trace, lr=0.05, **options)
    assert (run.trace.group == trace.group).all()


def test_a_worker_without_a_measured_job_of_a_group_takes_those_of_all(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("worker,seconds,group\n0,1,0\n0,9,1\n1,2,0\n")
    trace = MeasuredDurations.read(file, task=epochs()).trace(300, seed=0)
    took = set(zip(trace.worker.tolist(), trace.group.tolist(), (trace.end - trace.start).tolist(), strict=True))
    assert took == {(0, 0, 1.0), (0, 1, 9.0), (1, 0, 2.0), (1, 1, 9.0)}


def test_the_seed_of_the_trace_draws_the_epochs_as_that_of_fit_does(tmp_path: Path) -> None:
    task = epochs()
    ends = [lc.simulate(task, "momentum", WorkerSpeeds([1.0, 2.0]).trace(40, seed=s), lr=0.05).state for s in (0, 1)]
    assert not torch.equal(ends[0]["weight"], ends[1]["weight"])
    recorded = tmp_path / "run.parquet"
    run = lc.fit(task, method="momentum", lr=0.05, workers=2, engine="inline", steps=30, seed=7, record=recorded)
    again = lc.simulate(epochs(), "momentum", lc.Trace.load(recorded), lr=0.05, seed=7)
    assert all(torch.equal(run.state[name], again.state[name]) for name in run.state)
    assert task.seed == 0  # a run leaves the task as it was
    whole = lc.Task(
        nn.Linear(2, 1), loss, [(torch.ones(2), torch.ones(1))] * 32, scheduler=len, param_groups={"weight": {}}
    )
    assert {**vars(whole.with_seed(5)), "seed": 0} == vars(whole)  # with all that is not sent to other processes


@pytest.mark.parametrize(("found", "message"), [(99, "group <= 1"), ("long", "whole number"), (-1, "group >= 0")])
def test_what_group_fn_returns_is_checked(found: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"group_fn of ticket 0: .*{message}.*names usual, large"):
        SampleCost(2, cost=(1.0, 2.0), task=epochs(lambda batch: found)).trace(5)
    yes = SampleCost(2, cost=(1.0, 2.0), task=epochs(lambda batch: bool(is_large(batch)))).trace(50)
    assert {0, 1} == set(yes.group.tolist())


def test_groups_that_are_not_those_of_the_batches_are_refused() -> None:
    other = DataDependent(workers=3, slow_share=0.5).trace(steps=40, seed=0)
    with pytest.raises(ValueError, match=r"Ticket \d+ is of group [01] in the trace.*SampleCost\(workers, cost, task="):
        lc.simulate(epochs(), "momentum", other, lr=0.05)
    plain = WorkerSpeeds([1.0, 2.0]).trace(steps=40, seed=0)  # no groups: nothing to disagree about
    assert lc.simulate(epochs(), "momentum", plain, lr=0.05).diverged_at is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": lc.problems.quadratic()}, TypeError, "expected a latecomer.Task with a group_fn"),
        ({"task": "task"}, TypeError, "expected a latecomer.Task with a group_fn"),
        ({"task": epochs(), "slow_share": 0.1}, ValueError, "has its own groups"),
        ({"task": epochs(), "shares": (0.5, 0.5)}, ValueError, "has its own groups"),
        ({"task": epochs(), "dependent": False}, ValueError, "has its own groups"),
        ({"task": epochs(), "cost": (1.0, 2.0, 3.0)}, ValueError, "Got 3 costs for 2 groups"),
    ],
)
def test_bad_tasks(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SampleCost(**{"workers": 2, "cost": (1.0, 2.0), **options})


@pytest.mark.parametrize(
    ("jobs", "groups", "task", "error", "message"),
    [
        ([[1.0]], 1, "task", TypeError, "expected a latecomer.Task with a group_fn"),
        ([[1.0]], 1, epochs(), ValueError, "have 1 groups and the task has 2: usual, large"),
        ([[1.0], [(2.0, 0)]], 2, epochs(), ValueError, "no measured jobs of the group large"),
    ],
)
def test_measured_jobs_that_do_not_fit_a_task(
    jobs: Any, groups: int, task: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MeasuredDurations(jobs, groups, task=task)
