"""Tensors through Ray's object store: slower than sockets, but no open port is needed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..base import Done, Event, Job, Ready, Slot, WorkerSpec
from ..codec import BF16, NATIVE, FrameError, Layout, job_of, unpack_head
from ..memory import own_slot
from ..worker import Worker
from .cluster import assigned_device, ending

__all__ = ["ObjectWorker", "Objects"]


class ObjectWorker:
    """The Ray actor of a worker: one thread computes; another waits for ever, so that the server notices its end."""

    def start(self, seat: int, spec: WorkerSpec, encoding: int) -> tuple[int, str]:
        """Create the model; return the process and the kind of its device."""
        torch.set_num_threads(spec.threads)
        self._slot, self._layout, self._encoding = own_slot(spec), Layout(spec), encoding
        self._worker = Worker(spec, [self._slot], seat, assigned_device(spec.device))
        return self._worker.ready.pid, self._worker.ready.device

    def hold(self) -> None:
        """Wait for ever."""
        threading.Event().wait()

    def compute(self, head: bytes, *parts: Any) -> list[Any]:
        """Compute a job."""
        slot, layout = self._slot, self._layout
        job = job_of(unpack_head(head, layout.limit))
        layout.read_job(parts, job, slot)
        answer = self._worker(replace(job, slot=0))
        return [bytes(part) for part in layout.answer_message(answer, slot, self._encoding)]


class Objects:
    """The server's side: one actor call per job; its result is copied into the slot.

    Args:
        ray: Ray's module.
        spec: What every worker gets once.
        slots: The server's slots.
        wake: Called from any thread when there is something to receive.
        bf16: Send points and gradients as bfloat16.
    """

    def __init__(
        self, ray: Any, spec: WorkerSpec, slots: Sequence[Slot], wake: Callable[[], None], bf16: bool = False
    ) -> None:
        self._ray, self._slots, self._layout, self._wake = ray, slots, Layout(spec), wake
        self._encoding = BF16 if bf16 else NATIVE
        self._actors: dict[int, Any] = {}
        self._answers: deque[tuple[int, Any, Job | None, Any]] = deque()
        self.broken: dict[int, str] = {}

    def start_worker(self, seat: int, actor: Any, spec: Any) -> None:
        """Start a worker in a seat."""
        self._actors[seat] = actor
        self._listen(seat, actor, None, actor.start.remote(seat, spec, self._encoding))

    def send(self, seat: int, job: Job) -> None:
        """Send a job with its points."""
        actor = self._actors.get(seat)
        if actor is None:
            return
        message = self._layout.job_message(job, self._slots[job.slot], self._encoding)
        self._listen(seat, actor, job, actor.compute.remote(*(bytes(part) for part in message)))

    def _listen(self, seat: int, actor: Any, job: Job | None, ref: Any) -> None:
        def answered(future: Any) -> None:
            error = future.exception()
            self._answers.append((seat, actor, job, future.result() if error is None else error))
            self._wake()

        ref.future().add_done_callback(answered)

    def receive(self) -> list[Event]:
        """Return new events."""
        found: list[Event] = []
        while self._answers:
            seat, actor, job, answer = self._answers.popleft()
            if self._actors.get(seat) is not actor:
                continue  # dismissed
            try:
                found.append(self._event(seat, job, answer))
            except FrameError as error:
                self.broken[seat] = str(error)
        return found

    def _event(self, seat: int, job: Job | None, answer: Any) -> Event:
        if isinstance(answer, BaseException):  # the actor may be broken now, so it is replaced
            raise FrameError(ending(answer))
        if job is None:
            return Ready(seat, int(answer[0]), str(answer[1]))
        head = unpack_head(answer[0], self._layout.limit)
        event = self._layout.answer(seat, head, job)
        if isinstance(event, Done):
            self._layout.check(head.lengths, self._layout.up(self._encoding))
            self._layout.read_contribution(answer[1:], self._slots[job.slot])
        return event

    def dismiss(self, seat: int) -> None:
        """Ignore a worker from now on."""
        self._actors.pop(seat, None)
        self.broken.pop(seat, None)

    def release(self, seat: int) -> None:
        """Do nothing: an actor ends when it is killed."""

    def leaving(self, seats: Iterable[int]) -> bool:
        """Return False: actors are killed."""
        return False

    def shares(self, seat: int) -> bool:
        """Return False: every worker has its own memory."""
        return False

    def silent(self) -> list[int]:
        """Return no seats: Ray watches its actors."""
        return []

    def close(self) -> None:
        """Drop all workers."""
        self._actors.clear()
