"""Jobs and answers as bytes, for pipes and networks: a strict binary head, then raw numbers.

Anything else raises a `FrameError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .base import Done, Evaluated, Failed, Job, Ready, Slot, WorkerSpec

__all__ = [
    "BEAT", "BF16", "DONE", "ENVELOPE", "EVALUATED", "FAILED", "HEAD_LIMIT", "JOB", "LEAVE", "NATIVE", "READY",
    "SHARED", "STOP", "FrameError", "Head", "Layout", "beat", "event_of", "head_of", "job_of", "leave", "pack_head",
    "stop", "unpack_head",
]  # fmt: skip

READY, JOB, DONE, EVALUATED, FAILED, BEAT, STOP, LEAVE = range(1, 9)
NATIVE, BF16, SHARED = range(3)
HEAD_LIMIT = 16_384
"""Longest head in bytes."""
ENVELOPE = 128
"""Most bytes that encryption adds to a part."""

_MAGIC, _VERSION = b"LCMR", 2
_HEAD = struct.Struct("<4sBBBBQI")  # magic, version, kind, encoding, number of parts, ticket, length of the rest
_LENGTH = struct.Struct("<Q")
_JOB = struct.Struct("<QQqddBQI")
_DONE = struct.Struct("<Bdid")
_READY = struct.Struct("<Q")
_METRIC = struct.Struct("<Hd")
_PARTS = 4
_TEXT_LIMIT = 1700  # bytes of a reason, and of its place: together less than a pipe takes in one piece


class FrameError(ValueError):
    """A message that is malformed or unexpected."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first part of a message.

    Args:
        kind: `READY`, `JOB`, `DONE`, `EVALUATED`, `FAILED`, `BEAT`, `STOP` or `LEAVE`.
        encoding: How the numbers after it are written: `NATIVE`, `BF16`, or `SHARED` if they are in shared memory.
        number: Number of the ticket.
        lengths: Sizes of the parts that follow, in bytes.
        rest: Data specific to the kind.
    """

    kind: int
    encoding: int = NATIVE
    number: int = 0
    lengths: tuple[int, ...] = ()
    rest: bytes = b""


def pack_head(head: Head) -> bytes:
    """Return a head as bytes."""
    first = _HEAD.pack(
        _MAGIC, _VERSION, head.kind, head.encoding, len(head.lengths), head.number, len(head.rest)
    )  # fmt: skip
    data = b"".join([first, *(_LENGTH.pack(n) for n in head.lengths), head.rest])
    if len(data) > HEAD_LIMIT:
        raise FrameError(f"A head of {len(data)} bytes (at most {HEAD_LIMIT}): use fewer metrics or shorter names")
    return data


def unpack_head(data: bytes | memoryview, limit: int) -> Head:
    """Read a head and check it.

    Args:
        data: The bytes; they may come from anywhere.
        limit: Largest total size of the parts after it, in bytes.
    """
    if not _HEAD.size <= len(data) <= HEAD_LIMIT:
        raise FrameError(f"A head of {len(data)} bytes (expected {_HEAD.size} to {HEAD_LIMIT})")
    magic, version, kind, encoding, parts, number, rest = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise FrameError("Not a message of this library")
    if version != _VERSION:
        raise FrameError(f"Version {version} of the wire format (expected {_VERSION}): all nodes need the same release")
    if not READY <= kind <= LEAVE or encoding > SHARED or parts > _PARTS:
        raise FrameError(f"Kind {kind}, encoding {encoding}, {parts} parts: no such message")
    start = _HEAD.size + parts * _LENGTH.size
    if len(data) != start + rest:
        raise FrameError(f"A head of {len(data)} bytes that announces {start + rest}")
    lengths = tuple(_LENGTH.unpack_from(data, _HEAD.size + i * _LENGTH.size)[0] for i in range(parts))
    if sum(lengths) > limit:
        raise FrameError(f"Parts of {sum(lengths)} bytes are announced (at most {limit})")
    return Head(kind, encoding, number, lengths, bytes(data[start:]))


# ---- jobs and events as heads -----------------------------------------------------------------------------------


def head_of(
    what: Job | Done | Evaluated | Failed | Ready, encoding: int = SHARED, lengths: tuple[int, ...] = ()
) -> Head:
    """Return the head of a job or an event; it has no seat, which the receiver knows from the connection."""
    if isinstance(what, Job):
        rest = _JOB.pack(
            what.slot, what.sample, what.version, what.here, what.before, what.evaluate, what.upcoming, what.workers
        )
        return Head(JOB, encoding, what.number, lengths, rest)
    if isinstance(what, Done):
        rest = _DONE.pack(what.finite, what.loss, what.group, what.seconds)
        return Head(DONE, encoding, what.number, lengths, rest)
    if isinstance(what, Ready):
        return Head(READY, encoding, 0, (), _READY.pack(what.pid) + what.device.encode(errors="replace")[:_TEXT_LIMIT])
    if isinstance(what, Evaluated):
        metrics = [(name.encode(), float(value)) for name, value in what.metrics.items()]
        rest = b"".join(_METRIC.pack(len(name), value) + name for name, value in metrics)
        return Head(EVALUATED, SHARED, what.number, (), rest)
    reason, where = (text.encode(errors="replace")[:_TEXT_LIMIT] for text in (what.reason, what.where))
    return Head(FAILED, SHARED, what.number, (), reason.replace(b"\0", b" ") + b"\0" + where.replace(b"\0", b" "))


def job_of(head: Head) -> Job:
    """Return the job of a head."""
    slot, sample, version, here, before, evaluate, upcoming, workers = _unpacked(_JOB, head, JOB)
    if evaluate > 1:
        raise FrameError(f"A flag of {evaluate}")
    return Job(head.number, slot, sample, version, here, before, bool(evaluate), upcoming, workers)


def event_of(seat: int, head: Head) -> Ready | Done | Evaluated | Failed:
    """Return the event of a head."""
    if head.kind == DONE:
        finite, loss, group, seconds = _unpacked(_DONE, head, DONE)
        if finite > 1:
            raise FrameError(f"A flag of {finite}")
        return Done(seat, head.number, bool(finite), loss, group, seconds)
    if head.kind == READY:
        if len(head.rest) < _READY.size:
            raise FrameError(f"A message of {len(head.rest)} bytes (expected at least {_READY.size})")
        (pid,) = _READY.unpack_from(head.rest)
        return Ready(seat, pid, head.rest[_READY.size :].decode(errors="replace"))
    if head.kind == EVALUATED:
        return Evaluated(seat, head.number, _metrics(head.rest))
    if head.kind == FAILED:
        reason, _, where = head.rest.decode(errors="replace").partition("\0")
        return Failed(seat, head.number, reason, where)
    raise FrameError(f"Kind {head.kind} is not an event")


def beat() -> bytes:
    """Return the message by which a worker shows that it is alive."""
    return pack_head(Head(BEAT))


def leave() -> bytes:
    """Return the message that asks a worker to leave after its job."""
    return pack_head(Head(LEAVE))


def stop() -> bytes:
    """Return the message that ends a worker."""
    return pack_head(Head(STOP))


def _unpacked(layout: struct.Struct, head: Head, kind: int) -> tuple[Any, ...]:
    if head.kind != kind or len(head.rest) != layout.size:
        raise FrameError(f"Kind {head.kind} with {len(head.rest)} bytes (expected kind {kind} with {layout.size})")
    return layout.unpack(head.rest)


def _metrics(rest: bytes) -> dict[str, float]:
    metrics, at = {}, 0
    while at < len(rest):
        if len(rest) - at < _METRIC.size:
            raise FrameError("Truncated metrics")
        length, value = _METRIC.unpack_from(rest, at)
        at += _METRIC.size
        name = rest[at : at + length]
        at += length
        if len(name) != length:
            raise FrameError("Truncated metrics")
        try:
            metrics[name.decode()] = value
        except UnicodeDecodeError:
            raise FrameError("The name of a metric is not text") from None
    return metrics


# ---- the numbers after a head -----------------------------------------------------------------------------------


class Layout:
    """Sizes and encodings of the parts after a head in one run, with a buffer for bfloat16.

    Points and gradients are sent in the run's own dtype or, half as long, in bfloat16. Statistics and points of
    evaluations are never rounded.

    Args:
        spec: What every worker gets once.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self._whole, self._half, self._tail = spec.size * spec.dtype.itemsize, 2 * spec.size, 8 * spec.statistics
        self._bf16_buffer = torch.empty(0, dtype=torch.bfloat16)
        down = max(sum(self.down(Job(0, 0, evaluate=evaluate), NATIVE)) for evaluate in (False, True))
        self.limit = max(down, sum(self.up(NATIVE)))

    def down(self, job: Job, encoding: int) -> tuple[int, ...]:
        """Return the sizes of a job's parts: its points; for an evaluation one point and the statistics."""
        if encoding == SHARED:
            return ()
        if job.evaluate:
            return (self._whole, self._tail) if self._tail else (self._whole,)
        return (self._half if encoding == BF16 else self._whole,) * self.spec.points

    def up(self, encoding: int) -> tuple[int, ...]:
        """Return the sizes of a contribution's parts: the gradient, and the statistics if there are any."""
        if encoding == SHARED:
            return ()
        gradient = self._half if encoding == BF16 else self._whole
        return (gradient, self._tail) if self._tail else (gradient,)

    def answer_head(self, answer: Done | Evaluated | Failed, encoding: int) -> Head:
        """Return the head of a worker's answer, or of a `Failed` if the answer is invalid."""
        try:
            if isinstance(answer, Done):
                self._check_group(answer.group)
            head = head_of(answer, encoding, self.up(encoding))
            pack_head(head)
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            return head_of(Failed(answer.seat, answer.number, f"{type(error).__name__}: {error}"))
        return head

    def _check_group(self, group: int) -> None:
        if not 0 <= group < self.spec.problem.groups:
            raise FrameError(f"Group {group} (expected 0 to {self.spec.problem.groups - 1})")

    def answer(self, seat: int, head: Head, job: Job | None) -> Done | Evaluated | Failed:
        """Return the answer to a job; raise if it answers anything else."""
        event = event_of(seat, head)
        due = (FAILED, EVALUATED if job is not None and job.evaluate else DONE)
        if job is None or job.number != head.number or isinstance(event, Ready) or head.kind not in due:
            raise FrameError(f"An answer to ticket {head.number}, which this worker does not have")
        if isinstance(event, Done):
            self._check_group(event.group)
        return event

    def check(self, lengths: tuple[int, ...], expected: tuple[int, ...]) -> None:
        """Raise unless the parts have the expected sizes."""
        if lengths != expected:
            raise FrameError(f"Parts of {list(lengths)} bytes (expected {list(expected)})")

    def job_message(self, job: Job, slot: Slot, encoding: int) -> list[Any]:
        """Return a job with its points as the parts of a message."""
        lengths = self.down(job, encoding)
        return [pack_head(head_of(job, encoding, lengths)), *self._written(_sent_with(slot, job), lengths)]

    def read_job(self, parts: Iterable[Any], job: Job, slot: Slot) -> None:
        """Copy the parts of a job into a slot."""
        for part, tensor in zip(parts, _sent_with(slot, job), strict=False):
            self.read(part, tensor)

    def answer_message(self, answer: Done | Evaluated | Failed, slot: Slot, encoding: int) -> list[Any]:
        """Return an answer, with the contribution if there is one, as the parts of a message."""
        head = self.answer_head(answer, encoding)
        return [pack_head(head), *self._written([slot.gradient, slot.statistics], head.lengths)]

    def read_contribution(self, parts: Iterable[Any], slot: Slot) -> None:
        """Copy the parts of an answer into a slot."""
        for part, tensor in zip(parts, (slot.gradient, slot.statistics), strict=False):
            self.read(part, tensor)

    def _written(self, tensors: Sequence[Tensor], lengths: Sequence[int]) -> list[memoryview]:
        """Return tensors as bytes: their own memory, or a bfloat16 copy if the size asks for it."""
        found = []
        for tensor, length in zip(tensors, lengths, strict=False):
            encoded = tensor if length == tensor.nbytes else tensor.to(torch.bfloat16)
            found.append(encoded.view(torch.uint8).numpy().data)
        return found

    def read(self, data: Any, tensor: Tensor) -> None:
        """Copy bytes into a tensor."""
        source = np.frombuffer(data, dtype=np.uint8)
        if len(source) == tensor.nbytes:
            tensor.view(torch.uint8).numpy()[:] = source
            return
        if len(source) != self._half:
            raise FrameError(f"A part of {len(source)} bytes (expected {tensor.nbytes} or {self._half})")
        if not len(self._bf16_buffer):
            self._bf16_buffer = torch.empty(self.spec.size, dtype=torch.bfloat16)
        self._bf16_buffer.view(torch.uint8).numpy()[:] = source
        tensor.copy_(self._bf16_buffer)


def _sent_with(slot: Slot, job: Job) -> list[Tensor]:
    """Return the tensors that are sent with a job: its points; for an evaluation one point and the statistics."""
    return [slot.points[0], slot.statistics] if job.evaluate else slot.points
