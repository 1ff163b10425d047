"""The network without Ray: known keys only, nothing believed unchecked, nothing of a dead worker in a slot."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import zmq
from zmq.utils.monitor import recv_monitor_message

import latecomer as lc
from engine_tasks import regression
from latecomer.core.flat import FlatModule
from latecomer.core.gradient import Contributor
from latecomer.engines import Done, Evaluated, Failed, Job, Ready, WorkerSpec
from latecomer.engines import codec as f
from latecomer.engines.memory import own_slot
from latecomer.engines.ray.credentials import WorkerCredentials, attach_slots, create_slots
from latecomer.engines.ray.hub import Hub
from latecomer.engines.ray.link import LinkError, LostError, _Link, serve
from latecomer.problems import Quadratic
from latecomer.testing import RAISES, Probe

SPEC = WorkerSpec(Probe(), size=10, dtype=torch.float64, points=2)


@contextmanager
def hub_of(spec: WorkerSpec = SPEC, **options: Any) -> Iterator[Hub]:
    slots = options.pop("slots", None) or [own_slot(spec)]
    hub = Hub(spec, slots, **options)
    hub.slots = slots  # type: ignore[attr-defined]
    try:
        yield hub
    finally:
        hub.close()


@contextmanager
def working(hub: Hub, spec: WorkerSpec = SPEC, **changes: Any) -> Iterator[WorkerCredentials]:
    credentials = replace(hub.admit(0), **changes)
    thread = threading.Thread(target=serve, args=(credentials, spec))
    thread.start()
    assert [type(event) for event in hub.wait()] == [Ready]
    yield credentials
    assert hub.leaving([0])
    hub.release(0)
    thread.join()
    hub.dismiss(0)
    assert not hub.leaving([0])


def expected(spec: WorkerSpec, slot: Any, job: Job) -> torch.Tensor:
    out = torch.empty(spec.size, dtype=spec.dtype)
    contribute = Contributor(spec.problem, FlatModule(spec.problem.model(0)), spec.points, spec.bf16)
    group = spec.problem.group_of(job.number, job.sample)
    contribute(slot.points, out, job.number, job.sample, group, job.version, job.here, job.before)
    return out


JOB = Job(number=7, slot=0, sample=2**63 + 7, version=3, here=1.0, before=-0.9)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_gradient_has_the_same_bits_whichever_way_it_came(bf16: bool, shared: bool) -> None:
    spec = replace(SPEC, bf16=bf16)
    block, slots, block_ref = create_slots(spec, 1)
    if block_ref is None and shared:
        pytest.skip("this system has no way into another process's memory")
    with hub_of(spec, slots=slots, bf16=bf16, block_ref=block_ref if shared else None) as hub, working(hub, spec):
        assert hub.shares(0) == shared
        slots[0].points[0].copy_(torch.randn(10, dtype=torch.float64))
        slots[0].points[1].copy_(torch.randn(10, dtype=torch.float64))
        hub.send(0, JOB)
        (done,) = hub.wait()
        assert isinstance(done, Done)
        assert (done.number, done.finite) == (7, True)
        assert torch.equal(slots[0].gradient, expected(spec, slots[0], JOB))
    block.close()


@pytest.mark.parametrize("bf16", [False, True])
def test_the_longest_message_of_a_run_is_not_too_long(bf16: bool) -> None:
    problem = lc.problems.quadratic(dimensions=50_000)
    spec = WorkerSpec(problem, size=50_000, dtype=torch.float64, bf16=bf16)
    with hub_of(spec, bf16=bf16) as hub, working(hub, spec):
        hub.slots[0].points[0].fill_(2.0)  # type: ignore[attr-defined]
        for number in range(3):
            hub.send(0, Job(number=number, slot=0))
            assert [type(event) for event in hub.wait()] == [Done]
        hub.send(0, Job(number=9, slot=0, evaluate=True))
        assert [type(event) for event in hub.wait()] == [Evaluated]


def test_failures_evaluations_and_statistics() -> None:
    task = regression()
    flat = FlatModule(task.model(0))
    spec = WorkerSpec(task, flat.x.numel(), flat.x.dtype, statistics=17)
    with hub_of(spec) as hub, working(hub, spec):
        slot = hub.slots[0]  # type: ignore[attr-defined]
        slot.points[0].copy_(flat.x.detach())
        slot.statistics.fill_(1.0)
        hub.send(0, Job(number=1, slot=0, sample=5))
        assert isinstance(hub.wait()[0], Done)
        assert not torch.equal(slot.statistics, torch.ones(17, dtype=torch.float64))
        hub.send(0, Job(number=2, slot=0, evaluate=True))
        assert isinstance(hub.wait()[0], Evaluated)
    with hub_of() as hub, working(hub):
        hub.send(0, replace(JOB, number=RAISES))
        (failed,) = hub.wait()
        assert isinstance(failed, Failed)
        assert failed.reason == "KeyError: 'probe'"
        hub.send(0, JOB)
        assert isinstance(hub.wait()[0], Done)


def client(
    credentials: WorkerCredentials, identity: bytes | None = None, curve: bool = True, connect: bool = True
) -> tuple[Any, Any]:
    context = zmq.Context()
    socket: Any = context.socket(zmq.DEALER)
    socket.identity, socket.linger = identity or credentials.public_key, 0
    if curve:
        socket.curve_serverkey = credentials.server_key
        socket.curve_publickey, socket.curve_secretkey = credentials.public_key, credentials.secret_key
    if connect:
        socket.connect(credentials.endpoint)
    return context, socket


@pytest.mark.parametrize("how", ["own keys", "no keys", "dismissed"])
def test_strangers_are_not_let_in(how: str) -> None:
    with hub_of() as hub:
        credentials = hub.admit(0)
        if how == "own keys":
            public, secret = zmq.curve_keypair()
            credentials = replace(credentials, public_key=public, secret_key=secret)
        elif how == "dismissed":
            hub.dismiss(0)
        context, socket = client(credentials, curve=how != "no keys", connect=False)
        monitor = socket.get_monitor_socket(zmq.EVENT_ALL)  # before anything can happen
        socket.connect(credentials.endpoint)
        with contextlib.suppress(zmq.Again):  # the receiver may be gone
            socket.send_multipart([f.pack_head(f.head_of(Ready(0, 1), f.NATIVE))], zmq.DONTWAIT)
        ends = {zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_DISCONNECTED}
        until = time.monotonic() + 30
        while not (monitor.poll(1000) and recv_monitor_message(monitor)["event"] in ends):
            assert time.monotonic() < until
        assert hub.receive() == []
        assert hub.broken == {}
        socket.disable_monitor()
        context.destroy()


def test_a_worker_whose_keys_are_not_known_gives_up() -> None:
    with hub_of() as hub:
        credentials = hub.admit(0)
        hub.dismiss(0)
        with pytest.raises(LinkError, match=r"refused this worker|no connection"):
            serve(credentials, SPEC)


READY = f.pack_head(f.head_of(Ready(0, 1), f.NATIVE))
DONE = f.head_of(Done(0, 7, True), f.NATIVE, (80,))


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ([b"\x80\x04K\x01."], "A head of 5 bytes"),
        ([READY, READY], "Ready twice"),
        ([f.pack_head(f.head_of(Ready(0, 1), f.SHARED))], "Encoding 2"),
        ([f.pack_head(f.head_of(JOB, f.SHARED))], "is not an event"),
        ([f.pack_head(DONE)], "parts that do not match"),
        ([READY, [f.pack_head(DONE), bytes(80)]], "An answer to ticket 7"),
        ([READY, None, [f.pack_head(replace(DONE, number=8)), bytes(80)]], "An answer to ticket 8"),
        ([READY, None, [f.pack_head(replace(DONE, lengths=(72,))), bytes(72)]], r"Parts of \[72\] bytes"),
        ([READY, None, [f.pack_head(replace(DONE, encoding=f.SHARED, lengths=()))]], "Encoding 2"),
        ([READY, None, f.pack_head(f.head_of(Evaluated(0, 7, {})))], "An answer to ticket 7"),
    ],
)
def test_what_is_not_due_is_not_believed(says: list[Any], words: str) -> None:
    """None means waiting for the job."""
    with hub_of() as hub:
        context, socket = client(hub.admit(0))
        slot = hub.slots[0]  # type: ignore[attr-defined]
        slot.gradient.fill_(3.0)
        for message in says:
            if message is None:
                assert isinstance(hub.wait()[0], Ready)
                hub.send(0, JOB)
                assert socket.poll(30_000)
            else:
                socket.send_multipart(message if isinstance(message, list) else [message])
        while not hub.broken:
            assert hub.wait() or hub.broken
        assert words.replace("\\", "") in hub.broken[0]
        assert (slot.gradient == 3.0).all()
        context.destroy()


def test_no_worker_can_answer_for_another() -> None:
    with hub_of() as hub:
        first, second = hub.admit(0), hub.admit(1)
        context, socket = client(second, identity=first.public_key)
        socket.send(READY)
        assert [event.seat for event in hub.wait()] == [1]  # by its key, not by the name it gives itself
        context.destroy()


def test_a_worker_that_comes_back_with_an_old_ticket_is_not_heard() -> None:
    with hub_of() as hub:
        slot = hub.slots[0]  # type: ignore[attr-defined]
        context, old = client(hub.admit(0))
        old.send(READY)
        assert isinstance(hub.wait()[0], Ready)
        hub.send(0, JOB)
        hub.dismiss(0)
        with working(hub):
            slot.gradient.fill_(3.0)
            old.send_multipart([f.pack_head(DONE), bytes(80)])
            hub.send(0, JOB)
            (done,) = hub.wait()
            assert isinstance(done, Done)
            assert torch.equal(slot.gradient, expected(SPEC, slot, JOB))
        assert old.poll(30_000)  # the job, and that it is dismissed
        context.destroy()


def test_silence_is_noticed_and_beats_are_heard() -> None:
    with hub_of(silence=30.0) as hub:
        credentials = hub.admit(0)
        context, socket = client(credentials)
        beats = context.socket(zmq.DEALER)
        beats.identity, beats.linger, beats.curve_serverkey = b"B" + credentials.public_key, 0, credentials.server_key
        beats.curve_publickey, beats.curve_secretkey = credentials.public_key, credentials.secret_key
        beats.connect(credentials.endpoint)
        assert hub.silent() == []  # it has never been here
        socket.send(READY)
        assert isinstance(hub.wait()[0], Ready)
        hub._last_seen[0] -= 31.0
        assert hub.silent() == [0]
        beats.send(f.beat())
        assert hub.socket.poll(30_000)
        assert hub.receive() == []
        assert hub.silent() == []
        beats.send(READY)
        assert hub.socket.poll(30_000)
        assert hub.receive() == []
        assert "on the heartbeat connection" in hub.broken[0]
        context.destroy()


def test_a_server_that_hangs_up_ends_its_workers() -> None:
    with hub_of() as hub:
        credentials = hub.admit(0)
        errors: list[Exception] = []

        def work() -> None:
            try:
                serve(credentials, SPEC)
            except LostError as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert isinstance(hub.wait()[0], Ready)
        hub.close()
        thread.join()
        assert "is lost" in str(errors[0])


@pytest.mark.parametrize(("how", "released"), [("release", True), ("dismiss", False)])
def test_a_worker_knows_whether_it_was_let_go_released(how: str, released: bool) -> None:
    """Ray keeps the process of one that was: nothing that is meant to kill it may still be under way."""
    with hub_of() as hub:
        credentials, answers = hub.admit(0), list[bool]()
        thread = threading.Thread(target=lambda: answers.append(serve(credentials, SPEC)))
        thread.start()
        assert isinstance(hub.wait()[0], Ready)
        getattr(hub, how)(0)
        thread.join()
        assert answers == [released]


class Held(Quadratic):
    """A quadratic that waits in the middle of a job."""

    def __init__(self) -> None:
        super().__init__()
        self.has, self.go = threading.Event(), threading.Event()

    def batch_of(self, number: int, sample: int, group: int) -> Any:
        self.has.set()
        self.go.wait()
        return self.batch(sample, group)


def test_a_late_result_does_not_block_anything() -> None:
    problem = Held()
    spec = replace(SPEC, problem=problem)
    with hub_of(spec, silence=2.0) as hub:
        errors: list[Exception] = []

        def work(credentials: WorkerCredentials) -> None:
            try:
                serve(credentials, spec)
            except LinkError as error:
                errors.append(error)

        thread = threading.Thread(target=work, args=(hub.admit(0),))
        thread.start()
        assert isinstance(hub.wait()[0], Ready)
        hub.send(0, JOB)
        assert problem.has.wait(60)
        hub.close()
        for other in threading.enumerate():
            if other.name == "latecomer beats":
                other.join(60)  # it ends when the connection is lost
        problem.go.set()
        thread.join(60)
        assert not thread.is_alive()
        assert "is lost" in str(errors[0])


def test_the_worker_refuses_what_the_server_would_not_send() -> None:
    with hub_of() as hub:
        credentials = hub.admit(0)
        with _Link(credentials, 160) as link:
            link.send([READY])
            assert isinstance(hub.wait()[0], Ready)
            hub._post(credentials.public_key, [f.beat()])
            with pytest.raises(f.FrameError, match="from the server"):
                link.receive()


def test_memory_of_another_server_is_not_entered() -> None:
    block, slots, block_ref = create_slots(SPEC, 1)
    if block_ref is not None:
        slots[0].gradient.fill_(2.0)
        entered = attach_slots(block_ref, SPEC)
        assert entered is not None
        assert torch.equal(entered[0].gradient, slots[0].gradient)
        assert attach_slots(replace(block_ref, nonce=bytes(16)), SPEC) is None
        assert attach_slots(replace(block_ref, size=block_ref.size + 1), SPEC) is None
        assert attach_slots(replace(block_ref, pid=2**22 + 1), SPEC) is None
    block.close()


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(ValueError, match=r"cannot listen on 192\.0\.2\.1"):
        Hub(SPEC, [own_slot(SPEC)], host="192.0.2.1")


def test_rounding_to_bfloat16_is_recorded_and_replayed(tmp_path: Any) -> None:
    from latecomer.engines.inline import InlineEngine

    class Rounding(InlineEngine):
        bf16 = True

    problem, path = lc.problems.quadratic(), tmp_path / "run.parquet"
    options: dict[str, Any] = {"method": "ordered-mu2", "lr": 0.01, "workers": 3, "steps": 40}
    rounded = lc.fit(problem, engine=Rounding(), record=path, **options)
    assert lc.training.replay(path, problem).difference == 0.0
    exact = lc.fit(problem, engine="inline", **options)
    assert any(not torch.equal(rounded.state[key], exact.state[key]) for key in exact.state)
