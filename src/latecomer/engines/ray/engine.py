"""Workers on a Ray cluster: Ray places, starts and supervises them; tensors take a way of their own."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..._util.checks import AT_LEAST_ZERO, POSITIVE, checked_flag
from ..._util.extras import needs
from ..base import Died, Engine, Event, Job, Ready, Slot, WorkerSpec
from ..memory import Block
from .cluster import Cluster, ending
from .credentials import WorkerCredentials, create_slots, maps_block
from .object_store import Objects, ObjectWorker

__all__ = ["RayEngine", "work"]

_END = 2.0  # seconds a process may take to end when Ray asks it to, before it gets SIGKILL
_GONE = 10.0  # seconds until a process that got SIGKILL is gone; what it has not done by then it never will
_LEAVE = 1.0  # seconds workers have in the end to finish what they do


def work(credentials: WorkerCredentials, spec: WorkerSpec) -> None:
    """Be a worker for as long as the connection to the server stands; what Ray runs in a process of its own.

    A process that comes to the end of it in peace is kept by Ray, with torch in it, and the next worker starts at once.
    """
    from .link import LostError, serve

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        in_peace = serve(credentials, spec)
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
    pid: int = 0
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
        self.address, self.host = _words("address", address), _words("host", host)
        self.cpus, self.gpus = AT_LEAST_ZERO.check("cpus", cpus), AT_LEAST_ZERO.check("gpus", gpus)
        self.resources, self.runtime_env = _amounts(resources), _environment(runtime_env)
        self.data_plane, self.bf16, self.shared = data_plane, checked_flag("bf16", bf16), checked_flag("shared", shared)
        self.silence = POSITIVE.check("silence", silence)
        self._seats: dict[int, _Seat] = {}
        self._lives = 0
        self._ended: deque[tuple[int, int, str]] = deque()
        self._news: list[Event] = []
        self._block: Block | None = None
        self._plane: Any = None
        self._cluster: Cluster | None = None
        self._wake, self._lock = (-1, -1), threading.Lock()
        self._workers = 0

    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        """Connect to Ray, make the slots, listen, and ask for workers."""
        self._workers = seats - spec.evaluators
        try:
            return self._start(spec, seats, slots)
        except BaseException:
            self.close()
            raise

    def _start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        needs = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        needs = {name: round(each * self._workers, 4) for name, each in needs.items() if each}  # as fine as Ray counts
        if 0 < self.gpus < 1:  # nobody has parts of two
            needs["GPU"] = math.ceil(self._workers / int(1 / self.gpus + 1e-9))
        others = {name: needs[name] for name in self.resources}
        self._cluster = Cluster(
            self.address, cpus=needs.get("CPU", 1), gpus=needs.get("GPU", 0), resources=others,
            runtime_env=self.runtime_env,
        )  # fmt: skip
        self._ray = self._cluster.connect()
        if not self._cluster.new:
            _warn_if_short(self._ray.cluster_resources(), needs, self._workers)
        self._wake = os.pipe()
        for end in self._wake:
            os.set_blocking(end, False)
        self._block, made, block_ref = create_slots(spec, slots)
        if self.data_plane == "zeromq":
            from .hub import Hub

            host = self.host or self._cluster.host
            block_ref = block_ref if self.shared else None
            self._plane = Hub(spec, made, host=host, bf16=self.bf16, silence=self.silence, block_ref=block_ref)
        else:
            self._plane = Objects(self._ray, spec, made, self._alarm, self.bf16)
        self._spec = self._ray.put(spec)
        self._poller = _Poller(self._plane, self._wake[0])
        for seat in range(seats):
            self.restart(seat)
        return made

    def _alarm(self) -> None:
        """Wake up whoever waits for events; Ray's threads do it too, at any time."""
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            if self._wake[1] >= 0:
                os.write(self._wake[1], b"!")

    def restart(self, seat: int) -> None:
        """Ask Ray for a worker; it is ready once Ray has found room for it and it has come to the server."""
        if seat in self._seats:
            raise ValueError(f"Seat {seat} has a worker: kill it, and wait for Died, before another one takes it")
        ray, options = self._ray, {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": self.resources}
        if seat >= self._workers:  # it evaluates only, now and then, and the run may wait for it: there must be room
            options = {"num_cpus": 0, "num_gpus": 0}
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
            self._ended.append((seat, life, ending(future.exception())))
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
                wrong = self._watch(event)
                if wrong:
                    found.append(self._end(event.seat, wrong))
                    continue
            found.append(event)
        over = self._over()
        found += [self._end(seat, reason, gone=True) for seat, reason in over.items()]
        reasons = dict(self._plane.broken)
        reasons |= dict.fromkeys(self._plane.silent(), f"not heard of for {self.silence:g} s")
        for seat in self._poller.ended(self._seats):
            reasons.setdefault(seat, "its process has ended")
        return found + [self._end(seat, reason) for seat, reason in reasons.items()]

    def _watch(self, event: Ready) -> str:
        """Watch the process of a worker that sees our memory, or say what is wrong with it.

        In the end the process may be killed, so it must be the one: first it is held, and then looked at.
        """
        if event.pid == os.getpid() or any(place.pid == event.pid for place in self._seats.values()):
            return "it gave the number of another process"
        try:
            pidfd = os.pidfd_open(event.pid)
        except OSError:
            return "ended as soon as it was ready"
        if self._block is None or not maps_block(event.pid, self._block):
            ended = bool(_readable([pidfd], 0))
            os.close(pidfd)
            return "ended as soon as it was ready" if ended else "it gave the number of another process"
        place = self._seats[event.seat]
        place.pid, place.pidfd = event.pid, pidfd
        self._poller.watch(pidfd)
        return ""

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
        try:
            self._plane.dismiss(seat)
        finally:
            if not gone:
                with contextlib.suppress(Exception):  # it may be gone, and so may the cluster
                    place.stop()
            if place.pidfd >= 0:
                self._end_process(place.pidfd, gone)
        return Died(seat, reason)

    def _end_process(self, pidfd: int, gone: bool) -> None:
        """Wait for the end of a process, and do not leave it at that: it can write into our memory while it lives."""
        try:
            self._poller.forget(pidfd)
            if not gone and not _readable([pidfd], _END):
                with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                _readable([pidfd], _GONE)
        finally:
            os.close(pidfd)

    def kill(self, seat: int) -> None:
        """End a worker; one that cannot be reached is not listened to any more."""
        if seat in self._seats:
            self._news.append(self._end(seat, "killed"))

    def close(self) -> None:
        """End all workers, stop listening, and leave Ray as it was found, each of it whatever else fails."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._close_wakeup_pipe)
            if self._cluster is not None:
                stack.callback(self._cluster.close)
            if self._block is not None:
                stack.callback(self._block.close)
            if self._plane is not None:
                stack.callback(self._plane.close)
                for seat in self._seats:
                    stack.callback(self._close, seat)
                stack.callback(self._leave)

    def _close_wakeup_pipe(self) -> None:
        """Close the pipe and forget the rest; nobody may write into what has the pipe's number next."""
        self._plane = self._block = self._cluster = None
        with self._lock:
            ends, self._wake = self._wake, (-1, -1)
        for end in ends:
            if end >= 0:
                os.close(end)

    def _close(self, seat: int) -> None:
        if seat in self._seats:
            self._end(seat, "closed")

    def _leave(self) -> None:
        """Let workers leave by themselves, for the processes can be used again."""
        for seat in self._seats:
            self._plane.release(seat)
        until = time.monotonic() + _LEAVE
        while True:
            for seat, reason in self._over().items():
                self._end(seat, reason, gone=True)
            left = until - time.monotonic()
            if not self._plane.leaving(self._seats) or left <= 0:
                return
            _readable([self._wake[0]], left)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake[0], 4096)


