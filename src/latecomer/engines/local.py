"""Workers as processes of this machine: slots in shared memory, pipes for control, no socket."""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import selectors
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import torch

from .base import Died, Engine, Event, Failed, Job, Ready, Slot, WorkerSpec
from .codec import SHARED, Layout, event_of, head_of, job_of, pack_head, unpack_head
from .memory import Block, allocate, slots_of
from .payload import Payload
from .worker import Worker, failure

__all__ = ["LocalEngine"]

_START = 2**64 - 1  # stands for the ticket of a worker that fails before it has one
_PR_SET_PDEATHSIG = 1


@dataclass
class _Seat:
    """A worker process and the pipes to it."""

    process: ForkServerProcess
    orders: Connection
    answers: Connection
    why: str = ""


class LocalEngine(Engine):
    """One process a worker on this machine.

    Processes come from a fork server that has imported torch once, so a new one takes a fraction of a second. Points,
    gradients and statistics lie in one block of anonymous shared memory: the worker's parameters are views of its
    slot's point and backward writes into its slot's gradient, which the server's optimizer reads where it is. Jobs and
    answers are a few bytes through pipes. The memory has no name, so none can be left behind, and workers end with
    the server, however it ends. Python's fork server listens on a socket of its own in the temporary folder, for this
    user alone; a server that was killed leaves that empty entry there.

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
        self._seats: dict[int, _Seat] = {}
        self._selector = selectors.DefaultSelector()
        self._block: Block | None = None
        self._payload: Payload | None = None
        self._slots: list[Slot] = []

    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        """Make the memory, then the processes."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker that imports the main script
            raise ValueError("A worker process was about to start workers: put `if __name__ == '__main__':` around fit")
        self._payload = Payload(spec)
        self._count = slots
        _, size = slots_of(spec, slots)
        self._block = allocate(size)
        self._slots, _ = slots_of(spec, slots, self._block)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["latecomer.engines.local"])
        for seat in range(seats):
            self.restart(seat)
        return self._slots

    def restart(self, seat: int) -> None:
        """Start a process."""
        if seat in self._seats:
            raise ValueError(f"Seat {seat} has a worker: kill it, and wait for Died, before another one takes it")
        theirs_orders, orders = self._context.Pipe(duplex=False)
        answers, theirs_answers = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_serve,
            args=(seat, theirs_orders, theirs_answers, self._block, self._payload, self._count),
            name=f"latecomer worker {seat}",
            daemon=True,
        )
        process.start()
        theirs_orders.close()
        theirs_answers.close()
        self._seats[seat] = _Seat(process, orders, answers)
        self._selector.register(answers, selectors.EVENT_READ, (seat, True))
        self._selector.register(process.sentinel, selectors.EVENT_READ, (seat, False))

    def submit(self, seat: int, job: Job) -> None:
        """Write a job into a worker's pipe."""
        if seat in self._seats:
            with contextlib.suppress(BrokenPipeError):  # it has just died, as `events` will say
                self._seats[seat].orders.send_bytes(pack_head(head_of(job)))

    def events(self, timeout: float | None = None) -> list[Event]:
        """Wait on all pipes and all ends of processes at once."""
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
            for seat in ended:  # what it said before it died comes first
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
        place = self._seats[seat]
        try:
            event = event_of(seat, unpack_head(place.answers.recv_bytes(), limit=0))
        except (EOFError, OSError):
            if place.answers.fileno() in self._selector.get_map():  # its death is reported by its sentinel
                self._selector.unregister(place.answers)
            return False
        if isinstance(event, Failed) and event.number == _START:
            place.why = event.reason
        else:
            found.append(event)
        return True

    def _reap(self, seat: int) -> str:
        """Clear up after a process that has ended, and say how it did."""
        place = self._seats.pop(seat)
        place.process.join()
        code = place.process.exitcode or 0
        self._selector.unregister(place.process.sentinel)
        if place.answers.fileno() in self._selector.get_map():
            self._selector.unregister(place.answers)
        place.orders.close()
        place.answers.close()
        place.process.close()
        if place.why:
            return f"could not start: {place.why}"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def kill(self, seat: int) -> None:
        """SIGKILL."""
        if seat in self._seats:
            self._seats[seat].process.kill()

    def close(self) -> None:
        """Kill all, wait for their ends, let go of the memory."""
        for place in self._seats.values():
            place.process.kill()
        for seat in list(self._seats):
            self._reap(seat)
        self._selector.close()
        if self._block is not None:
            self._block.close()
        if self._payload is not None:
            self._payload.close()
        self._slots = []


def _serve(seat: int, orders: Connection, answers: Connection, block: Block, payload: Payload, count: int) -> None:
    """Do jobs until there are no more orders: the life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    _die_with_the_server()
    torch.set_num_threads(1)
    try:
        spec: WorkerSpec = payload.load()
        layout = Layout(spec)
        worker: Any = Worker(spec, slots_of(spec, count, block)[0], seat)
    except BaseException as error:
        answers.send_bytes(pack_head(head_of(failure(seat, _START, error))))
        sys.exit(1)
    try:
        answers.send_bytes(pack_head(head_of(Ready(seat, os.getpid()))))
        while True:
            job = job_of(unpack_head(orders.recv_bytes(), limit=0))
            answers.send_bytes(pack_head(layout.answer_head(worker(job), SHARED)))
    except (EOFError, BrokenPipeError):  # the server is gone
        return


def _die_with_the_server() -> None:
    """Ask Linux to end this process when its parent ends: the fork server, which ends with the server's process."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
