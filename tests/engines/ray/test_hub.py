"""What the server's end of the network makes of anything an authentic worker may send, and of a slow network."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latecomer.engines import Died, Done, Evaluated, Failed, Job, Ready, WorkerSpec
from latecomer.engines import codec as f
from latecomer.engines.memory import own_slot
from latecomer.engines.ray.hub import Hub
from latecomer.engines.ray.link import LostError, serve
from latecomer.testing import Probe

SPEC = WorkerSpec(Probe(), size=10, dtype=torch.float64, points=2)
TIMEOUT = 60.0  # seconds


# ---- valid heads with anything in them ---------------------------------------------------------------------------


class Part:
    """A part of a message, as it comes off the wire."""

    def __init__(self, data: bytes) -> None:
        self.buffer = memoryview(data)

    def __len__(self) -> int:
        return len(self.buffer)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    made = Hub(SPEC, [own_slot(SPEC), own_slot(SPEC)], block_ref=None)
    yield made
    made.close()


NUMBERS = st.sampled_from([0, 1, 7, 8, 2**64 - 1])
FLOATS = st.floats()
WHAT = (
    st.builds(Done, st.just(0), NUMBERS, st.booleans(), FLOATS, st.integers(-2, 2) | st.just(2**31 - 1), FLOATS)
    | st.builds(Evaluated, st.just(0), NUMBERS, st.dictionaries(st.text(max_size=9), FLOATS, max_size=3))
    | st.builds(Failed, st.just(0), NUMBERS, st.text(max_size=9), st.text(max_size=9))
    | st.builds(Ready, st.just(0), NUMBERS | st.just(2**31))
    | st.builds(Job, NUMBERS, NUMBERS, NUMBERS, st.integers(1, 9), FLOATS, FLOATS, st.booleans())
    | st.sampled_from([f.BEAT, f.STOP, f.LEAVE])
)
LENGTHS = st.just((80,)) | st.lists(st.sampled_from([0, 20, 80, 160]), max_size=4).map(tuple)


@given(
    what=WHAT, encoding=st.integers(f.NATIVE, f.SHARED), lengths=LENGTHS, rest=st.none() | st.binary(max_size=40),
    given=st.none() | LENGTHS, ready=st.booleans(), beats=st.booleans(),
    job=st.none() | st.builds(Job, st.sampled_from([7, 8]), st.just(1), evaluate=st.booleans()),
)  # fmt: skip
def test_a_valid_head_with_anything_in_it_is_an_event_of_its_seat_or_refused(
    hub: Hub, what: Any, encoding: int, lengths: tuple[int, ...], rest: bytes | None, given: tuple[int, ...] | None,
    ready: bool, beats: bool, job: Job | None,
) -> None:  # fmt: skip
    """`given` are the lengths of what comes, where they are not those that the head announces."""
    hub._encodings, hub._pending = ({0: f.NATIVE} if ready else {}), ({0: job} if ready and job else {})
    head = f.Head(what) if isinstance(what, int) else f.head_of(what, encoding)
    head = replace(head, lengths=lengths, rest=head.rest if rest is None else rest)
    other, mine = hub._slots
    for slot in (other, mine):
        slot.gradient.fill_(3.0)
    parts = [Part(f.pack_head(head)), *(Part(b"\1" * n) for n in (lengths if given is None else given))]
    try:
        event = hub._event(0, parts, beats)
    except f.FrameError:
        assert (mine.gradient == 3.0).all()
    else:
        assert event is None or event.seat == 0
        assert not isinstance(event, Died)
        if isinstance(event, Done | Evaluated | Failed):
            assert job is not None
            assert event.number == job.number
            assert isinstance(event, Failed) or isinstance(event, Evaluated) == job.evaluate
            assert hub._pending == {}
        assert (mine.gradient != 3.0).all() == isinstance(event, Done)
    assert (other.gradient == 3.0).all()


def test_a_group_that_the_problem_does_not_have_is_refused(hub: Hub) -> None:
    hub._encodings, hub._pending = {0: f.NATIVE}, {0: Job(7, 0)}
    head = f.pack_head(f.head_of(Done(0, 7, True, group=SPEC.problem.groups), f.NATIVE, (80,)))
    with pytest.raises(f.FrameError, match=r"Group \d+ \(expected 0 to"):
        hub._event(0, [Part(head), Part(bytes(80))], beats=False)


# ---- connections -------------------------------------------------------------------------------------------------


class Proxy:
    """Stands between a worker and the server; the first connection is for jobs, the second for beats."""

    def __init__(self, endpoint: str) -> None:
        self._target = ("127.0.0.1", int(endpoint.rsplit(":", 1)[1]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.gates = [threading.Event(), threading.Event()]
        for gate in self.gates:
            gate.set()
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        for gate in self.gates:
            here, _ = self._listener.accept()
            there = socket.create_connection(self._target)
            self.pairs.append((here, there))
            for pair in ((here, there), (there, here)):
                self._threads.append(threading.Thread(target=self._pump, args=(*pair, gate)))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                gate.wait()
                target.sendall(data)
        self.cut((source, target))

    def cut(self, pair: tuple[socket.socket, socket.socket]) -> None:
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for gate in self.gates:
            gate.set()
        for pair in self.pairs:
            self.cut(pair)
        for thread in self._threads:
            thread.join(TIMEOUT)
        for end in (self._listener, *(end for pair in self.pairs for end in pair)):
            end.close()


class Far:
    """A worker behind a proxy."""

    def __init__(self, silence: float) -> None:
        self.hub = Hub(SPEC, [own_slot(SPEC)], silence=silence)
        credentials = self.hub.admit(0)
        self.proxy, self.errors = Proxy(credentials.endpoint), list[Exception]()
        self.thread = threading.Thread(target=self._work, args=(replace(credentials, endpoint=self.proxy.endpoint),))
        self.thread.start()

    def _work(self, credentials: Any) -> None:
        try:
            serve(credentials, SPEC)
        except LostError as error:
            self.errors.append(error)

    def close(self) -> None:
        self.hub.close()
        self.proxy.close()
        self.thread.join(TIMEOUT)


@pytest.fixture
def far() -> Iterator[Far]:
    made = Far(silence=3.0)
    yield made
    made.close()


def test_a_transfer_longer_than_the_silence_limit_ends_no_worker(far: Far) -> None:
    hub, proxy = far.hub, far.proxy
    assert isinstance(hub.wait(TIMEOUT)[0], Ready)
    proxy.gates[0].clear()
    hub.send(0, Job(7, 0))
    for _ in range(7):  # beats: five in the time after which a worker counts as silent
        assert hub.socket.poll(1000 * TIMEOUT)
        assert hub.receive() == []
    assert hub.silent() == []
    proxy.gates[0].set()
    assert isinstance(hub.wait(TIMEOUT)[0], Done)
    assert far.errors == []


def test_a_worker_that_can_only_not_be_heard_of_any_more_ends(far: Far) -> None:
    assert isinstance(far.hub.wait(TIMEOUT)[0], Ready)
    assert far.hub.socket.poll(1000 * TIMEOUT)  # a beat
    far.proxy.cut(far.proxy.pairs[1])
    far.thread.join(TIMEOUT)
    assert "is lost" in str(far.errors[0])
