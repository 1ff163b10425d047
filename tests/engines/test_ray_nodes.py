"""Two nodes on one machine: one is killed in the middle of training, another one joins, and the run replays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import latecomer as lc
from latecomer.engines.ray import RayEngine
from latecomer.training import replay

ROOT = Path(__file__).parent.parent.parent
pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Nodes(lc.training.Callback):
    """Kills a node at one arrival, and has another one join at a later one."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self.cluster, self.node = cluster, node
        self.back: set[int] | None = None

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == 20:
            self.cluster.remove_node(self.node, allow_graceful=False)
        elif self.back is None and run.deaths >= 2:  # both of its workers
            self.cluster.add_node(num_cpus=2, node_ip_address="127.0.0.1")
            self.back = set()
        elif self.back is not None:
            self.back.add(ticket.worker)
            if len(self.back) == 3:
                run.stop()


def test_a_node_is_killed_and_another_joins_and_the_run_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from ray._private.authentication.authentication_token_setup import _enable_token_auth
    from ray.cluster_utils import Cluster

    from latecomer.engines.cluster import _for_us_alone

    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    problem, record = lc.problems.quadratic(), tmp_path / "run.parquet"
    problem.evaluates = False  # type: ignore[attr-defined]
    with _for_us_alone(ray):
        _enable_token_auth()
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": "127.0.0.1"})
        try:
            node = cluster.add_node(num_cpus=2, node_ip_address="127.0.0.1")
            ray.init(address=cluster.address, log_to_driver=False)
            nodes = Nodes(cluster, node)
            result = lc.fit(
                problem, optimizer="ordered-momentum", lr=0.01, workers=3, min_workers=3, steps=1_000_000,
                engine=RayEngine(shared=False), record=record, callbacks=[nodes],
            )  # fmt: skip
        finally:
            ray.shutdown()
            cluster.shutdown()
    assert result.deaths >= 2  # of three workers two were on the node, and Ray may have sent another one there
    assert nodes.back == {0, 1, 2}
    assert len(set(result.trace.ticket.tolist())) == len(result.trace) == result.server.arrivals
    assert replay(record, problem).difference == 0.0
