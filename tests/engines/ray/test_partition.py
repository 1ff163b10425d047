"""A cable is cut: two network namespaces, one wire between them, and a worker that comes back with an old ticket."""

from __future__ import annotations

import os
import pickle
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine_tasks import Gate
from latecomer.engines import Job, Ready, WorkerSpec
from latecomer.engines.memory import own_slot
from latecomer.engines.ray.hub import Hub

ROOT = Path(__file__).parents[3]
HERE, THERE = "198.51.100.1", "198.51.100.2"  # an address range for examples
WORK = """
import os, pickle, sys
os.write(1, b"u")
size = int.from_bytes(os.read(0, 8), "little")
data = b""
while len(data) < size:
    data += os.read(0, size - len(data))
from latecomer.engines.ray.link import serve
serve(*pickle.loads(data))
"""
TIMEOUT = 60  # seconds that anything here may take


def ip(*words: str, inside: int | None = None) -> None:
    where = [] if inside is None else ["nsenter", "-t", str(inside), "-n"]
    subprocess.run([*where, "ip", *words], check=True, capture_output=True, timeout=TIMEOUT)


def hear(process: subprocess.Popen[bytes], word: bytes) -> bool:
    """Wait until a process says this; False if it ends, or says nothing for too long."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], TIMEOUT)
    return bool(ready) and os.read(process.stdout.fileno(), 1) == word


@pytest.fixture
def there() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a network of its own, which a wire leads to; the network ends with it."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("network namespaces need root, and ip, unshare and nsenter")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    process = subprocess.Popen(
        ["unshare", "--net", "--", sys.executable, "-c", WORK],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path}, bufsize=0,
    )  # fmt: skip
    try:
        if not hear(process, b"u"):
            pytest.skip("network namespaces are not allowed here")
        name = f"lc{process.pid}"
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
        process.wait(TIMEOUT)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.timeout(5 * TIMEOUT)
def test_a_cut_cable_is_noticed_and_what_comes_back_is_not_heard(there: subprocess.Popen[bytes]) -> None:
    spec = WorkerSpec(Gate(), size=10, dtype=torch.float64)
    slot = own_slot(spec)
    hub = Hub(spec, [slot], host=HERE, silence=3.0)
    try:
        assert there.stdin is not None
        work = pickle.dumps((hub.admit(0), spec))
        there.stdin.write(len(work).to_bytes(8, "little") + work)
        assert [type(event) for event in hub.wait(TIMEOUT)] == [Ready]
        hub.send(0, Job(number=4, slot=0))
        assert hear(there, b"j")  # it has the job
        ip("link", "set", "wire", "down", inside=there.pid)
        waits = 0
        while not hub.silent():  # it returns when there is something to read, and there is nothing
            assert hub.wait(1.0) == []
            waits += 1
            assert waits < TIMEOUT
        assert hub.silent() == [0]
        hub.dismiss(0)
        ip("link", "set", "wire", "up", inside=there.pid)
        slot.gradient.fill_(3.0)
        there.stdin.close()  # it has the job's result now, and a wire
        there.wait(TIMEOUT)  # it ends by itself, with the connection
        assert hub.receive() == []
        assert (slot.gradient == 3.0).all()
    finally:
        hub.close()
