"""Workers on a Ray cluster: Ray places, starts and supervises them; tensors do not go through Ray."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..._util.checks import AT_LEAST_ZERO, POSITIVE, checked_flag
from ..._util.extras import needs
from ..._util.memory import check_memory
from ..._util.warn import warn
from ..base import Died, Engine, Event, Job, Ready, Slot, WorkerSpec
from ..memory import Block
from .cluster import Cluster, ending
from .credentials import WorkerCredentials, create_slots, maps_block
from .object_store import Objects, ObjectWorker

__all__ = ["RayEngine", "work"]

_END_SECONDS = 2.0  # time a process has to end when Ray asks it to, before it gets SIGKILL
_KILL_SECONDS = 10.0  # time to wait for a process that got SIGKILL
_LEAVE_SECONDS = 1.0  # time workers have at the end to finish their jobs
_PROCESS_BYTES = 32 << 20  # what a worker process of Ray has for itself, at the least


def work(credentials: WorkerCredentials, spec: WorkerSpec) -> None:
    """Run a worker in a Ray process until its connection to the server ends.

    After a regular end Ray keeps the process, with torch loaded, and the next worker starts quickly.
    """
    from .link import LostError, serve

    threads = torch.get_num_threads()
    torch.set_num_threads(spec.threads)
    try:
        released = serve(credentials, spec)
    except LostError:
        released = False
    finally:
        torch.set_num_threads(threads)
    if not released:  # Ray may be about to kill this process, which must not have the next worker in it
        os._exit(1)


@dataclass
class _RayWorker:
    """A worker, from the request to Ray on."""

    life: int
    stop: Callable[[], None]
    pid: int = 0
    pidfd: int = -1


class RayEngine(Engine):
    """One Ray task per worker, on any node with free resources.

    Points and gradients do not go through Ray. A worker on the server's machine uses the server's memory, as with
    `latecomer.engines.local`. All others have an encrypted ZeroMQ connection; its keys are made for one worker process
    and passed on by Ray. Ray reports the death of a process or a node. A worker that is silent for too long counts as
    dead too, and its later messages are ignored.

    Args:
        address: ``"auto"`` or the address of a cluster; None to start Ray on this machine, for this run only.
        cpus: CPUs per worker.
        gpus: GPUs per worker.
        resources: Other resources per worker, by their names in the cluster.
        data_plane: ``"zeromq"``, or ``"object-store"`` if workers cannot reach any port of the server.
        bf16: Send points and gradients as bfloat16: half the bytes, rounded. A replay rounds in the same way.
        shared: Whether workers on the server's machine may use its memory.
        host: Address on which the server listens; by default Ray's address of its node.
        silence: Seconds without a message after which a worker counts as dead; raise it for unreliable networks.
        runtime_env: Ray's runtime environment of the workers, for example ``{"working_dir": "."}``.

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
        self.address, self.host = _checked_text("address", address), _checked_text("host", host)
        self.cpus, self.gpus = AT_LEAST_ZERO.check("cpus", cpus), AT_LEAST_ZERO.check("gpus", gpus)
        self.resources, self.runtime_env = _amounts(resources), _environment(runtime_env)
        self.data_plane, self.bf16, self.shared = data_plane, checked_flag("bf16", bf16), checked_flag("shared", shared)
        self.silence = POSITIVE.check("silence", silence)
        self._seats: dict[int, _RayWorker] = {}
        self._started = 0
        self._ended: deque[tuple[int, int, str]] = deque()
        self._events: list[Event] = []
        self._block: Block | None = None
        self._plane: Any = None
        self._cluster: Cluster | None = None
        self._wake, self._lock = (-1, -1), threading.Lock()
        self._workers = 0

    on_this_machine = False

    def check_workers(self, workers: int) -> None:
        """Refuse more workers than this machine has memory for, if Ray is started on it; a cluster may grow."""
        super().check_workers(workers)
        if self.address is None:
            check_memory(workers * _PROCESS_BYTES, f"{workers:,} Ray workers", "use fewer workers")

    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        """Connect to Ray, create the slots, listen, and request workers."""
        self._workers = seats - spec.evaluators
        if spec.device.startswith("cuda") and not self.gpus:
            raise ValueError(f"device={spec.device!r} needs GPUs from Ray: pass RayEngine(gpus=1), or --gpus 1")
        if spec.device == "cpu" and self.gpus:
            raise ValueError(
                f"gpus={self.gpus:g} reserves GPUs, and device='cpu' does not use them: pass device='auto', or no gpus"
            )
        try:
            return self._start(spec, seats, slots)
        except BaseException:
            self.close()
            raise

    def _start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        needs = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        needs = {name: round(each * self._workers, 4) for name, each in needs.items() if each}  # Ray's precision
        if 0 < self.gpus < 1:  # a worker's fraction is on one GPU
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
        """Wake `events`; Ray's threads call this at any time."""
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes it too
            if self._wake[1] >= 0:
                os.write(self._wake[1], b"!")

    def restart(self, seat: int) -> None:
        """Request a worker from Ray; it is ready when it runs and has connected to the server."""
        if seat in self._seats:
            raise ValueError(f"Seat {seat} has a worker: kill it and wait for Died before starting another")
        ray, options = self._ray, {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": self.resources}
        if seat >= self._workers:  # it only evaluates, and the run may wait for it: it must fit without free resources
            options = {"num_cpus": 0, "num_gpus": 0}
        options |= {"scheduling_strategy": "SPREAD"}
        self._started += 1
        life = self._started
        if self.data_plane == "zeromq":
            ended = ray.remote(work).options(max_retries=0, **options).remote(self._plane.admit(seat), self._spec)
            self._seats[seat] = _RayWorker(life, partial(ray.cancel, ended, force=True))
        else:
            actor = ray.remote(ObjectWorker).options(max_restarts=0, max_concurrency=2, **options).remote()
            ended = actor.hold.remote()
            self._plane.start_worker(seat, actor, self._spec)
            self._seats[seat] = _RayWorker(life, partial(ray.kill, actor))

        def report_end(future: Any) -> None:
            self._ended.append((seat, life, ending(future.exception())))
            self._alarm()

        ended.future().add_done_callback(report_end)

    def submit(self, seat: int, job: Job) -> None:
        """Send a job and, where memory is not shared, its points."""
        if seat in self._seats:
            self._plane.send(seat, job)

    def events(self, timeout: float | None = None) -> list[Event]:
        """Wait for messages of workers, for deaths reported by Ray or the system, and for silence."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        found = self._collect()
        while not found and (left := until - time.monotonic()) > 0:
            self._poller.wait(min(left, self.silence / 4))
            found = self._collect()
        return found

    def _collect(self) -> list[Event]:
        found, self._events = self._events, []
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake[0], 4096)
        for event in self._plane.receive():
            if isinstance(event, Ready) and self._plane.shares(event.seat):
                problem = self._watch(event)
                if problem:
                    found.append(self._end(event.seat, problem))
                    continue
            found.append(event)
        over = self._over()
        found += [self._end(seat, reason, already_ended=True) for seat, reason in over.items()]
        reasons = dict(self._plane.broken)
        reasons |= dict.fromkeys(self._plane.silent(), f"no message for {self.silence:g} s")
        for seat in self._poller.ended(self._seats):
            reasons.setdefault(seat, "its process has ended")
        return found + [self._end(seat, reason) for seat, reason in reasons.items()]

    def _watch(self, event: Ready) -> str:
        """Watch the process of a worker that uses the server's memory; return what is wrong with it, if anything.

        The engine may kill this process later. So it opens the pidfd first, then checks that it is the right process.
        """
        if event.pid == os.getpid() or any(other.pid == event.pid for other in self._seats.values()):
            return "it reported the pid of another process"
        try:
            pidfd = os.pidfd_open(event.pid)
        except OSError:
            return "ended as soon as it was ready"
        if self._block is None or not maps_block(event.pid, self._block):
            ended = bool(_readable([pidfd], 0))
            os.close(pidfd)
            return "ended as soon as it was ready" if ended else "it reported the pid of another process"
        worker = self._seats[event.seat]
        worker.pid, worker.pidfd = event.pid, pidfd
        self._poller.watch(pidfd)
        return ""

    def _over(self) -> dict[int, str]:
        """Return the seats whose workers have ended, with Ray's reasons."""
        over = {}
        while self._ended:
            seat, life, reason = self._ended.popleft()
            if seat in self._seats and self._seats[seat].life == life:
                over[seat] = reason
        return over

    def _end(self, seat: int, reason: str, already_ended: bool = False) -> Died:
        """End a worker, or at least make sure that it cannot write into a slot any more."""
        worker = self._seats.pop(seat)
        try:
            self._plane.dismiss(seat)
        finally:
            if not already_ended:
                with contextlib.suppress(Exception):  # worker or cluster may be gone already
                    worker.stop()
            if worker.pidfd >= 0:
                self._end_process(worker.pidfd, already_ended)
        return Died(seat, reason)

    def _end_process(self, pidfd: int, already_ended: bool) -> None:
        """Wait for the end of a process, and kill it if necessary: until then it can write into the server's memory."""
        try:
            self._poller.forget(pidfd)
            if not already_ended and not _readable([pidfd], _END_SECONDS):
                with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                _readable([pidfd], _KILL_SECONDS)
        finally:
            os.close(pidfd)

    def kill(self, seat: int) -> None:
        """End a worker; if it cannot be reached, its later messages are ignored."""
        if seat in self._seats:
            self._events.append(self._end(seat, "killed"))

    def close(self) -> None:
        """End all workers, stop listening and disconnect from Ray; every step runs even if another one fails."""
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
        """Close the pipe; a late thread must not write to another file that gets its descriptor."""
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
        """Let workers end by themselves, so that Ray can use their processes again."""
        for seat in self._seats:
            self._plane.release(seat)
        until = time.monotonic() + _LEAVE_SECONDS
        while True:
            for seat, reason in self._over().items():
                self._end(seat, reason, already_ended=True)
            left = until - time.monotonic()
            if not self._plane.leaving(self._seats) or left <= 0:
                return
            _readable([self._wake[0]], left)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake[0], 4096)


