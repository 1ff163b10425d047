"""Points down and gradients up over ZeroMQ: encrypted, known senders only, no pickle, and silence is noticed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ..._util.extras import needs
from ..base import Done, Event, Job, Ready, Slot, WorkerSpec
from ..codec import (
    BEAT,
    BF16,
    ENVELOPE,
    HEAD_LIMIT,
    NATIVE,
    READY,
    SHARED,
    FrameError,
    Head,
    Layout,
    event_of,
    leave,
    stop,
    unpack_head,
)  # fmt: skip
from .credentials import SharedBlockRef, WorkerCredentials

with needs("ray", "pyzmq", "Sending tensors over the network"):
    import zmq
    from zmq.auth.thread import ThreadAuthenticator

__all__ = ["Hub"]

_BEATS = b"B"  # a worker's beats come through a connection of their own: its key with this in front
_DOMAIN = "latecomer"
_PIDS = 2**31  # what the system calls a process fits into 31 bits
_RECEIVE_QUEUE = 8  # messages that may wait for a reader


class Hub:
    """The server's end: one encrypted socket, one key pair a worker, one job at a time with each.

    Everything a worker sends is checked before it is believed: who it is by its key, that a job of this number is with
    it, that the numbers have exactly the length of this run's. Only then are they copied into the job's slot. A worker
    that sends anything else is reported as broken. Whoever is dismissed is not listened to any more, whatever it still
    sends: the next worker in its seat has other keys.

    Args:
        spec: What is computed.
        slots: The server's slots.
        host: Address to listen on.
        bf16: Send points and gradients as bfloat16.
        silence: Seconds without a sign of life after which a worker counts as gone.
        block_ref: Where the slots can be seen by processes of this machine, if they can.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        slots: Sequence[Slot],
        *,
        host: str = "127.0.0.1",
        bf16: bool = False,
        silence: float = 20.0,
        block_ref: SharedBlockRef | None = None,
    ) -> None:
        self._layout, self._slots, self._block_ref = Layout(spec), slots, block_ref
        self._encoding, self.silence = BF16 if bf16 else NATIVE, silence
        self._seats: dict[bytes, int] = {}  # key -> seat
        self._keys: dict[int, bytes] = {}  # seat -> key of the worker that has it now
        self._how: dict[int, int] = {}  # seat -> encoding; there once it is ready
        self._due: dict[int, Job] = {}
        self._seen: dict[int, float] = {}
        self.broken: dict[int, str] = {}
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(_DOMAIN, _Known(self._seats))
        self._public, secret = zmq.curve_keypair()
        self.socket: Any = self._context.socket(zmq.ROUTER)
        self.socket.curve_server, self.socket.curve_secretkey = True, secret
        self.socket.zap_domain = _DOMAIN.encode()
        self.socket.linger, self.socket.rcvhwm, self.socket.router_mandatory = 0, _RECEIVE_QUEUE, True
        self.socket.maxmsgsize = max(self._layout.limit, HEAD_LIMIT) + ENVELOPE
        # No heartbeats: they would wait behind long messages. Connections whose other end is gone are let go like this.
        self.socket.tcp_keepalive, self.socket.tcp_keepalive_cnt = 1, 4
        self.socket.tcp_keepalive_idle = self.socket.tcp_keepalive_intvl = max(1, math.ceil(silence))
        if ":" in host:
            self.socket.ipv6, host = True, f"[{host}]"
        try:
            self.endpoint = f"tcp://{host}:{self.socket.bind_to_random_port(f'tcp://{host}')}"
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(f"The server cannot listen on {host}: {error.strerror}") from None

    def admit(self, seat: int) -> WorkerCredentials:
        """Make keys for a new worker."""
        public, secret = zmq.curve_keypair()
        self._seats[public], self._keys[seat] = seat, public
        block_ref = self._block_ref
        return WorkerCredentials(
            seat, self.endpoint, self._public, public, secret, self._encoding, self.silence, block_ref
        )

    def release(self, seat: int) -> None:
        """Tell a worker to leave once it has done what it does."""
        if seat in self._how:
            self._post(self._keys[seat], [leave()])

    def leaving(self, seats: Iterable[int]) -> bool:
        """Whether one of these has been told to leave and may still be about to."""
        return any(seat in self._how for seat in seats)

    def dismiss(self, seat: int) -> None:
        """Listen to a worker no more, and tell it so in case it is far away and still listens."""
        key = self._keys.pop(seat, None)
        if key is None:
            return
        if self._how.pop(seat, SHARED) != SHARED:  # whoever writes into our memory must be killed, not asked
            self._post(key, [stop()])
        del self._seats[key]
        for known in (self._due, self._seen, self.broken):
            known.pop(seat, None)

    def shares(self, seat: int) -> bool:
        """Whether this worker writes into the server's own slots."""
        return self._how.get(seat) == SHARED

    def send(self, seat: int, job: Job) -> None:
        """Send a job with its points; if the worker is gone, whoever watches it will say so."""
        how = self._how.get(seat)
        if how is None:
            return
        self._due[seat] = job
        self._post(self._keys[seat], self._layout.job_message(job, self._slots[job.slot], how))

    def _post(self, key: bytes, parts: list[Any]) -> None:
        try:
            self.socket.send_multipart([key, *parts], zmq.DONTWAIT, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise

    def receive(self) -> list[Event]:
        """Return what workers have said until now; who said something it should not have is in `broken`."""
        found: list[Event] = []
        while True:
            try:
                sender, *parts = self.socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return found
            user = parts[0].get("User-Id").encode() if parts else b""
            seat = self._seats.get(user)
            if seat is None or seat in self.broken:
                continue  # it was dismissed
            self._seen[seat] = time.monotonic()
            try:
                event = self._event(seat, parts, beats=bytes(sender) == _BEATS + user)
            except FrameError as error:
                self.broken[seat] = f"it sent something that is not due: {error}"
                continue
            if event is not None:
                found.append(event)

    def _event(self, seat: int, parts: list[Any], beats: bool) -> Event | None:
        head = unpack_head(parts[0].buffer, self._layout.limit)
        if tuple(len(part) for part in parts[1:]) != head.lengths:
            raise FrameError(f"{len(parts) - 1} parts that are not those its head announces")
        if head.kind == BEAT or beats:
            if head.kind != BEAT:
                raise FrameError(f"Kind {head.kind} where only beats come")
            return None
        if head.kind == READY:
            return self._ready(seat, head)
        event, job = self._layout.answer(seat, head, self._due.get(seat)), self._due[seat]
        if isinstance(event, Done):
            how = self._how[seat]
            if head.encoding != how:
                raise FrameError(f"Encoding {head.encoding} (expected {how})")
            self._layout.check(head.lengths, self._layout.up(how))
            self._layout.read_contribution((part.buffer for part in parts[1:]), self._slots[job.slot])
        del self._due[seat]
        return event

    def _ready(self, seat: int, head: Head) -> Event:
        if seat in self._how:
            raise FrameError("It is ready for the second time")
        if head.encoding != self._encoding and (head.encoding != SHARED or self._block_ref is None):
            raise FrameError(f"Encoding {head.encoding} (expected {self._encoding})")
        event = event_of(seat, head)
        if not (isinstance(event, Ready) and 0 < event.pid < _PIDS):
            raise FrameError("No process can have its number")
        self._how[seat] = head.encoding
        return event

    def silent(self) -> list[int]:
        """Return the seats of workers that have been ready and have not been heard of for too long."""
        limit = time.monotonic() - self.silence
        return [seat for seat in self._how if self._seen[seat] < limit]

    def wait(self, timeout: float = 30.0) -> list[Event]:
        """Wait for events: for those who watch nothing else."""
        until = time.monotonic() + timeout
        found = self.receive()
        while not found and not self.broken and (left := until - time.monotonic()) > 0:
            self.socket.poll(1000 * left)
            found = self.receive()
        return found

    def close(self) -> None:
        """Stop listening; it may be called twice."""
        if not self._context.closed:
            self.socket.close()
            self._authenticator.stop()
            self._context.term()


class _Known:
    """Tells the authenticator whose keys are good."""

    def __init__(self, keys: dict[bytes, int]) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self._keys
