"""Memory of the points in flight."""

from __future__ import annotations

import torch

import latecomer as lc
from latecomer.simulation.simulate import Simulation


def test_a_checkpoint_has_the_point_of_a_version_once() -> None:
    """All workers start from the first version; after a resume they share it again, to the same bits."""
    trace = lc.delays.DataDependent(workers=300, slow_share=0.1).trace(steps=40, seed=0)
    whole = lc.simulate(lc.problems.quadratic(), "momentum", trace, lr=0.01)
    going = Simulation(lc.problems.quadratic(), "momentum", trace, {"lr": 0.01})
    for _ in range(20):
        going.advance()
    saved = going.state_dict()["state"]["server"]["slots"]
    assert len(saved["tickets"]) == 299
    assert len(saved["points"]) == len({ticket.version for ticket in going.server.in_flight})
    resumed = Simulation(lc.problems.quadratic(), "momentum", trace, {"lr": 0.01})
    resumed.load_state_dict(going.state_dict())
    assert len(resumed.server.state_dict()["slots"]["points"]) == len(saved["points"])
    while not resumed.over:
        resumed.advance()
    assert torch.equal(resumed.state.flat.state_dict()["x"], whole.state["x"])
