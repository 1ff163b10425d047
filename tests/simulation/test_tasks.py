"""A task in the simulator: the groups of its own batches decide which jobs take long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import latecomer as lc
from latecomer.delays import DataDependent, SampleCost, WorkerSpeeds


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def is_large(batch: Any) -> int:
    return int(batch[0].abs().max() > 1.8)


def epochs() -> lc.Task:
    """A dataset in epochs, whose batches are known by ticket number and not by seed."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 2))).float()
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    return lc.Task(nn.Linear(2, 1), loss, data, batch_size=4, group_fn=is_large, groups=("usual", "large"), seed=3)


@pytest.mark.parametrize("policy", [None, "rennala"])
def test_the_batches_of_a_task_decide_how_long_jobs_take(policy: str | None) -> None:
    task = epochs()
    options = {} if policy is None else {"policy": lc.policy.POLICIES[policy](3)}
    trace = SampleCost(4, cost=(1.0, 9.0), task=task).trace(steps=1300, seed=1, **options)  # more than a block of jobs
    for ticket, sample, group in zip(trace.ticket.tolist(), trace.sample.tolist(), trace.group.tolist(), strict=True):
        assert group == is_large(task.batch_of(ticket, sample, 0))
    assert {0, 1} == set(trace.group.tolist())
    np.testing.assert_allclose(trace.end - trace.start, np.where(trace.group == 1, 9.0, 1.0))
    run = lc.simulate(task, "async-sgd" if policy is None else policy, trace, lr=0.05, **options)
    assert (run.trace.group == trace.group).all()


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
