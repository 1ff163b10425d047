"""Jobs and answers as a few bytes: fixed structs on the hot path, text only where something is said to people."""

from __future__ import annotations

import json
import struct

from .base import Done, Evaluated, Event, Failed, Job, Ready

__all__ = ["pack_event", "pack_job", "unpack_event", "unpack_job"]

_JOB = struct.Struct("<QQqqdd?")
_DONE = struct.Struct("<cQ?did")
_READY = struct.Struct("<cQ")
_TEXT = struct.Struct("<cQ")
_ATOMIC = 3500  # what a pipe takes in one piece, so that half a message of a dying worker is never seen


def pack_job(job: Job) -> bytes:
    """Turn a job into bytes.

    Examples:
        >>> job = Job(number=4, slot=1, sample=2**64 - 1, version=3, here=1.0, before=-0.9)
        >>> unpack_job(pack_job(job)) == job
        True
    """
    return _JOB.pack(job.number, job.sample, job.version, job.slot, job.here, job.before, job.evaluate)


def unpack_job(data: bytes) -> Job:
    """Turn bytes into a job.

    Examples:
        >>> unpack_job(pack_job(Job(number=4, slot=1))).number
        4
    """
    number, sample, version, slot, here, before, evaluate = _JOB.unpack(data)
    return Job(number, slot, sample, version, here, before, evaluate)


def pack_event(event: Done | Evaluated | Failed | Ready) -> bytes:
    """Turn an answer into bytes; its seat is known by the pipe it comes through.

    Examples:
        >>> done = Done(seat=0, number=4, finite=True, loss=0.5, group=1, seconds=0.01)
        >>> unpack_event(0, pack_event(done)) == done
        True
    """
    if isinstance(event, Done):
        return _DONE.pack(b"D", event.number, event.finite, event.loss, event.group, event.seconds)
    if isinstance(event, Ready):
        return _READY.pack(b"R", event.pid)
    if isinstance(event, Evaluated):
        return _TEXT.pack(b"E", event.number) + json.dumps(event.metrics).encode()
    words = [event.reason.encode()[:_ATOMIC], event.where.encode()[: _ATOMIC // 8]]
    return _TEXT.pack(b"F", event.number) + b"\0".join(words)


def unpack_event(seat: int, data: bytes) -> Event:
    """Turn bytes into an answer.

    Examples:
        >>> unpack_event(2, pack_event(Failed(seat=2, number=4, reason="ValueError: no"))).reason
        'ValueError: no'
    """
    kind = data[:1]
    if kind == b"D":
        _, number, finite, loss, group, seconds = _DONE.unpack(data)
        return Done(seat, number, finite, loss, group, seconds)
    _, number = _TEXT.unpack_from(data)
    if kind == b"R":
        return Ready(seat, number)
    rest = data[_TEXT.size :]
    if kind == b"E":
        return Evaluated(seat, number, json.loads(rest))
    reason, _, where = rest.decode(errors="replace").partition("\0")
    return Failed(seat, number, reason, where)
