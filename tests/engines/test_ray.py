"""The same contract on Ray: faults, nodes that leave and join, replays to the bit, nobody else let in, nothing left."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import latecomer as lc
from engine_tasks import regression
from latecomer.engines.cluster import Cluster
from latecomer.engines.ray import RayEngine
from latecomer.testing import KillAt, Probe, check_engine
from latecomer.training import replay

ROOT = Path(__file__).parent.parent.parent
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
# Ray itself leaves sockets and files to the garbage collector.
pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One Ray for all tests that only need some."""
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), path or ""])
    cluster = Cluster(cpus=8)
    yield cluster.connect()
    children = descendants()
    cluster.close()
    if path is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = path
    assert ended(children)


def stat(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def descendants() -> set[int]:
    """Return the processes that this one has started, and those they have."""
    parents = {entry.name: stat(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found, new = set(), {str(os.getpid())}
    while new:
        new = {pid for pid, words in parents.items() if words and words[1] in new and words[0] != "Z"}
        found |= new
    return {int(pid) for pid in found}


def ended(pids: set[int]) -> bool:
    """Wait until processes have ended, without polling."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, _, _ = select.select([fd], [], [], 60)
        os.close(fd)
        if not ready:
            return False
    return True


def listening(pids: set[int]) -> set[str]:
    """Return the addresses on which processes listen, as the kernel writes them."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):  # closed meanwhile
                inodes.add(str(entry.readlink())[8:-1])  # socket:[4711]
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


def test_one_machine_listens_on_loopback_only_and_asks_for_a_token(ray: Any, tmp_path: Path) -> None:
    from ray._raylet import AuthenticationMode, get_authentication_mode

    addresses: set[str] = set()

    class Look(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            if outcome.arrival == 5:
                addresses.update(listening(descendants() | {os.getpid()}))

    path = tmp_path / "run.parquet"
    result = lc.fit(
        regression(), lr=0.05, workers=2, engine="ray", steps=20, record=path, callbacks=[Look()], evaluate_every=20
    )
    assert len(addresses) >= 1
    assert addresses <= LOOPBACK
    assert get_authentication_mode() == AuthenticationMode.TOKEN
    assert result.deaths == 0
    assert replay(path, regression()).difference == 0.0


def test_the_contract_over_the_network(ray: Any) -> None:
    def make() -> RayEngine:
        return RayEngine(shared=False)

    assert "a run with deaths replays to the same bits" in check_engine(make)


@pytest.mark.parametrize("options", [{}, {"shared": False, "bf16": True}, {"data_plane": "object-store"}])
def test_every_way_of_the_tensors_replays_with_a_kill(ray: Any, options: dict[str, Any], tmp_path: Path) -> None:
    path, problem = tmp_path / "run.parquet", Probe()
    engine = RayEngine(**options)
    result = lc.fit(
        problem, optimizer="ordered-mu2", lr=0.01, workers=2, engine=engine, steps=60, record=path,
        callbacks=[KillAt((1, 20))],
    )  # fmt: skip
    assert result.deaths == 1
    assert len(set(result.trace.ticket.tolist())) == 60
    assert replay(path, problem).difference == 0.0


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="Unknown data_plane"):
        RayEngine(data_plane="pigeon")
    with pytest.raises(ValueError, match="Invalid silence value"):
        RayEngine(silence=0)


def test_missing_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"latecomer\[ray\]"):
        lc.fit(regression(), lr=0.1, engine="ray", steps=5)


def test_a_sweep_on_ray_keeps_and_resumes(ray: Any, tmp_path: Path) -> None:
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


SCRIPT = """
import os, sys
import latecomer as lc
from engine_tasks import KillServer, regression

class Tell(lc.training.Callback):
    def arrived(self, run, ticket, outcome, loss):
        if outcome.arrival == 3:
            from test_ray import descendants
            print(*descendants(), flush=True)

if __name__ == "__main__":
    lc.fit(regression(), optimizer="catch-up", lr=0.02, workers=2, steps=40, checkpoint=sys.argv[1], engine="ray",
           checkpoint_every=20, callbacks=[Tell(), KillServer(27)])
"""


def test_a_server_that_is_killed_leaves_no_ray_and_goes_on_where_it_was(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join(str(ROOT / part) for part in ("src", "tests", "tests/engines"))
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "ckpt")],
        capture_output=True, text=True, timeout=380, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert run.returncode == -9, run.stderr
    pids = {int(word) for word in run.stdout.split()}
    assert len(pids) > 4
    assert ended(pids)
    seen = []

    class See(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            seen.append(outcome.arrival)

    result = lc.fit(
        regression(), optimizer="catch-up", lr=0.02, workers=2, steps=40, checkpoint=tmp_path / "ckpt",
        checkpoint_every=20, record=tmp_path / "run.parquet", callbacks=[See()],
    )  # fmt: skip  # on another engine: a checkpoint does not know who computed it
    assert seen[0] == 28
    assert result.server.arrivals == 40
    assert replay(tmp_path / "run.parquet", regression()).difference == 0.0
