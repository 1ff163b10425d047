"""The same contract on Ray, whichever way the tensors go; a node that is killed, one that joins, and sweeps."""

from __future__ import annotations

import importlib
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import latecomer as lc
from engine_tasks import regression
from fake_device import CopyLog
from latecomer.engines.ray import RayEngine
from latecomer.testing import CHECKS, Normed, check_engine
from latecomer.training import replay
from ray_marks import ON_RAY

pytestmark = ON_RAY
WAYS: dict[str, dict[str, Any]] = {
    "zeromq": {"shared": False},
    "object-store": {"data_plane": "object-store"},
}
TIMEOUT = 180.0  # seconds; every process of Ray's imports torch anew
# What depends on the way of the tensors; how processes start and end is the same on all ways.
TENSORS = ["bits", "nan", "raising", "evaluating", "crashing", "averages", "order"]


def test_the_contract(ray_cluster: Any) -> None:
    assert len(check_engine(partial(RayEngine, ray_cluster.address), timeout=TIMEOUT)) == len(CHECKS)


@pytest.mark.parametrize("way", WAYS)
def test_the_contract_on_another_way(way: str, ray_cluster: Any) -> None:
    """With LATECOMER_ALL_WAYS=1 all of it: the full contract kills a dozen processes, which take seconds to start."""
    only = CHECKS if os.environ.get("LATECOMER_ALL_WAYS") else TENSORS
    check_engine(partial(RayEngine, ray_cluster.address, **WAYS[way]), only=only, timeout=TIMEOUT)


def test_the_contract_on_the_stand_in_accelerator(ray_cluster: Any) -> None:
    """Where workers have their own memory, so that every point and contribution crosses twice."""
    make = partial(RayEngine, ray_cluster.address, **WAYS["zeromq"])
    only = [*TENSORS, "run"]
    check_engine(make, only=only, timeout=TIMEOUT, device="fake:1", carry=CopyLog(os.devnull))


@pytest.mark.parametrize("way", WAYS)
def test_a_run_in_bfloat16_replays_to_the_bit(way: str, ray_cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    engine = RayEngine(ray_cluster.address, bf16=True, **WAYS[way])
    lc.fit(Normed(), method="ordered-mu2", lr=0.01, workers=2, engine=engine, steps=30, record=path)
    assert replay(path, Normed()).difference == 0.0


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_knows_what_was_registered(way: str, ray_cluster: Any, registry: dict[str, Any]) -> None:
    class Mine(lc.optim.Momentum):
        pass

    def evaluate(model: Any) -> dict[str, float]:
        return {"known": lc.optim.METHODS["mine"].influence(3), "length": float(len(lc.optim.METHODS))}

    lc.optim.register("mine", Mine, influence=lambda delay: 1.0 + delay)
    engine = RayEngine(ray_cluster.address, **WAYS[way])
    final = lc.fit(regression(evaluate=evaluate), lr=0.01, workers=1, engine=engine, steps=4).final
    assert (final["known"], final["length"]) == (4.0, len(lc.optim.METHODS))


class Nodes(lc.training.Callback):
    """Kills a node once all work, and has another one join when its workers are missed; ends when all work again."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self.cluster, self.doomed, self.new = cluster, node, None
        self.came, self.back = set[int](), set[int]()
        self.until = time.monotonic() + TIMEOUT

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        self.came.add(ticket.worker)
        if time.monotonic() > self.until:
            run.stop()
        elif self.doomed is not None:
            if len(self.came) == 3:
                self.cluster.remove_node(self.doomed, allow_graceful=False)
                self.doomed = None
        elif self.new is not None:
            self.back.add(ticket.worker)
            if len(self.back) == 3:
                run.stop()
        elif run.deaths >= 2:  # both of its workers; where there is much to do, somebody else may have been missed too
            self.new = self.cluster.add_node(num_cpus=2, node_ip_address="127.0.0.1", resources={"seat": 2})


def test_a_node_is_killed_and_another_joins_and_the_run_replays(ray_cluster: Any, tmp_path: Path) -> None:
    problem, record = lc.problems.quadratic(), tmp_path / "run.parquet"
    problem.evaluates = False  # type: ignore[attr-defined]
    first = ray_cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", resources={"seat": 1})
    nodes = Nodes(ray_cluster, ray_cluster.add_node(num_cpus=2, node_ip_address="127.0.0.1", resources={"seat": 2}))
    try:
        result = lc.fit(
            problem, method="ordered-momentum", lr=0.01, workers=3, min_workers=3, steps=1_000_000, record=record,
            engine=RayEngine(ray_cluster.address, shared=False, resources={"seat": 1}), callbacks=[nodes],
        )  # fmt: skip
    finally:
        for node in (first, nodes.doomed, nodes.new):
            if node is not None:
                ray_cluster.remove_node(node)
    assert result.deaths >= 2  # of three workers two were on the node
    assert nodes.back == {0, 1, 2}
    assert len(set(result.trace.ticket.tolist())) == len(result.trace) == result.server.arrivals
    assert replay(record, problem).difference == 0.0


def test_a_sweep_on_ray_keeps_and_resumes(ray_cluster: Any, tmp_path: Path) -> None:
    from latecomer.experiments import Store, Sweep, run_sweep
    from latecomer.experiments.spec import Grid

    grid = Grid("momentum", {"lr": [0.1, 0.2]})
    sweep = Sweep("s", "quadratic", "uniform", 10, (0, 1), (grid,), delay_options={"workers": 2})
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    for done in run_sweep(sweep, there, 2, engine="ray"):
        assert done.key in there
        break  # as if it had been stopped
    assert 1 <= len(list(run_sweep(sweep, there, 2, engine="ray"))) <= 3
    assert list(run_sweep(sweep, there, 2, engine="ray")) == []
    list(run_sweep(sweep, here, 1))
    for run in sweep.runs():
        assert here.history(run.key).equals(there.history(run.key))


def test_the_command_sweeps_on_ray(ray_cluster: Any, tmp_path: Path) -> None:
    from rich.console import Console

    from latecomer.cli.sweep import SweepCommand
    from latecomer.experiments import Store, Sweep
    from latecomer.experiments.spec import Grid

    grid = Grid("momentum", {"lr": [0.1, 0.2]})
    sweep = Sweep("s", "quadratic", "uniform", 10, (0,), (grid,), delay_options={"workers": 2})
    spec, store, said = tmp_path / "sweep.toml", tmp_path / "runs", []
    spec.write_text(sweep.to_toml())
    command = SweepCommand(str(spec), store=store, engine="ray", address=ray_cluster.address)
    for _ in range(2):
        console = Console(record=True, quiet=False, file=(tmp_path / "out").open("w"), width=200)
        command.run(console)
        console.file.close()
        said.append(console.export_text())
    assert "2 runs, 0 are in" in said[0]
    assert "2 runs, 2 are in" in said[1]
    assert all(run.key in Store(store) for run in sweep.runs())


def test_the_tutorials_script_runs_on_every_engine(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    example = importlib.import_module("own_model")
    for where in ({"engine": "inline"}, {"engine": "local"}, {"engine": "ray", "address": ray_cluster.address}):
        assert example.main(steps=40, **where).server.arrivals == 40
        assert "bit for bit" in capsys.readouterr().out


def test_missing_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"latecomer\[ray\]"):
        lc.fit(regression(), lr=0.1, engine="ray", steps=5)
