"""Fixtures: one Ray for all tests that need some, gone in the end; methods that are registered for one test only."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from latecomer.optim import methods
from processes import children, descendants, ended

# Not to be imported to look for examples: a user's file would register its methods, and a device can be made only once.
collect_ignore = ["own_rules.py", "fake_device.py"]
ROOT = Path(__file__).parents[1]
LOOPBACK = "127.0.0.1"
# A node that is gone is missed after five seconds, a head after two; who is only slow has as long as ever to answer.
IMPATIENT = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "2",
    "RAY_worker_niceness": "0",  # by default its workers yield to everything else that runs, such as other tests
}


@contextmanager
def head(cpus: int) -> Iterator[Any]:
    """Start the head of a cluster that others can join, and end it and all that have."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, "node_ip_address": LOOPBACK})
    helpers = children(cluster.head_node.all_processes["raylet"][0].process.pid)
    try:
        yield cluster
    finally:
        if ray.is_initialized() and ray.get_runtime_context().gcs_address == cluster.address:
            ray.shutdown()
        cluster.shutdown()
        left = rays(helpers)  # of a head that was killed: they would look for it for another minute
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert ended(left)


@pytest.fixture(scope="session")
def ray_settings() -> Iterator[None]:
    """Have Ray listen on loopback, ask for a token, and find the tests' modules; nothing of it is left."""
    import ray
    from ray._private.authentication.authentication_token_setup import _enable_token_auth

    from latecomer.engines.ray.cluster import _private_cluster

    before = descendants()
    folders = [str(ROOT / name) for name in ("src", "tests", "examples")]
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch, _private_cluster(ray):
        for variable, value in {**IMPATIENT, "PYTHONPATH": path}.items():
            patch.setenv(variable, value)
        _enable_token_auth()
        yield
    assert ended(rays(descendants() - before))


def rays(pids: set[int]) -> set[int]:
    """Return those processes that are Ray's."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:3]
            if words[0].startswith("ray::") or any("/ray/" in word for word in words if word.startswith("/")):
                found.add(pid)
    return found


@pytest.fixture(scope="session")
def ray_cluster(ray_settings: None) -> Iterator[Any]:
    """A cluster to which this process is connected."""
    import ray

    with head(cpus=4) as cluster:
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
        children = rays(descendants())
    assert len(children) > 2
    assert ended(children)


@pytest.fixture
def second_head(ray_settings: None) -> Any:
    """Something that starts the head of a cluster to which this process is not connected."""
    return head


@pytest.fixture
def registry() -> Iterator[dict[str, Any]]:
    """The registered methods, which a test may add to: afterwards they, and what was imported, are as before."""
    known, path = dict(methods._METHODS), list(sys.path)
    try:
        yield methods._METHODS
    finally:
        methods._METHODS.clear()
        methods._METHODS.update(known)
        methods._SENT.clear()
        added = set(sys.path) - set(path)
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(Path(getattr(module, "__file__", None) or "").parent) in added:
                del sys.modules[name]


@pytest.fixture
def own_rules(tmp_path: Path, registry: dict[str, Any]) -> Path:
    """A file that registers two methods, halved and fresh-halved."""
    return Path(shutil.copy(ROOT / "tests" / "own_rules.py", tmp_path / "rules.py"))