class _Poller:
    """Waits for the network, for Ray's threads and for ends of processes at once."""

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

    def ended(self, seats: Mapping[int, _RayWorker]) -> list[int]:
        fds = {worker.pidfd: seat for seat, worker in seats.items() if worker.pidfd >= 0}
        return [fds[fd] for fd in _readable(fds, 0)]


def _readable(fds: Iterable[int], seconds: float) -> list[int]:
    """Return the descriptors that can be read within some seconds; a pidfd is readable when its process has ended."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(math.ceil(1000 * seconds))]


def _warn_if_short(has: Mapping[str, float], needs: Mapping[str, float], workers: int) -> None:
    """Warn if the cluster has too few resources for all workers now; nodes may still be added."""
    for name, needed in needs.items():
        available = has.get(name, 0.0)
        if available < needed:
            what = f"{available:g} {name}s" if name in ("CPU", "GPU") else f"{available:g} of {name!r}"
            who = f"{workers} worker{'s need' if workers > 1 else ' needs'} {needed:g}"
            warn(f"The cluster has {what}, and {who}: the others wait for more nodes")
            return


# ---- checks of the arguments --------------------------------------------------------------------------------------


def _checked_text(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    kind = ValueError if isinstance(value, str) else TypeError
    raise kind(f"Invalid {name} value: {value!r} (expected text, or None)")


def _amounts(value: Any) -> dict[str, float]:
    """Check the resources."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise TypeError(f"Invalid resources value: {value!r} (expected names and amounts, for example {{'tpu': 1}})")
    for name in ("CPU", "GPU"):
        if name in value:
            raise ValueError(f"Invalid resources value: {name!r} (expected other resources; use {name.lower()}s=)")
    return {name: POSITIVE.check(f"resources[{name!r}]", amount) for name, amount in value.items()}


def _environment(value: Any) -> dict[str, Any] | None:
    """Check a runtime_env as far as possible without Ray."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        kind = type(value).__name__
        raise TypeError(f"Invalid runtime_env value: {value!r} (expected a mapping as Ray documents it, got {kind})")
    return dict(value)
