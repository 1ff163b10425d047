"""Workers as processes on this machine: slots in shared memory, pipes for control, no sockets."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import resource
import select
import selectors
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, spawn
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from .._util.memory import check_memory
from .base import Died, Engine, Event, Failed, Job, Slot, WorkerSpec
from .codec import SHARED, Layout, event_of, head_of, job_of, pack_head, unpack_head
from .memory import Block, allocate, slots_of
from .payload import Payload
from .prefetch import die_with_parent
from .worker import Worker, failure

__all__ = ["LocalEngine"]

_START = 2**64 - 1  # ticket number of a worker that fails before its first ticket
_NAME = "latecomer worker"  # process names begin with it
_START_LOCK = threading.Lock()
_PROCESS_BYTES = 8 << 20  # what even the smallest worker has for itself, measured
_FILES = 4  # per worker: two pipes, a sentinel, and one more while it starts
_STARTS = 6
_UNKNOWN_CODE = 255  # what Python reports for a process whose fork server is gone
_GONE_SECONDS = 1.0  # longest time from the closing of a fork server's files to its end
_GONE_POLL_SECONDS = 0.01
_IMPORTED_IN = os.getpid()  # in a worker: its fork server, which has imported this module for it
_END_SECONDS = 10.0


@dataclass
class _WorkerProcess:
    """A worker process and its pipes."""

    process: ForkServerProcess
    jobs: Connection
    answers: Connection
    fork_server: int | None = None
    start_time: str = ""
    start_error: str = ""


class LocalEngine(Engine):
    """One process per worker, on this machine.

    Processes come from a fork server that has imported torch once, so a new one starts in a fraction of a second.
    Points, gradients and statistics are in one block of anonymous shared memory. The worker's parameters are views of
    its slot's point, backward writes into its slot's gradient, and the server's optimizer reads it there. Jobs and
    answers are a few bytes through pipes. The memory has no name, so none can be left behind, and workers end with the
    server, even if it is killed. Python's fork server listens on a socket in the temporary folder, for this user only;
    a killed server leaves that empty entry behind.

    Examples:
        >>> import latecomer as lc
        >>> spec = WorkerSpec(lc.problems.quadratic(noise=0.0), size=10, dtype=torch.float64)
        >>> with LocalEngine() as engine:
        ...     slot = engine.start(spec, seats=1, slots=1)[0]
        ...     ready = engine.events()
        ...     _ = slot.points[0].fill_(5.0)
        ...     engine.submit(0, Job(number=0, slot=0))
        ...     answer = engine.events()[0]
        ...     answer.number, answer.finite
        (0, True)
    """

    def __init__(self) -> None:
        self._seats: dict[int, _WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._block: Block | None = None
        self._payload: Payload | None = None
        self._slots: list[Slot] = []

    def check_workers(self, workers: int) -> None:
        """Refuse more processes than the system has memory, files or process numbers for."""
        what, remedy = f"{workers:,} worker processes", "use fewer workers"
        check_memory(workers * _PROCESS_BYTES, what, remedy)
        limits = {
            resource.RLIMIT_NOFILE: (workers * _FILES, "open files"),
            resource.RLIMIT_NPROC: (workers, "processes"),
        }
        for limit, (needed, things) in limits.items():
            most, _ = resource.getrlimit(limit)
            if most != resource.RLIM_INFINITY and needed > most:
                raise ValueError(f"{what} need {needed:,} {things}, and this process may have {most:,}: {remedy}")

    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        """Create the memory, then start the processes."""
        if multiprocessing.current_process().name.startswith(_NAME):
            raise ValueError(
                "A module that a worker imports calls fit: put the call under `if __name__ == '__main__':`, or into a "
                "function"
            )
        _, size = slots_of(spec, slots)
        check_memory(size, f"The points and gradients of {seats:,} workers", "use fewer workers")
        self._payload = Payload(spec)
        self._count = slots
        self._block = allocate(size)
        self._slots, _ = slots_of(spec, slots, self._block)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["latecomer.engines.local"])
        for seat in range(seats):
            self.restart(seat)
        return self._slots

    def restart(self, seat: int) -> None:
        """Start a process in this seat."""
        if seat in self._seats:
            raise ValueError(f"Seat {seat} has a worker: kill it and wait for Died before starting another")
        worker_jobs, jobs = self._context.Pipe(duplex=False)
        answers, worker_answers = self._context.Pipe(duplex=False)
        process = self._started(seat, worker_jobs, worker_answers)
        worker_jobs.close()
        worker_answers.close()
        self._seats[seat] = _WorkerProcess(process, jobs, answers, _fork_server(), _start_time(process.pid or 0))
        self._selector.register(answers, selectors.EVENT_READ, (seat, True))
        self._selector.register(process.sentinel, selectors.EVENT_READ, (seat, False))

    def _started(self, seat: int, jobs: Connection, answers: Connection) -> ForkServerProcess:
        """Start a process; a fork server that has been killed is replaced."""
        arguments = (seat, jobs, answers, self._block, self._payload, self._count)
        for attempt in range(_STARTS):
            name = f"{_NAME} {seat}"
            process = self._context.Process(target=_serve, args=arguments, name=name, daemon=True)
            try:
                with _without_main_script():
                    process.start()
                return process
            except (EOFError, ConnectionError, FileNotFoundError) as error:
                # The fork server ended between two calls. Python starts another one as soon as it has noticed.
                reason = error
                time.sleep(0.02 * 2**attempt)
            except OSError as error:
                raise ValueError(f"A worker process cannot be started ({error.strerror}): use fewer workers") from error
        raise ValueError(f"The fork server has ended {_STARTS} times in a row ({reason!r}): is memory running out?")

    def submit(self, seat: int, job: Job) -> None:
        """Write a job into the worker's pipe."""
        if seat in self._seats:
            with contextlib.suppress(BrokenPipeError):  # it has just died; `events` reports that
                self._seats[seat].jobs.send_bytes(pack_head(head_of(job)))

    def events(self, timeout: float | None = None) -> list[Event]:
        """Wait for answers and for deaths of processes at once."""
        found: list[Event] = []
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not found:
            left = None if timeout is None else max(0.0, until - time.monotonic())
            ready = self._selector.select(left)
            ended = []
            for key, _ in ready:
                seat, answered = key.data
                if answered:
                    self._read(seat, found)
                else:
                    ended.append(seat)
            for seat in ended:  # its last answers come before its death
                while self._read_if_any(seat, found):
                    pass
                found.append(Died(seat, self._reap(seat)))
            if not ready and time.monotonic() >= until:
                break
        return found

    def _read_if_any(self, seat: int, found: list[Event]) -> bool:
        try:
            waiting = self._seats[seat].answers.poll()
        except OSError:
            return False
        return waiting and self._read(seat, found)

    def _read(self, seat: int, found: list[Event]) -> bool:
        """Read one answer; False if the pipe has ended."""
        worker = self._seats[seat]
        try:
            event = event_of(seat, unpack_head(worker.answers.recv_bytes(), limit=0))
        except (EOFError, OSError):
            if worker.answers.fileno() in self._selector.get_map():  # the sentinel reports its death
                self._selector.unregister(worker.answers)
            return False
        if isinstance(event, Failed) and event.number == _START:
            worker.start_error = event.reason
        else:
            found.append(event)
        return True

    def _reap(self, seat: int) -> str:
        """Release the resources of a process that has ended, and return how it ended."""
        worker = self._seats.pop(seat)
        worker.process.join()
        code = worker.process.exitcode or 0
        without_server = code == _UNKNOWN_CODE and _is_gone_soon(worker.fork_server)
        if without_server:
            _end(worker.process.pid or 0, worker.start_time)
        self._selector.unregister(worker.process.sentinel)
        if worker.answers.fileno() in self._selector.get_map():
            self._selector.unregister(worker.answers)
        worker.jobs.close()
        worker.answers.close()
        worker.process.close()
        if without_server:
            return "killed with the fork server"
        if worker.start_error:
            return f"could not start: {worker.start_error}"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def kill(self, seat: int) -> None:
        """Send SIGKILL to the process."""
        if seat in self._seats:
            self._seats[seat].process.kill()

    def close(self) -> None:
        """Kill all workers, wait for their deaths, and free the memory."""
        for worker in self._seats.values():
            worker.process.kill()
        for seat in list(self._seats):
            self._reap(seat)
        self._selector.close()
        if self._block is not None:
            self._block.close()
        if self._payload is not None:
            self._payload.close()
        self._slots = []


