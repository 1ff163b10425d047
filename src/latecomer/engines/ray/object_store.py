"""Points down and gradients up through Ray's object store: slower than sockets of one's own, with nothing to set up."""

from __future__ import annotations

import os
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
from .cluster import ending

__all__ = ["ObjectWorker", "Objects"]


class ObjectWorker:
    """What Ray runs in a worker process: one thread computes, another waits for ever, so that its end is noticed."""

    def start(self, seat: int, spec: WorkerSpec, encoding: int) -> int:
        """Make the model."""
        torch.set_num_threads(1)
        self._slot, self._layout, self._encoding = own_slot(spec), Layout(spec), encoding
        self._worker = Worker(spec, [self._slot], seat)
        return os.getpid()

    def hold(self) -> None:
        """Wait for ever."""
        threading.Event().wait()

    def compute(self, head: bytes, *parts: Any) -> list[Any]:
        """Do a job."""
        slot, layout = self._slot, self._layout
        what = job_of(unpack_head(head, layout.limit))
        layout.read_job(parts, what, slot)
        answer = self._worker(replace(what, slot=0))
        return [bytes(part) for part in layout.answer_message(answer, slot, self._encoding)]


class Objects:
    """The server's end: a call to a worker for every job, and its result in the slot.

    Args:
        ray: Ray's module.
        spec: What is computed.
        slots: The server's slots.
        wake: Called, from any thread, when there is something to read.
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

    def seat(self, seat: int, actor: Any, spec: Any) -> None:
        """Have a worker begin."""
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
        """Return what workers have said until now."""
        found: list[Event] = []
        while self._answers:
            seat, actor, job, answer = self._answers.popleft()
            if self._actors.get(seat) is not actor:
                continue  # it was dismissed
            try:
                found.append(self._event(seat, job, answer))
            except FrameError as error:
                self.broken[seat] = str(error)
        return found

    def _event(self, seat: int, job: Job | None, answer: Any) -> Event:
        if isinstance(answer, BaseException):  # an actor survives what its methods raise, but what is left of it?
            raise FrameError(ending(answer))
        if job is None:
            return Ready(seat, int(answer))
        head = unpack_head(answer[0], self._layout.limit)
        event = self._layout.answer(seat, head, job)
        if isinstance(event, Done):
            self._layout.check(head.lengths, self._layout.up(self._encoding))
            self._layout.read_contribution(answer[1:], self._slots[job.slot])
        return event

    def dismiss(self, seat: int) -> None:
        """Listen to a worker no more."""
        self._actors.pop(seat, None)
        self.broken.pop(seat, None)

    def release(self, seat: int) -> None:
        """Do nothing: an actor ends when it is killed."""

    def leaving(self, seats: Iterable[int]) -> bool:
        """Say no, for the same reason."""
        return False

    def shares(self, seat: int) -> bool:
        """Say no: every worker has memory of its own."""
        return False

    def silent(self) -> list[int]:
        """Say none: Ray looks after them."""
        return []

    def close(self) -> None:
        """Forget everybody."""
        self._actors.clear()
