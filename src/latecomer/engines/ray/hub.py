"""The server's side of the network, over ZeroMQ: encrypted, authenticated, without pickle, with a silence timeout."""

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

_BEATS = b"B"  # prefix of the identity of a worker's heartbeat connection, before its key
_DOMAIN = "latecomer"
_PIDS = 2**31  # process ids fit into 31 bits
_RECEIVE_QUEUE = 8  # messages that may wait to be read


class Hub:
    """The server's socket: encrypted, one key pair per worker, one job at a time per worker.

    Everything a worker sends is checked first: the key identifies the sender, the answered job must be with that
    worker, and the numbers must have exactly the size of this run's. Only then are they copied into the job's slot. A
    worker that sends anything else is reported in `broken`. All later messages of a dismissed worker are ignored; the
    next worker in its seat has new keys.

    Args:
        spec: What every worker gets once.
        slots: The server's slots.
        host: Address to listen on.
        bf16: Send points and gradients as bfloat16.
        silence: Seconds without a message after which a worker counts as dead.
        block_ref: Lets processes on this machine map the slots; None if they cannot.
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
        self._keys: dict[int, bytes] = {}  # seat -> key of its current worker
        self._encodings: dict[int, int] = {}  # seat -> encoding, once its worker is ready
        self._pending: dict[int, Job] = {}  # seat -> the job it computes
        self._last_seen: dict[int, float] = {}
        self.broken: dict[int, str] = {}
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(_DOMAIN, _AllowedKeys(self._seats))
        self._public, secret = zmq.curve_keypair()
        self.socket: Any = self._context.socket(zmq.ROUTER)
        self.socket.curve_server, self.socket.curve_secretkey = True, secret
        self.socket.zap_domain = _DOMAIN.encode()
        self.socket.linger, self.socket.rcvhwm, self.socket.router_mandatory = 0, _RECEIVE_QUEUE, True
        self.socket.maxmsgsize = max(self._layout.limit, HEAD_LIMIT) + ENVELOPE
        # No ZeroMQ heartbeats: they would queue behind long messages. TCP keep-alive closes dead connections instead.
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
        """Create the keys of a new worker."""
        public, secret = zmq.curve_keypair()
        self._seats[public], self._keys[seat] = seat, public
        block_ref = self._block_ref
        return WorkerCredentials(
            seat, self.endpoint, self._public, public, secret, self._encoding, self.silence, block_ref
        )

    def release(self, seat: int) -> None:
        """Ask a worker to end after its job."""
        if seat in self._encodings:
            self._post(self._keys[seat], [leave()])

    def leaving(self, seats: Iterable[int]) -> bool:
        """Whether one of these workers may still be about to end after `release`."""
        return any(seat in self._encodings for seat in seats)

    def dismiss(self, seat: int) -> None:
        """Ignore a worker from now on, and tell it to stop if it is on another machine."""
        key = self._keys.pop(seat, None)
        if key is None:
            return
        if self._encodings.pop(seat, SHARED) != SHARED:  # one that shares memory is killed by the engine
            self._post(key, [stop()])
        del self._seats[key]
        for by_seat in (self._pending, self._last_seen, self.broken):
            by_seat.pop(seat, None)

    def shares(self, seat: int) -> bool:
        """Whether this worker writes directly into the server's slots."""
        return self._encodings.get(seat) == SHARED

    def send(self, seat: int, job: Job) -> None:
        """Send a job with its points; if the worker is gone, `silent` or Ray reports it."""
        encoding = self._encodings.get(seat)
        if encoding is None:
            return
        self._pending[seat] = job
        self._post(self._keys[seat], self._layout.job_message(job, self._slots[job.slot], encoding))

    def _post(self, key: bytes, parts: list[Any]) -> None:
        try:
            self.socket.send_multipart([key, *parts], zmq.DONTWAIT, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise

    def receive(self) -> list[Event]:
        """Return new events; workers that sent something invalid are in `broken`."""
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
            self._last_seen[seat] = time.monotonic()
            try:
                event = self._event(seat, parts, beats=bytes(sender) == _BEATS + user)
            except FrameError as error:
                self.broken[seat] = f"it sent something unexpected: {error}"
                continue
            if event is not None:
                found.append(event)

    def _event(self, seat: int, parts: list[Any], beats: bool) -> Event | None:
        head = unpack_head(parts[0].buffer, self._layout.limit)
        if tuple(len(part) for part in parts[1:]) != head.lengths:
            raise FrameError(f"{len(parts) - 1} parts that do not match its head")
        if head.kind == BEAT or beats:
            if head.kind != BEAT:
                raise FrameError(f"Kind {head.kind} on the heartbeat connection")
            return None
        if head.kind == READY:
            return self._ready(seat, head)
        event, job = self._layout.answer(seat, head, self._pending.get(seat)), self._pending[seat]
        if isinstance(event, Done):
            encoding = self._encodings[seat]
            if head.encoding != encoding:
                raise FrameError(f"Encoding {head.encoding} (expected {encoding})")
            self._layout.check(head.lengths, self._layout.up(encoding))
            self._layout.read_contribution((part.buffer for part in parts[1:]), self._slots[job.slot])
        del self._pending[seat]
        return event

    def _ready(self, seat: int, head: Head) -> Event:
        if seat in self._encodings:
            raise FrameError("It reported Ready twice")
        if head.encoding != self._encoding and (head.encoding != SHARED or self._block_ref is None):
            raise FrameError(f"Encoding {head.encoding} (expected {self._encoding})")
        event = event_of(seat, head)
        if not (isinstance(event, Ready) and 0 < event.pid < _PIDS):
            raise FrameError("Not a valid process id")
        self._encodings[seat] = head.encoding
        return event

    def silent(self) -> list[int]:
        """Return the seats of ready workers that have been silent for too long."""
        limit = time.monotonic() - self.silence
        return [seat for seat in self._encodings if self._last_seen[seat] < limit]

    def wait(self, timeout: float = 30.0) -> list[Event]:
        """Wait for events, for callers that wait for nothing else."""
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


class _AllowedKeys:
    """Accepts the keys of current workers."""

    def __init__(self, keys: dict[bytes, int]) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self._keys
