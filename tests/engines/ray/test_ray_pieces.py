"""The pieces of the Ray engine without a cluster: what it kills, what it leaves, and its messages."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import latecomer as lc
from latecomer.engines import Died, Done, Evaluated, Failed, Job, Ready, WorkerSpec
from latecomer.engines import codec as f
from latecomer.engines.ray import cluster
from latecomer.engines.ray import engine as engine_module
from latecomer.engines.ray.cluster import Cluster, ending
from latecomer.engines.ray.credentials import create_slots
from latecomer.engines.ray.engine import RayEngine, _Poller, _RayWorker, _readable, _warn_if_short
from latecomer.engines.ray.hub import Hub
from latecomer.engines.ray.object_store import Objects, ObjectWorker
from latecomer.engines.ray.pool import on_ray
from latecomer.problems import Quadratic

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
SPEC = WorkerSpec(lc.problems.quadratic(), size=10, dtype=torch.float64)


# ---- processes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def seated() -> Iterator[RayEngine]:
    """An engine with a seat, whose worker the test is."""
    engine = RayEngine()
    engine._wake = os.pipe()
    for end in engine._wake:
        os.set_blocking(end, False)
    engine._block, made, block_ref = create_slots(SPEC, 1)
    engine._plane = Hub(SPEC, made, block_ref=block_ref)
    engine._poller = _Poller(engine._plane, engine._wake[0])
    engine._seats[0] = _RayWorker(1, lambda: None)
    yield engine
    engine._seats.clear()
    engine.close()


def say_ready(engine: RayEngine, pid: int) -> list[Any]:
    import zmq

    credentials, context = engine._plane.admit(0), zmq.Context()
    worker: Any = context.socket(zmq.DEALER)
    worker.identity, worker.linger, worker.curve_serverkey = credentials.public_key, 0, credentials.server_key
    worker.curve_publickey, worker.curve_secretkey = credentials.public_key, credentials.secret_key
    worker.connect(credentials.endpoint)
    worker.send(f.pack_head(f.head_of(Ready(0, pid), f.SHARED)))
    events = engine.events(60)
    context.destroy()
    return events


@pytest.mark.parametrize("who", ["a stranger", "the server", "another worker", "nobody", "a number too long"])
def test_no_process_is_killed_because_a_worker_reports_its_pid(seated: RayEngine, who: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        if who == "another worker":
            seated._seats[1] = _RayWorker(2, lambda: None, stranger.pid)
        pid = {"the server": os.getpid(), "nobody": 2**22 + 1, "a number too long": 2**64 - 1}.get(who, stranger.pid)
        (died,) = say_ready(seated, pid)
        assert isinstance(died, Died)
        words = {"nobody": "as soon as it was ready", "a number too long": "Not a valid process id"}
        assert words.get(who, "the pid of another process") in died.reason
        stranger.communicate(b"\n")
        assert stranger.returncode == 0


def test_a_process_that_sees_the_memory_is_watched_and_can_be_ended(seated: RayEngine) -> None:
    assert seated._block is not None
    code = "import mmap, sys; seen = mmap.mmap(int(sys.argv[1]), 100); print('in', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(seated._block.fd)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[seated._block.fd],
    ) as worker:  # fmt: skip
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"in\n"
        assert say_ready(seated, worker.pid) == [Ready(0, worker.pid)]
        engine_module._END_SECONDS, before = 0.0, engine_module._END_SECONDS
        try:
            seated.kill(0)
        finally:
            engine_module._END_SECONDS = before
        assert worker.wait(60) == -9
    assert seated.events(60) == [Died(0, "killed")]


def test_descriptors_may_have_any_number() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("this system has no room for so many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD, 1100)
    try:
        assert _readable([high], 0) == []
        os.write(writer, b"!")
        assert _readable([high], 60) == [high]
    finally:
        for fd in (reader, writer, high):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- the end -----------------------------------------------------------------------------------------------------


def test_everything_is_released_even_if_one_step_fails() -> None:
    engine, done = RayEngine(), list[str]()

    def fails(what: str) -> None:
        done.append(what)
        raise RuntimeError(what)

    engine._wake = os.pipe()
    ends = engine._wake
    engine._seats = {0: _RayWorker(1, lambda: None), 1: _RayWorker(2, lambda: None)}
    engine._plane = SimpleNamespace(
        release=lambda seat: fails("release"), dismiss=lambda seat: fails(f"dismiss {seat}"),
        close=lambda: fails("plane"),
    )  # fmt: skip
    engine._block = SimpleNamespace(close=lambda: fails("block"))  # type: ignore[assignment]
    engine._cluster = SimpleNamespace(close=lambda: fails("cluster"))  # type: ignore[assignment]
    with pytest.raises(RuntimeError):
        engine.close()
    assert done == ["release", "dismiss 1", "dismiss 0", "plane", "block", "cluster"]
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)
    engine.close()


def test_an_alarm_in_the_middle_of_closing_is_written_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, written, close = RayEngine(), list[int](), os.close
    engine._wake = os.pipe()

    def closing(fd: int) -> None:
        close(fd)
        engine._alarm()  # as Ray's threads do when a task has ended

    monkeypatch.setattr(engine_module.os, "close", closing)
    monkeypatch.setattr(engine_module.os, "write", lambda fd, data: written.append(fd))
    engine.close()
    assert written == []


# ---- the object store --------------------------------------------------------------------------------------------


class TooMany(Quadratic):
    def evaluate(self, model: Any) -> dict[str, float]:
        return {f"metric number {i}": 0.0 for i in range(2000)}


def test_an_answer_that_fits_into_no_head_is_a_failure() -> None:
    worker = ObjectWorker()
    threads = torch.get_num_threads()
    worker.start(0, WorkerSpec(TooMany(), size=10, dtype=torch.float64), f.NATIVE)
    torch.set_num_threads(threads)
    (answer,) = worker.compute(f.pack_head(f.head_of(Job(4, 0, evaluate=True), f.NATIVE, (80,))), bytes(80))
    event = f.event_of(0, f.unpack_head(answer, 80))
    assert isinstance(event, Failed)
    assert "fewer metrics" in event.reason


def test_a_group_that_the_problem_does_not_have_is_a_failure() -> None:
    head = f.Layout(SPEC).answer_head(Done(0, 4, True, group=SPEC.problem.groups), f.NATIVE)
    event = f.event_of(0, head)
    assert isinstance(event, Failed)
    assert "FrameError: Group" in event.reason


class Actor:
    """Answers every call with the same."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *_: SimpleNamespace(future=self._future))

    def _future(self) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(self.answer, BaseException):
            future.set_exception(self.answer)
        else:
            future.set_result(self.answer)
        return future


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (KeyError("x"), "x"),
        ([f.pack_head(f.head_of(Evaluated(0, 4, {})))], "An answer to ticket 4"),
        ([f.pack_head(f.head_of(Failed(0, 5, "no")))], "An answer to ticket 5"),
    ],
)
def test_a_call_that_fails_or_answers_something_else_breaks_its_worker(answer: Any, words: str) -> None:
    woken = list[int]()
    plane = Objects(None, SPEC, create_slots(SPEC, 1)[1], wake=lambda: woken.append(1))
    plane.start_worker(0, Actor((4711, "cpu")), SPEC)
    assert plane.receive() == [Ready(0, 4711)]
    plane._actors[0].answer = answer
    plane.send(0, Job(4, 0))
    assert len(woken) == 2
    assert plane.receive() == []
    assert words in plane.broken[0]


