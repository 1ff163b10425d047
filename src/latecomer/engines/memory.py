"""Anonymous shared memory: the system frees it with the last process that uses it, even one that is killed."""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any

import torch
from torch import Tensor

from .base import Slot, WorkerSpec

__all__ = ["Block", "allocate", "own_slot", "slots_of"]

_LINE = 64  # torch aligns its tensors to 64 bytes; kernels give the same bits only with the same alignment


class Block:
    """An anonymous memory file that can be passed to a child process and mapped in both.

    Args:
        fd: File descriptor.
        size: Size in bytes.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size

    def map(self, private: bool = False) -> mmap.mmap:
        """Map it: shared by default; private writes stay in this process."""
        return mmap.mmap(self.fd, self.size, access=mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE)

    def close(self) -> None:
        """Close the descriptor; mappings stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __reduce__(self) -> Any:
        return _rebuilt, (reduction.DupFd(self.fd), self.size)


def _rebuilt(descriptor: Any, size: int) -> Block:
    return Block(descriptor.detach(), size)


def allocate(size: int) -> Block:
    """Create a block of zeros."""
    size = max(size, 1)
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("latecomer", os.MFD_CLOEXEC)
    else:  # an unlinked file does the same
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return Block(fd, size)


def _aligned(size: int) -> int:
    return -(-size // _LINE) * _LINE


def slots_of(spec: WorkerSpec, count: int, block: Block | None = None) -> tuple[list[Slot], int]:
    """Cut a block into slots; return them and their size in bytes. Without a block only the size is computed."""
    each = _aligned(spec.size * spec.dtype.itemsize)
    tail = _aligned(spec.statistics * 8)
    size = count * (each * (spec.points + 1) + tail)
    if block is None:
        return [], size
    memory = block.map()

    def tensor(offset: int, numbers: int, dtype: torch.dtype) -> Tensor:
        if not numbers:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(memory, dtype=dtype, count=numbers, offset=offset)

    slots, offset = [], 0
    for index in range(count):
        vectors = [tensor(offset + i * each, spec.size, spec.dtype) for i in range(spec.points + 1)]
        offset += each * (spec.points + 1)
        slots.append(Slot(index, vectors[:-1], vectors[-1], tensor(offset, spec.statistics, torch.float64)))
        offset += tail
    return slots, size


def own_slot(spec: WorkerSpec, index: int = 0) -> Slot:
    """Create a slot in the memory of this process."""
    points = [torch.zeros(spec.size, dtype=spec.dtype) for _ in range(spec.points)]
    gradient = torch.zeros(spec.size, dtype=spec.dtype)
    return Slot(index, points, gradient, torch.zeros(spec.statistics, dtype=torch.float64))
