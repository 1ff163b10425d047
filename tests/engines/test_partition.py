"""A cable is cut: two network namespaces, one wire between them, and a worker that comes back with an old ticket."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from latecomer.engines import Job, Ready, WorkerSpec
from latecomer.engines.badge import own_slot
from latecomer.engines.zeromq import Hub
from latecomer.problems import Quadratic

ROOT = Path(__file__).parent.parent.parent
HERE, THERE = "198.51.100.1", "198.51.100.2"  # an address range for examples
WORK = "import pickle, sys; from latecomer.engines.link import serve; serve(*pickle.load(sys.stdin.buffer))"


class Gate(Quadratic):
    """A quadratic whose batches wait until somebody writes into a pipe."""

    def __init__(self, pipe: Path) -> None:
        super().__init__()
        self.pipe = str(pipe)

    def batch_of(self, number: int, sample: int, group: int) -> Any:
        Path(self.pipe).read_bytes()
        return self.batch(sample, group)


def ip(*words: str, inside: int | None = None) -> None:
    where = [] if inside is None else ["nsenter", "-t", str(inside), "-n"]
    subprocess.run([*where, "ip", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a network of its own, which a wire leads to; the network ends with it."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("network namespaces need root, and ip, unshare and nsenter")
    path = os.pathsep.join([str(ROOT / "src"), str(Path(__file__).parent)])
    command = ["unshare", "--net", "--", sys.executable, "-c", WORK]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    name = f"lc{os.getpid() % 100000}"
    try:
        own = Path("/proc/self/ns/net").readlink()
        until = time.monotonic() + 60
        while Path(f"/proc/{process.pid}/ns/net").readlink() == own:  # until unshare has done its work
            if process.poll() is not None or time.monotonic() > until:
                pytest.skip("network namespaces are not allowed here")
        try:
            ip("link", "add", name, "type", "veth", "peer", "name", "wire", "netns", str(process.pid))
            ip("addr", "add", f"{HERE}/30", "dev", name)
            ip("link", "set", name, "up")
            ip("addr", "add", f"{THERE}/30", "dev", "wire", inside=process.pid)
            ip("link", "set", "wire", "up", inside=process.pid)
        except subprocess.CalledProcessError:
            pytest.skip("virtual wires are not allowed here")
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_cut_cable_is_noticed_and_what_comes_back_is_not_heard(
    there: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    pipe = tmp_path / "gate"
    os.mkfifo(pipe)
    spec = WorkerSpec(Gate(pipe), size=10, dtype=torch.float64)
    slot = own_slot(spec)
    hub = Hub(spec, [slot], host=HERE, silence=3.0)
    try:
        assert there.stdin is not None
        there.stdin.write(pickle.dumps((hub.admit(0), spec)))
        there.stdin.close()
        assert [type(event) for event in hub.wait(300)] == [Ready]
        hub.send(0, Job(number=4, slot=0))
        gate = pipe.open("wb")  # waits until the worker reads: it has the job
        ip("link", "set", "wire", "down", inside=there.pid)
        until = time.monotonic() + 60
        while not hub.silent():
            assert time.monotonic() < until
            assert hub.wait(0.1) == []
        assert hub.silent() == [0]
        hub.dismiss(0)
        ip("link", "set", "wire", "up", inside=there.pid)
        slot.gradient.fill_(3.0)
        gate.close()  # it has the job's result now, and a wire
        there.wait(120)  # it ends by itself, with the connection
        assert hub.receive() == []
        assert (slot.gradient == 3.0).all()
    finally:
        hub.close()
