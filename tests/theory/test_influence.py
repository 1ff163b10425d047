"""The influence that methods declare, against what gradients really do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import latecomer as lc
from latecomer.optim import METHODS
from latecomer.theory.influence import influence, influence_by_group

OPTIONS: dict[str, dict[str, Any]] = {
    "async-sgd": {},
    "delay-adaptive": {},
    "delay-filtered": {"threshold": 8},
    "momentum": {"beta": 0.1},
    "mu2": {"beta": 0.1, "gamma": 0.1},
    "ordered-momentum": {"beta": 0.1},
    "catch-up": {"beta": 0.1},
    "ordered-mu2": {"beta": 0.1, "gamma": 0.1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_declared_influence_is_what_one_hot_gradients_read_off(name: str) -> None:
    """Declared influence over a trace, against the parameters after a run in which arrival t carries e_t."""
    trace = lc.delays.DataDependent(workers=4, slow_share=0.2).trace(steps=60, seed=1)
    options = {**OPTIONS[name], "lr": 1.0}
    x = torch.nn.Parameter(torch.zeros(60, dtype=torch.float64))
    server = lc.Server(METHODS[name]([x], **options), workers=4, groups=trace.header.groups)
    out = {w: server.issue(w) for w in range(4)}
    for t, (worker, group) in enumerate(zip(trace.worker.tolist(), trace.group.tolist(), strict=True)):
        hot = torch.zeros(60, dtype=torch.float64)
        hot[t] = 1.0
        before = [hot] if server.optimizer.points == 2 else None
        server.receive(out[worker], server.optimizer.contribution([hot], before, out[worker].version), group=group)
        out[worker] = server.issue(worker)
    recorded = server.trace()
    for _ in range(400):  # until everything has had its influence
        server.receive(out[0], torch.zeros(60, dtype=torch.float64))
        out[0] = server.issue(0)
    weight = influence(recorded, name, options)
    np.testing.assert_allclose(-x.detach().numpy(), weight, atol=1e-12)
    by_group = influence_by_group(recorded, name, options)
    for group in (0, 1):
        assert by_group[group] == pytest.approx(weight[recorded.group == group].mean())
