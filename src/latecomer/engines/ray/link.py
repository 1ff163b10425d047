"""The worker's side of the network: receive a job, compute it, send the result, and send heartbeats meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import Any

from ..._util.extras import needs
from ..base import WorkerSpec
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
from .cluster import assigned_device
from .credentials import WorkerCredentials, attach_slots

with needs("ray", "pyzmq", "Sending tensors over the network"):
    import zmq
    from zmq.utils.monitor import recv_monitor_message

__all__ = ["LinkError", "LostError", "serve"]

_POLL_MS = 500  # milliseconds between checks of the connection


class LinkError(ConnectionError):
    """The server cannot be reached."""


class LostError(LinkError):
    """The server has closed the connection."""


def serve(credentials: WorkerCredentials, spec: WorkerSpec) -> bool:
    """Compute jobs until the server ends the worker.

    A worker lives as long as its connection. It does not reconnect, because nobody could know which of its messages
    were lost.

    Args:
        credentials: Address and keys.
        spec: What every worker gets once.

    Returns:
        True if the server released the worker, False if it dismissed it.
    """
    slots = attach_slots(credentials.block_ref, spec)
    encoding = credentials.encoding if slots is None else SHARED
    own_slots = slots or [own_slot(spec)]
    layout, worker = Layout(spec), Worker(spec, own_slots, credentials.seat, assigned_device(spec.device))
    with contextlib.closing(worker), _Link(credentials, layout.limit) as link:
        link.send([pack_head(head_of(worker.ready, encoding))])
        while True:
            head, parts = link.receive()
            if head.kind != JOB:
                return bool(head.kind == LEAVE)
            job = job_of(head)
            layout.check(head.lengths, layout.down(job, encoding))
            if slots is None:
                job = replace(job, slot=0)
                layout.read_job((part.buffer for part in parts), job, own_slots[0])
            link.send(layout.answer_message(worker(job), own_slots[job.slot], encoding))


class _Link:
    """Two connections to the server: one for jobs, and one for heartbeats, which another thread sends.

    Only the second one checks that the server is alive: on the first one the answer would wait behind whatever is being
    sent, and a long message is no reason to disconnect. If either connection is lost, both are closed.
    """

    def __init__(self, credentials: WorkerCredentials, limit: int) -> None:
        self._limit, self._credentials = limit, credentials
        self._context = zmq.Context()
        self._socket = self._connection(credentials.public_key)
        self._monitor: Any = self._socket.get_monitor_socket(zmq.EVENT_ALL)
        self._socket.connect(credentials.endpoint)
        self._lost, self._connected = "", set[Any]()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="latecomer beats", daemon=True)
        self._thread.start()

    def _connection(self, identity: bytes) -> Any:
        socket = self._context.socket(zmq.DEALER)
        socket.identity, socket.linger, socket.reconnect_ivl = identity, 0, -1
        socket.curve_serverkey = self._credentials.server_key
        socket.curve_publickey, socket.curve_secretkey = self._credentials.public_key, self._credentials.secret_key
        socket.maxmsgsize = max(self._limit, HEAD_LIMIT) + ENVELOPE
        socket.ipv6 = "[" in self._credentials.endpoint
        return socket

    def send(self, parts: list[Any]) -> None:
        """Send a message; raise if the connection is lost, instead of waiting for ever."""
        while True:
            self._wait(zmq.POLLOUT)
            self._check_connection()
            with contextlib.suppress(zmq.Again):  # lost since the check: a blocking send would never return
                self._socket.send_multipart(parts, zmq.DONTWAIT, copy=False)
                return

    def _wait(self, what: int) -> None:
        while not self._socket.poll(_POLL_MS, what):
            self._check_connection()

    def _check_connection(self) -> None:
        if self._lost:
            raise (LostError if self._connected else LinkError)(self._lost)

    def receive(self) -> tuple[Any, list[Any]]:
        """Wait for a message from the server."""
        self._wait(zmq.POLLIN)
        first, *parts = self._socket.recv_multipart(copy=False)
        head = unpack_head(first.buffer, self._limit)
        if head.kind not in (JOB, STOP, LEAVE) or tuple(len(part) for part in parts) != head.lengths:
            raise FrameError(f"Kind {head.kind} with {len(parts)} parts from the server")
        return head, parts

    def _watch(self) -> None:
        """Send heartbeats and watch both connections."""
        beats = self._connection(b"B" + self._credentials.public_key)
        beats.heartbeat_ivl, beats.heartbeat_timeout = (int(self._credentials.silence * each) for each in (250, 1000))
        monitor, poller = beats.get_monitor_socket(zmq.EVENT_ALL), zmq.Poller()
        for watched in (self._monitor, monitor):
            poller.register(watched, zmq.POLLIN)
        beats.connect(self._credentials.endpoint)
        interval, until = max(1, int(200 * self._credentials.silence)), time.monotonic() + self._credentials.silence
        try:
            while not self._end.is_set() and not self._lost:
                connected = len(self._connected) == 2
                ready = poller.poll(interval if connected else min(_POLL_MS, interval))
                for watched, _ in ready:
                    self._handle(watched, recv_monitor_message(watched)["event"])
                if connected and not ready:
                    with contextlib.suppress(zmq.Again):
                        beats.send(beat(), zmq.DONTWAIT)
                if not connected and not self._lost and time.monotonic() > until:
                    self._lost = f"no connection to the server at {self._credentials.endpoint}: is the port closed?"
        finally:
            beats.disable_monitor()
            monitor.close()
            beats.close()

    def _handle(self, monitor: Any, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected.add(monitor)
        elif event in (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL):
            self._lost = f"the server at {self._credentials.endpoint} refused this worker's key"
        elif event == zmq.EVENT_DISCONNECTED and monitor in self._connected:
            self._lost = f"the connection to the server at {self._credentials.endpoint} is lost"

    def __enter__(self) -> _Link:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._socket.disable_monitor()  # wakes the thread up
        self._thread.join()
        self._monitor.close()
        self._socket.close()
        self._context.term()
