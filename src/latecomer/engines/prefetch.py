"""Draws the batches of tickets that a worker is likely to get next, in a process beside it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import pickle
import signal
import sys
import warnings
from collections import Counter, deque
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from .._util.seeds import sample_seeds
from ..problems.base import Problem

__all__ = ["Prefetcher", "die_with_parent"]

_REMEMBERED = 64  # number of last jobs by which the next ticket is guessed
_PR_SET_PDEATHSIG = 1
_PROTOCOL = 5
Drawn = tuple[int, list[tuple[int, Any]]]
"""The group of a ticket, and the seeds and batches it consists of."""


class Prefetcher:
    """A process that draws batches ahead, in the same way as the worker would: a ticket fixes its batch.

    Which ticket a worker gets next is decided when it asks, so this is a guess. With each job comes the number of the
    ticket that is issued next; how many others were issued before the worker came back is likely to be the same again.
    A wrong guess costs time and nothing else. It is a process, not a thread, because drawing a batch seeds the global
    generators of random numbers, which the worker uses meanwhile.

    Args:
        problem: What to train on.
        seed: Seed of the run, which draws the samples of all tickets.
        ahead: Largest number of batches drawn ahead.
    """

    def __init__(self, problem: Problem, seed: int, ahead: int) -> None:
        self._seed, self._ahead = seed, ahead
        self._offsets: deque[int] = deque(maxlen=_REMEMBERED)
        self._upcoming: int | None = None
        self._asked: dict[int, int] = {}  # number -> sample, in order, of what has not come back
        self._kept: dict[int, tuple[int, Drawn | None]] = {}
        self.hits = self.misses = 0
        self._pipe, other = Pipe()
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks in processes with threads
            self._child = os.fork()
        if not self._child:
            status = 1
            with contextlib.suppress(BaseException):
                self._pipe.close()
                die_with_parent(parent)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                gc.freeze()  # so that pages stay shared with the worker
                _draw_all(problem, other)
                status = 0
            os._exit(status)
        other.close()

    def take(self, number: int, sample: int) -> Drawn | None:
        """Return what was drawn for a ticket; None if it was not, or if drawing it raised."""
        if self._upcoming is not None:
            self._offsets.append(number - self._upcoming)
        while number in self._asked and self._receive():
            pass
        kept = self._kept.pop(number, None)
        found = None if kept is None or kept[0] != sample else kept[1]
        self.hits, self.misses = self.hits + (found is not None), self.misses + (found is None)
        return found

    def guess(self, upcoming: int, workers: int) -> None:
        """Ask for the batches of the tickets that are likely to come after the current one.

        Args:
            upcoming: Number of the ticket that is issued next.
            workers: Number of workers, for the first guess: each of the others gets one before this one is back.
        """
        self._upcoming = upcoming
        likely = [offset for offset, _ in Counter(self._offsets).most_common(self._ahead)]
        likely += [offset for offset in range(max(0, workers - 1), workers + self._ahead) if offset not in likely]
        wanted = [upcoming + offset for offset in likely[: self._ahead] if offset >= 0]
        while self._child and self._asked and self._pipe.poll() and self._receive():
            pass
        for number in [number for number in self._kept if number < upcoming]:
            del self._kept[number]  # another worker has got it
        room = self._ahead - sum(number >= upcoming for number in (*self._asked, *self._kept))
        new = [number for number in wanted if number not in self._asked and number not in self._kept][: max(0, room)]
        if new and self._child:
            samples = [int(sample_seeds(self._seed, 1, first=number)[0]) for number in new]
            try:
                self._pipe.send(list(zip(new, samples, strict=True)))
            except OSError:
                self.close()
                return
            self._asked.update(zip(new, samples, strict=True))

    def _receive(self) -> bool:
        """Wait for the next batch; False if the process has ended."""
        try:
            number, drawn = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            self.close()
            return False
        self._kept[number] = self._asked.pop(number), drawn
        return True

    def close(self) -> None:
        """End the process."""
        self._asked.clear()
        if self._child:
            child, self._child = self._child, 0
            self._pipe.close()
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _draw_all(problem: Problem, pipe: Connection) -> None:
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            return
        for number, sample in asked:
            drawn: Drawn | None = None
            with contextlib.suppress(Exception):  # the worker draws it itself, and reports what is wrong
                group = problem.group_of(number, sample)
                drawn = group, problem.micro_batches(number, sample, group)
            try:
                answer = _pickled((number, drawn))
            except Exception:
                answer = pickle.dumps((number, None))
            pipe.send_bytes(answer)


class _BatchPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a tensor that is part of a larger one, such as a window of a text, without the rest."""

    def reducer_override(self, obj: Any) -> Any:
        # Only where a copy has the same strides: with others an operation may round otherwise.
        if type(obj) is Tensor and obj.layout is torch.strided and obj.untyped_storage().nbytes() > obj.nbytes:
            own = obj.detach().clone()
            if own.stride() == obj.stride() and not obj.requires_grad:
                return own.__reduce_ex__(_PROTOCOL)  # type: ignore[no-untyped-call]
        return super().reducer_override(obj)


def _pickled(answer: tuple[int, Drawn | None]) -> bytes:
    with io.BytesIO() as file:
        _BatchPickler(file, protocol=_PROTOCOL).dump(answer)
        return file.getvalue()


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends, even if that is killed.

    Args:
        parent: Process id of the parent, which may have ended already.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