class _Poller:
    """Waits for the network, for Ray's threads and for the ends of processes at once."""

    def __init__(self, plane: Any, wake: int) -> None:
        with needs("ray", "pyzmq", "The Ray engine"):
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
        return [fds[fd] for fd in _readable(fds, 0)]


def _readable(fds: Iterable[int], seconds: float) -> list[int]:
    """Wait until one of these can be read, whatever their numbers are; of a process: until it has ended."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(math.ceil(1000 * seconds))]


def _warn_if_short(has: Mapping[str, float], needs: Mapping[str, float], workers: int) -> None:
    """Warn if there is no room for all workers now; more nodes may come."""
    for name, needed in needs.items():
        there = has.get(name, 0.0)
        if there < needed:
            what = f"{there:g} {name}s" if name in ("CPU", "GPU") else f"{there:g} of {name!r}"
            who = f"{workers} worker{'s need' if workers > 1 else ' needs'} {needed:g}"
            warnings.warn(f"The cluster has {what}, and {who}: who finds no room waits for more nodes", stacklevel=4)
            return


# ---- what it is told ----------------------------------------------------------------------------------------------


def _words(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    kind = ValueError if isinstance(value, str) else TypeError
    raise kind(f"Invalid {name} value: {value!r} (expected text, or None)")


def _amounts(value: Any) -> dict[str, float]:
    """Check resources."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise TypeError(f"Invalid resources value: {value!r} (expected names and amounts, for example {{'tpu': 1}})")
    for name in ("CPU", "GPU"):
        if name in value:
            raise ValueError(f"Invalid resources value: {name!r} (expected other resources; use {name.lower()}s=)")
    return {name: POSITIVE.check(f"resources[{name!r}]", amount) for name, amount in value.items()}


def _environment(value: Any) -> dict[str, Any] | None:
    """Check a runtime_env as far as one can without Ray."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        kind = type(value).__name__
        raise TypeError(f"Invalid runtime_env value: {value!r} (expected a mapping as Ray documents it, got {kind})")
    return dict(value)