# ---- Ray's words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["WorkerCrashedError", "LocalRayletDiedError", "ActorDiedError"])
def test_lost_processes_are_distinguished_from_exceptions(name: str) -> None:
    exceptions = pytest.importorskip("ray").exceptions
    assert ending(getattr(exceptions, name)()).startswith("killed: ")
    assert ending(exceptions.OutOfMemoryError("no room")) == "killed: no room"
    assert ending(exceptions.RuntimeEnvSetupError("no such package")).startswith("Failed to set up runtime")
    raised = exceptions.RayTaskError("work", "traceback", KeyError("x"))
    assert ending(raised) == "raised: KeyError: 'x'"
    assert not ending(exceptions.ActorDiedError(raised)).startswith("killed")


def test_a_cluster_without_room_for_all_is_named_and_one_with_room_is_not() -> None:
    with pytest.warns(UserWarning, match="The cluster has 2 CPUs, and 3 workers need 3: "):
        _warn_if_short({"CPU": 2.0}, {"CPU": 3.0}, 3)
    with pytest.warns(UserWarning, match="The cluster has 0 of 'tpu', and 1 worker needs 2: "):
        _warn_if_short({"CPU": 2.0}, {"CPU": 1.0, "tpu": 2.0}, 1)
    with warnings.catch_warnings(action="error"):
        _warn_if_short({"CPU": 3.0, "tpu": 2.0}, {"CPU": 3.0, "tpu": 2.0}, 3)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"silence": 0}, ValueError, "Invalid silence value: 0 "),
        ({"silence": "x"}, TypeError, "Invalid silence value: 'x' "),
        ({"silence": None}, TypeError, "Invalid silence value: None "),
        ({"silence": float("nan")}, ValueError, "Invalid silence value: nan "),
        ({"silence": float("inf")}, ValueError, "Invalid silence value: inf "),
        ({"cpus": -1}, ValueError, "Invalid cpus value: -1 "),
        ({"cpus": float("nan")}, ValueError, "Invalid cpus value: nan "),
        ({"gpus": "two"}, TypeError, "Invalid gpus value: 'two' "),
        ({"resources": ["tpu"]}, TypeError, "Invalid resources value: "),
        ({"resources": {1: 1}}, TypeError, "Invalid resources value: "),
        ({"resources": {"tpu": 0}}, ValueError, "Invalid resources['tpu'] value: 0 "),
        ({"resources": {"CPU": 1}}, ValueError, "use cpus="),
        ({"bf16": 1}, TypeError, "Invalid bf16 value: 1 (expected True or False)"),
        ({"shared": "no"}, TypeError, "Invalid shared value: 'no' "),
        ({"address": ""}, ValueError, "Invalid address value: '' "),
        ({"address": 6379}, TypeError, "Invalid address value: 6379 "),
        ({"host": b"x"}, TypeError, "Invalid host value: b'x' "),
        ({"runtime_env": "."}, TypeError, "Invalid runtime_env value: '.' "),
        ({"data_plane": "pigeon"}, ValueError, "Unknown data_plane"),
    ],
)
def test_what_cannot_be_is_named(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        RayEngine(**options)
    assert words in str(caught.value)


# ---- coming to a cluster -----------------------------------------------------------------------------------------


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ray's module as if this process were not connected, and with nothing done to it."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster, "_reload_token", lambda ray: None)
    ray.downs = list[int]()
    monkeypatch.setattr(ray, "shutdown", lambda: ray.downs.append(1))
    yield ray
    del ray.downs


def refusing(error: Exception) -> Any:
    def init(*_: Any, **__: Any) -> None:
        raise error

    return init


def test_what_does_not_start_is_cleared_up(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    monkeypatch.setattr(unconnected, "init", refusing(ValueError("no such folder\nand a long story")))
    with pytest.raises(ValueError, match=r"^Ray did not start on this machine: no such folder$"):
        Cluster(runtime_env={"working_dir": "missing"}).connect()
    assert unconnected.downs == [1]
    assert dict(os.environ) == before


def test_a_new_ray_has_what_the_workers_need(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = dict[str, Any]()
    monkeypatch.setattr(unconnected, "init", lambda *_, **options: seen.update(options))
    monkeypatch.setattr(cluster, "_guard", contextlib.nullcontext)
    engine = RayEngine(cpus=0.5, gpus=0.6, resources={"tpu": 0.5})
    monkeypatch.setattr(engine_module.os, "pipe", refusing(KeyError("enough")))
    with pytest.raises(KeyError):
        engine.start(
            WorkerSpec(lc.problems.quadratic(), 10, torch.float64, evaluators=1, device="auto"), seats=4, slots=4
        )
    assert (seen["num_cpus"], seen["num_gpus"], seen["resources"]) == (2, 3, {"tpu": 2})  # 0.6 of one: no two on a GPU
    assert unconnected.downs == [1]  # and it is gone


def test_a_closed_port_and_a_refused_token_are_distinguished(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_found", lambda address: address)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        for error in (ConnectionError("no"), unconnected.exceptions.AuthenticationError("no")):
            monkeypatch.setattr(unconnected, "init", refusing(error))
            with pytest.raises(ValueError, match="refused the token: set RAY_AUTH_MODE=token"):
                Cluster(address).connect()
    with pytest.raises(ValueError, match=f"There is no Ray cluster at '{address}'"):
        Cluster(address).connect()
    assert unconnected.downs == [1, 1]


def test_addresses_and_environments_that_ray_does_not_know_are_named(unconnected: Any) -> None:
    with pytest.raises(ValueError, match=r"Invalid address value: 'somewhere' \(expected 'auto' or host:port\)"):
        Cluster("somewhere").connect()
    with pytest.raises(ValueError, match=r"Invalid runtime_env value: 'workingdir' \(expected .*working_dir"):
        Cluster("auto", runtime_env={"workingdir": "."}).connect()


def test_the_users_token_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unconnected: Any) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with cluster._private_cluster(unconnected):
        assert os.environ["RAY_AUTH_TOKEN"] == cluster._TOKEN
    assert "RAY_AUTH_TOKEN" not in os.environ
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 64)
    with cluster._private_cluster(unconnected):
        assert "RAY_AUTH_TOKEN" not in os.environ
    monkeypatch.setenv("RAY_AUTH_TOKEN", "b" * 64)
    with cluster._private_cluster(unconnected):
        assert os.environ["RAY_AUTH_TOKEN"] == "b" * 64


def test_a_task_whose_process_is_killed_raises_one_sentence(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unconnected, "is_initialized", lambda: True)
    monkeypatch.setattr(unconnected, "remote", lambda **_: lambda function: SimpleNamespace(remote=lambda *_: 1))
    monkeypatch.setattr(unconnected, "wait", lambda refs: (refs, []))
    monkeypatch.setattr(unconnected, "get", refusing(unconnected.exceptions.WorkerCrashedError()))
    with pytest.raises(ValueError, match=r"^Ray could not finish a task \(killed: The worker died unexpectedly"):
        list(on_ray(divmod, [(1, 2)], processes=1))
