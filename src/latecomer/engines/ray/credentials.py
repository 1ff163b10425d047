"""What a worker needs to connect: the server's address, keys, and possibly a reference to shared memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ..base import Slot, WorkerSpec
from ..memory import Block, allocate, slots_of

__all__ = ["SharedBlockRef", "WorkerCredentials", "attach_slots", "create_slots", "maps_block"]

_NONCE = 16


@dataclass(frozen=True)
class SharedBlockRef:
    """Lets processes of the same user on the same machine find a block of shared memory.

    The block has no name in the file system. A process opens the server's descriptor through /proc and compares a
    random number, so that a process with the same pid on another machine is not mistaken for the server.
    """

    pid: int
    fd: int
    size: int
    slots: int
    nonce: bytes = field(repr=False)


@dataclass(frozen=True)
class WorkerCredentials:
    """Address and keys of one worker process; the keys are never used again."""

    seat: int
    endpoint: str
    server_key: bytes
    public_key: bytes
    secret_key: bytes = field(repr=False)
    encoding: int = 0
    silence: float = 20.0
    block_ref: SharedBlockRef | None = None


def create_slots(spec: WorkerSpec, slots: int) -> tuple[Block, list[Slot], SharedBlockRef | None]:
    """Create slots in shared memory and a reference to it; None if the system has no /proc."""
    _, size = slots_of(spec, slots)
    block = allocate(size + _NONCE)
    nonce = os.urandom(_NONCE)
    block.map()[size:] = nonce
    made, _ = slots_of(spec, slots, block)
    block_ref = SharedBlockRef(os.getpid(), block.fd, size + _NONCE, slots, nonce)
    return block, made, block_ref if os.path.exists(f"/proc/self/fd/{block.fd}") else None  # noqa: PTH110


def attach_slots(block_ref: SharedBlockRef | None, spec: WorkerSpec) -> list[Slot] | None:
    """Return the server's slots if this process can map them, else None."""
    if block_ref is None:
        return None
    try:
        fd = os.open(f"/proc/{block_ref.pid}/fd/{block_ref.fd}", os.O_RDWR)
    except OSError:
        return None
    block = Block(fd, block_ref.size)
    try:
        if os.fstat(fd).st_size != block_ref.size or bytes(block.map()[-_NONCE:]) != block_ref.nonce:
            return None
        return slots_of(spec, block_ref.slots, block)[0]
    except (OSError, ValueError):
        return None
    finally:
        block.close()  # the mapping stays


def maps_block(pid: int, block: Block) -> bool:
    """Whether a process maps this memory; checked in /proc, because its own claim proves nothing."""
    about = os.fstat(block.fd)
    wanted = (os.major(about.st_dev), os.minor(about.st_dev), about.st_ino)
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        _, _, _, device, inode, *_ = line.split(maxsplit=5)
        major, _, minor = device.partition(":")
        if (int(major, 16), int(minor, 16), int(inode)) == wanted:
            return True
    return False
