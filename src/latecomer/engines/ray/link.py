"""The worker's end of the network: take a job, compute it, send the result, and be heard of meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from typing import Any

from ..._util.extras import needs
from ..base import Ready, WorkerSpec
from ..codec import (
    ENVELOPE,
    HEAD_LIMIT,
    JOB,
    LEAVE,
    SHARED,
    STOP,
    FrameError,
    Layout,
    beat,
    head_of,
    job_of,
    pack_head,
    unpack_head,
)
from ..memory import own_slot
from ..worker import Worker
from .credentials import WorkerCredentials, attach_slots

with needs("ray", "pyzmq", "Sending tensors over the network"):
    import zmq
    from zmq.utils.monitor import recv_monitor_message

__all__ = ["LinkError", "LostError", "serve"]

_GLANCE = 500  # milliseconds between looks at whether the connection still stands


class LinkError(ConnectionError):
    """The server cannot be reached."""


class LostError(LinkError):
    """The server was there, and has hung up."""


def serve(credentials: WorkerCredentials, spec: WorkerSpec) -> bool:
    """Do jobs until the server has enough of it; the life of a worker.

    A worker lives as long as its connection: it does not come back through another one, because nobody could say which
    of its messages were lost.

    Args:
        credentials: Where to go and what to say.
        spec: What to compute.

    Returns:
        Whether it was let go in peace, and not dismissed.
    """
    slots = attach_slots(credentials.block_ref, spec)
    encoding = credentials.encoding if slots is None else SHARED
    here = slots or [own_slot(spec)]
    layout, worker = Layout(spec), Worker(spec, here, credentials.seat)
    with _Link(credentials, layout.limit) as link:
        link.send([pack_head(head_of(Ready(credentials.seat, os.getpid()), encoding))])
        while True:
            head, parts = link.receive()
            if head.kind != JOB:
                return bool(head.kind == LEAVE)
            job = job_of(head)
            layout.check(head.lengths, layout.down(job, encoding))
            if slots is None:
                job = replace(job, slot=0)
                layout.read_job((part.buffer for part in parts), job, here[0])
            link.send(layout.answer_message(worker(job), here[job.slot], encoding))


class _Link:
    """Two connections to the server: one for jobs, and one for beats, which another thread sends.

    Whether the server is still there is asked on the second one only: on the first the answer would have to wait behind
    whatever is being sent, and a long message is no reason to hang up. If either of them is lost, both are.
    """

    def __init__(self, credentials: WorkerCredentials, limit: int) -> None:
        self._limit, self._badge = limit, credentials
        self._context = zmq.Context()
        self._socket = self._connection(credentials.public_key)
        self._monitor: Any = self._socket.get_monitor_socket(zmq.EVENT_ALL)
        self._socket.connect(credentials.endpoint)
        self._lost, self._up = "", set[Any]()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="latecomer beats", daemon=True)
        self._thread.start()

    def _connection(self, identity: bytes) -> Any:
        socket = self._context.socket(zmq.DEALER)
        socket.identity, socket.linger, socket.reconnect_ivl = identity, 0, -1
        socket.curve_serverkey = self._badge.server_key
        socket.curve_publickey, socket.curve_secretkey = self._badge.public_key, self._badge.secret_key
        socket.maxmsgsize = max(self._limit, HEAD_LIMIT) + ENVELOPE
        socket.ipv6 = "[" in self._badge.endpoint
        return socket

    def send(self, parts: list[Any]) -> None:
        """Send a message; without a connection there is nowhere to send it, and waiting for one would be for ever."""
        while True:
            self._wait(zmq.POLLOUT)
            self._look()
            with contextlib.suppress(zmq.Again):  # it may be lost since the last look, and sending would wait for ever
                self._socket.send_multipart(parts, zmq.DONTWAIT, copy=False)
                return

    def _wait(self, what: int) -> None:
        while not self._socket.poll(_GLANCE, what):
            self._look()

    def _look(self) -> None:
        if self._lost:
            raise (LostError if self._up else LinkError)(self._lost)

    def receive(self) -> tuple[Any, list[Any]]:
        """Wait for a message of the server."""
        self._wait(zmq.POLLIN)
        first, *parts = self._socket.recv_multipart(copy=False)
        head = unpack_head(first.buffer, self._limit)
        if head.kind not in (JOB, STOP, LEAVE) or tuple(len(part) for part in parts) != head.lengths:
            raise FrameError(f"Kind {head.kind} with {len(parts)} parts from the server")
        return head, parts

    def _watch(self) -> None:
        """Beat, as long as both connections stand."""
        beats = self._connection(b"B" + self._badge.public_key)
        beats.heartbeat_ivl, beats.heartbeat_timeout = (int(self._badge.silence * each) for each in (250, 1000))
        monitor, poller = beats.get_monitor_socket(zmq.EVENT_ALL), zmq.Poller()
        for watched in (self._monitor, monitor):
            poller.register(watched, zmq.POLLIN)
        beats.connect(self._badge.endpoint)
        interval, until = max(1, int(200 * self._badge.silence)), time.monotonic() + self._badge.silence
        try:
            while not self._end.is_set() and not self._lost:
                up = len(self._up) == 2
                news = poller.poll(interval if up else min(_GLANCE, interval))
                for watched, _ in news:
                    self._note(watched, recv_monitor_message(watched)["event"])
                if up and not news:
                    with contextlib.suppress(zmq.Again):
                        beats.send(beat(), zmq.DONTWAIT)
                if not up and not self._lost and time.monotonic() > until:
                    self._lost = f"no connection to the server at {self._badge.endpoint}: is the port closed?"
        finally:
            beats.disable_monitor()
            monitor.close()
            beats.close()

    def _note(self, monitor: Any, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._up.add(monitor)
        elif event in (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL):
            self._lost = f"the server at {self._badge.endpoint} does not know this worker"
        elif event == zmq.EVENT_DISCONNECTED and monitor in self._up:
            self._lost = f"the connection to the server at {self._badge.endpoint} is lost"

    def __enter__(self) -> _Link:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._socket.disable_monitor()  # wakes the thread up
        self._thread.join()
        self._monitor.close()
        self._socket.close()
        self._context.term()
