"""Workers on a Ray cluster: Ray places, starts and supervises them; tensors take a way of their own."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from .badge import Badge, build
from .base import Died, Engine, Event, Job, Ready, Slot, WorkerSpec
from .cluster import Cluster
from .objects import Objects, ObjectWorker
from .shared import Block

__all__ = ["RayEngine", "work"]

_END = 2.0  # seconds a process may take to end when Ray asks it to, before it gets SIGKILL
_LEAVE = 1.0  # seconds workers have in the end to finish what they do


def work(badge: Badge, spec: WorkerSpec) -> None:
    """Be a worker for as long as the connection to the server stands; what Ray runs in a process of its own.

    A process that comes to the end of it in peace is kept by Ray, with torch in it, and the next worker starts at once.

    Examples:
        >>> work.__name__
        'work'
    """
    from .link import LostError, serve

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        in_peace = serve(badge, spec)
    except LostError:
        in_peace = False
    finally:
        torch.set_num_threads(threads)
    if not in_peace:  # Ray may have been told to kill it, and would kill whoever works in this process next
        os._exit(1)


@dataclass
class _Seat:
    """A worker, from the moment Ray is asked for it."""

    life: int
    stop: Callable[[], None]
    pidfd: int = -1


class RayEngine(Engine):
    """One Ray task a worker, on whichever node Ray finds room for it.

    Points and gradients do not go through Ray. A worker on the server's own machine sees the server's memory, as with
    `latecomer.engines.local`; all others have an encrypted ZeroMQ connection, with keys that are made for one life of
    one worker and handed out by Ray. Ray notices the death of a process or a node; a worker that is not heard of for a
    while counts as dead too, and is not listened to when it comes back.

    Args:
        address: ``"auto"`` or the address of a cluster; None to start Ray on this machine, for this run only.
        cpus: CPUs a worker needs; Ray places no more of them on a node than it has.
        gpus: GPUs a worker needs.
        resources: Other resources a worker needs, by the names they have in the cluster.
        data_plane: ``"zeromq"``, or ``"object-store"`` where no port of the server can be reached.
        bf16: Send points and gradients as bfloat16: half the bytes, and rounded. A replay does the same.
        shared: Whether workers on the server's machine may use its memory.
        host: Address on which the server listens; by default the one by which Ray knows its node.
        silence: Seconds without a sign of life after which a worker counts as dead; raise it where networks stall.
        runtime_env: What Ray brings to the workers, for example ``{"working_dir": "."}``; see Ray's documentation.

    Examples:
        >>> RayEngine("auto", cpus=2, bf16=True).bf16
        True
        >>> RayEngine(data_plane="carrier pigeon")
        Traceback (most recent call last):
        ValueError: Unknown data_plane 'carrier pigeon' (expected 'zeromq' or 'object-store')
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: float = 1.0,
        gpus: float = 0.0,
        resources: Mapping[str, float] | None = None,
        data_plane: str = "zeromq",
        bf16: bool = False,
        shared: bool = True,
        host: str | None = None,
        silence: float = 20.0,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        if data_plane not in ("zeromq", "object-store"):
            raise ValueError(f"Unknown data_plane {data_plane!r} (expected 'zeromq' or 'object-store')")
        if not silence > 0:
            raise ValueError(f"Invalid silence value: {silence:g} (expected seconds > 0)")
        self.address, self.cpus, self.gpus, self.resources = address, cpus, gpus, dict(resources or {})
        self.data_plane, self.bf16, self.shared, self.host = data_plane, bf16, shared, host
        self.silence, self.runtime_env = silence, runtime_env
        self._seats: dict[int, _Seat] = {}
        self._lives = 0
        self._ended: deque[tuple[int, int, str]] = deque()
        self._news: list[Event] = []
        self._block: Block | None = None
        self._plane: Any = None
        self._cluster: Cluster | None = None
        self._wake = (-1, -1)

    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        """Connect to Ray, make the slots, listen, and ask for workers."""
        self._cluster = Cluster(self.address, cpus=seats * self.cpus, runtime_env=self.runtime_env)
        self._ray = self._cluster.connect()
        self._wake = os.pipe()
        for end in self._wake:
            os.set_blocking(end, False)
        self._block, made, room = build(spec, slots)
        if self.data_plane == "zeromq":
            from .zeromq import Hub

            host = self.host or self._cluster.host
            room = room if self.shared else None
            self._plane = Hub(spec, made, host=host, bf16=self.bf16, silence=self.silence, room=room)
        else:
            self._plane = Objects(self._ray, spec, made, self._alarm, self.bf16)
        self._spec = self._ray.put(spec)
        self._poller = _Poller(self._plane, self._wake[0])
        for seat in range(seats):
            self.restart(seat)
        return made

    def _alarm(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # a full pipe wakes as well
            os.write(self._wake[1], b"!")

    def restart(self, seat: int) -> None:
        """Ask Ray for a worker; it is ready once Ray has found room for it and it has come to the server."""
        if seat in self._seats:
            raise ValueError(f"Seat {seat} has a worker: kill it, and wait for Died, before another one takes it")
        ray, options = self._ray, {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": self.resources}
        options |= {"scheduling_strategy": "SPREAD"}
        self._lives += 1
        life = self._lives
        if self.data_plane == "zeromq":
            ended = ray.remote(work).options(max_retries=0, **options).remote(self._plane.admit(seat), self._spec)
            self._seats[seat] = _Seat(life, partial(ray.cancel, ended, force=True))
        else:
            actor = ray.remote(ObjectWorker).options(max_restarts=0, max_concurrency=2, **options).remote()
            ended = actor.hold.remote()
            self._plane.seat(seat, actor, self._spec)
            self._seats[seat] = _Seat(life, partial(ray.kill, actor))

        def told(future: Any) -> None:
            self._ended.append((seat, life, _why(future.exception())))
            self._alarm()

        ended.future().add_done_callback(told)

    def submit(self, seat: int, job: Job) -> None:
        """Send a job and, where memory is not shared, its points."""
        if seat in self._seats:
            self._plane.send(seat, job)

    def events(self, timeout: float | None = None) -> list[Event]:
        """Wait for what workers say, for their ends as Ray and the system tell them, and for silence."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        found = self._collect()
        while not found and (left := until - time.monotonic()) > 0:
            self._poller.wait(min(left, self.silence / 4))
            found = self._collect()
        return found

    def _collect(self) -> list[Event]:
        found, self._news = self._news, []
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake[0], 4096)
        for event in self._plane.receive():
            if isinstance(event, Ready) and self._plane.shares(event.seat):
                place = self._seats[event.seat]
                try:
                    place.pidfd = os.pidfd_open(event.pid)
                except OSError:
                    found.append(self._end(event.seat, "ended as soon as it was ready"))
                    continue
                self._poller.watch(place.pidfd)
            found.append(event)
        over = self._over()
        found += [self._end(seat, reason, gone=True) for seat, reason in over.items()]
        reasons = dict(self._plane.broken)
        reasons |= dict.fromkeys(self._plane.silent(), f"not heard of for {self.silence:g} s")
        for seat in self._poller.ended(self._seats):
            reasons.setdefault(seat, "its process has ended")
        return found + [self._end(seat, reason) for seat, reason in reasons.items()]

    def _over(self) -> dict[int, str]:
        """Return the seats whose workers have ended, as Ray says."""
        over = {}
        while self._ended:
            seat, life, reason = self._ended.popleft()
            if seat in self._seats and self._seats[seat].life == life:
                over[seat] = reason
        return over

    def _end(self, seat: int, reason: str, gone: bool = False) -> Died:
        """Make sure that a worker is gone, or at least that nothing it does can reach a slot."""
        place = self._seats.pop(seat)
        self._plane.dismiss(seat)
        if not gone:
            with contextlib.suppress(Exception):  # it may be gone, and so may the cluster
                place.stop()
        if place.pidfd >= 0:
            self._poller.forget(place.pidfd)
            if not gone and not select.select([place.pidfd], [], [], _END)[0]:
                # It can write into our memory for as long as it lives.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(place.pidfd, signal.SIGKILL)
                select.select([place.pidfd], [], [])
            os.close(place.pidfd)
        return Died(seat, reason)

    def kill(self, seat: int) -> None:
        """End a worker; one that cannot be reached is not listened to any more."""
        if seat in self._seats:
            self._news.append(self._end(seat, "killed"))

    def close(self) -> None:
        """End all workers, stop listening, and leave Ray as it was found."""
        if self._plane is not None:
            self._leave()
            self._plane.close()
            self._plane = None
        if self._block is not None:
            self._block.close()
            self._block = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        if self._wake[0] >= 0:
            for end in self._wake:
                os.close(end)
            self._wake = (-1, -1)

    def _leave(self) -> None:
        """Let workers leave by themselves, for the processes can be used again, and end those who do not."""
        for seat in self._seats:
            self._plane.release(seat)
        until = time.monotonic() + _LEAVE
        while True:
            for seat, reason in self._over().items():
                self._end(seat, reason, gone=True)
            left = until - time.monotonic()
            if not self._plane.leaving(self._seats) or left <= 0:
                break
            select.select([self._wake[0]], [], [], left)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake[0], 4096)
        for seat in list(self._seats):
            self._end(seat, "closed")


class _Poller:
    """Waits for the network, for Ray's threads and for the ends of processes at once."""

    def __init__(self, plane: Any, wake: int) -> None:
        import zmq

        self._poller: Any = zmq.Poller()
        self._in = zmq.POLLIN
        if hasattr(plane, "socket"):
            self._poller.register(plane.socket, self._in)
        self._poller.register(wake, self._in)

    def watch(self, fd: int) -> None:
        self._poller.register(fd, self._in)

    def forget(self, fd: int) -> None:
        self._poller.unregister(fd)

    def wait(self, seconds: float) -> None:
        self._poller.poll(math.ceil(1000 * seconds))

    def ended(self, seats: Mapping[int, _Seat]) -> list[int]:
        fds = {place.pidfd: seat for seat, place in seats.items() if place.pidfd >= 0}
        ready, _, _ = select.select(list(fds), [], [], 0)
        return [fds[fd] for fd in ready]


def _why(error: BaseException | None) -> str:
    """Say in a line how a worker ended."""
    if error is None:
        return "it has left"
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):  # what its code raised, as Ray brought it here
        return f"could not go on: {type(cause).__name__}: {cause}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "cause" in line.lower()), lines[0] if lines else type(error).__name__)[:500]
