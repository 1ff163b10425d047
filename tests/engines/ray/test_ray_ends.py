"""Servers and heads that die: nothing of Ray is left, no stranger was admitted, and the run resumes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import latecomer as lc
from engine_tasks import regression
from latecomer.engines.ray import RayEngine
from latecomer.training import replay
from processes import ended

ROOT = Path(__file__).parents[3]
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
TIMEOUT = 120
pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
OPTIONS: dict[str, Any] = {
    "method": "catch-up", "lr": 0.02, "workers": 2, "steps": 40, "checkpoint_every": 20, "evaluate_every": 40,
}  # fmt: skip


class See(lc.training.Callback):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        self.seen.append(outcome.arrival)


SCRIPT = """
import json, os, sys
import latecomer as lc
from engine_tasks import KillServer, regression
from latecomer.engines.ray import RayEngine

class Tell(lc.training.Callback):
    def arrived(self, run, ticket, outcome, loss):
        if outcome.arrival == 27:
            from processes import descendants, listening
            from ray._raylet import AuthenticationMode, get_authentication_mode

            pids = descendants()
            listens = listening(pids | {os.getpid()})
            token = get_authentication_mode() == AuthenticationMode.TOKEN
            words = {"pids": list(pids), "listens": list(listens), "token": token}
            print(json.dumps(words), flush=True)

class Hold(lc.training.Callback):
    def arrived(self, run, ticket, outcome, loss):
        if outcome.arrival == 27:
            print("here", flush=True)
            sys.stdin.readline()  # for ever

if __name__ == "__main__":
    checkpoint, address, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    callbacks = [Hold()] if address else [Tell(), KillServer(27)]
    lc.fit(regression(), checkpoint=checkpoint, engine=RayEngine(address or None), callbacks=callbacks, **options)
"""


def start(folder: Path, address: str = "") -> subprocess.Popen[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join(str(ROOT / part) for part in ("src", "tests"))
    with (folder / "said").open("w") as said:
        return subprocess.Popen(
            [sys.executable, str(script), str(folder / "ckpt"), address, json.dumps(OPTIONS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip


def goes_on(folder: Path, engine: Any) -> None:
    see = See()
    result = lc.fit(
        regression(), checkpoint=folder / "ckpt", record=folder / "run.parquet", callbacks=[see], engine=engine,
        **OPTIONS,
    )  # fmt: skip
    assert see.seen[0] == 28
    assert result.server.arrivals == 40
    assert replay(folder / "run.parquet", regression()).difference == 0.0


def test_a_killed_server_admitted_no_stranger_and_leaves_nothing(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        try:
            out, _ = server.communicate(timeout=TIMEOUT)
        finally:
            server.kill()
    assert server.returncode == -9, (tmp_path / "said").read_text()
    words = json.loads(out)
    assert len(words["pids"]) > 4
    assert ended(set(words["pids"]))
    assert words["token"] is True
    assert len(words["listens"]) >= 1
    assert set(words["listens"]) <= LOOPBACK
    goes_on(tmp_path, "local")  # a checkpoint does not know who computed it


def test_a_head_that_is_killed_takes_the_server_along_and_the_run_goes_on_with_the_next(
    ray_cluster: Any, second_head: Any, tmp_path: Path
) -> None:
    with second_head(cpus=3) as cluster, start(tmp_path, cluster.address) as server:
        try:
            assert server.stdout is not None
            assert select.select([server.stdout], [], [], TIMEOUT)[0]
            assert server.stdout.readline() == "here\n"
            cluster.remove_node(cluster.head_node, allow_graceful=False)
            assert server.wait(TIMEOUT) == 1
        finally:
            server.kill()
    assert "GCS may have been killed" in (tmp_path / "said").read_text()
    goes_on(tmp_path, RayEngine(ray_cluster.address))


STRANGER = """
import sys
import ray

try:
    ray.init(sys.argv[1], log_to_driver=False)
except ConnectionError as error:
    print("refused:", error)
else:
    print("let in")
"""


def test_nobody_is_let_in_without_the_token(ray_cluster: Any, tmp_path: Path) -> None:
    """Ray asks again for a while, 20 times unless told otherwise, and then gives up."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    env = {**known, "HOME": str(tmp_path), "RAY_NUM_REDIS_GET_RETRIES": "2"}
    for own in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        words = [sys.executable, "-c", STRANGER, ray_cluster.address]
        run = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, env={**env, **own})
        assert run.stdout.startswith("refused: "), run.stdout + run.stderr
        assert "InvalidAuthToken" in run.stderr