@contextlib.contextmanager
def _without_main_script() -> Iterator[None]:
    """Start processes that do not import the main script: what they need of it is in the payload, by value.

    Python's fork server imports it into every process, with no way to say otherwise. A script without
    ``if __name__ == "__main__":`` would start again in every worker.
    """
    original = spawn.get_preparation_data

    def prepared(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        if name.startswith(_NAME):  # another thread may be starting processes of its own
            data.pop("init_main_from_path", None)
            data.pop("init_main_from_name", None)
        return data

    with _START_LOCK:
        spawn.get_preparation_data = prepared
        try:
            yield
        finally:
            spawn.get_preparation_data = original


def _serve(seat: int, jobs: Connection, answers: Connection, block: Block, payload: Payload, count: int) -> None:
    """Compute jobs in a worker process until the pipe of jobs is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    # Its parent is the fork server, which ends with the server's process.
    die_with_parent(os.getppid() if os.getpid() == _IMPORTED_IN else _IMPORTED_IN)
    try:
        spec: WorkerSpec = payload.load()
        torch.set_num_threads(spec.threads)
        layout = Layout(spec)
        worker: Any = Worker(spec, slots_of(spec, count, block)[0], seat)
    except BaseException as error:
        answers.send_bytes(pack_head(head_of(failure(seat, _START, error))))
        sys.exit(1)
    try:
        answers.send_bytes(pack_head(head_of(worker.ready)))
        while True:
            job = job_of(unpack_head(jobs.recv_bytes(), limit=0))
            answers.send_bytes(pack_head(layout.answer_head(worker(job), SHARED)))
    except (EOFError, BrokenPipeError):  # the server is gone
        return


def _fork_server() -> int | None:
    """Return the process of Python's fork server."""
    return getattr(forkserver._forkserver, "_forkserver_pid", None)


def _is_gone(server: int | None) -> bool:
    """Whether a fork server has ended; if there is no new one yet, its exit code is left for Python to read."""
    if server is None or server != _fork_server():
        return True
    try:
        return os.waitid(os.P_PID, server, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
    except AttributeError:  # not Linux
        return False


def _is_gone_soon(server: int | None) -> bool:
    """Whether a fork server has ended, or does so now: its files, on which its workers are seen to end, close first."""
    until = time.monotonic() + _GONE_SECONDS
    while not _is_gone(server):
        if time.monotonic() >= until:
            return False
        time.sleep(_GONE_POLL_SECONDS)
    return True


def _start_time(pid: int) -> str:
    """Return when a process started, in ticks since the system did; empty if it is gone, or without /proc."""
    try:
        # The name of the program, in parentheses, may have spaces. The start time is field 22, the state field 3.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _end(pid: int, start_time: str) -> None:
    """Kill a worker whose fork server is gone, and wait: nothing may write to its slot any more.

    Nobody keeps its number for it any more, so another process may have it now. That one started at another time.
    """
    with contextlib.suppress(OSError, AttributeError):  # it is gone already; or not Linux
        waiting = os.pidfd_open(pid)
        try:
            if start_time and _start_time(pid) == start_time:
                signal.pidfd_send_signal(waiting, signal.SIGKILL)
                select.select([waiting], [], [], _END_SECONDS)
        finally:
            os.close(waiting)
