"""What every worker gets once, pickled; large arrays are beside it in memory that all workers share."""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from .memory import Block, allocate

__all__ = ["Payload"]

_LARGE = 1 << 14  # bytes from which an array is shared instead of pickled
_LINE = 64
_REMEDY = (
    "the task, or a function or class of its script, uses this object; create it where it is used or in a module that "
    "is imported, or pass engine='inline' to stay in this process"
)


class Payload:
    """A pickled object in shared memory, to be unpickled in any number of processes.

    Functions and classes of importable modules are sent by name. Those of the main script or of a notebook, lambdas and
    functions inside functions are sent by value, with the globals they use. So workers never import the main script,
    and it needs no ``if __name__ == "__main__":``. Large tensors and arrays are not copied per process: pages are
    shared until a process writes to them.

    Args:
        thing: The object.
    """

    def __init__(self, thing: Any) -> None:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        try:
            pickler.dump(thing)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(f"This task cannot be sent to a worker process ({error}): {_REMEDY}") from None
        self._start, self._length = pickler.size, buffer.getbuffer().nbytes
        self.block: Block = allocate(self._start + self._length)
        memory = self.block.map()
        for offset, array in pickler.shared_arrays:
            data = array.reshape(-1).view(np.uint8).data
            memory[offset : offset + len(data)] = data
        memory[self._start :] = buffer.getbuffer()

    def load(self) -> Any:
        """Unpickle the object."""
        memory = self.block.map(private=True)
        return _Unpickler(memory, memory[self._start : self._start + self._length]).load()

    def close(self) -> None:
        """Close the memory; processes that have loaded the object keep it."""
        self.block.close()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.size = 0
        self.shared_arrays: list[tuple[int, np.ndarray[Any, Any]]] = []
        self._seen: dict[int, tuple[Any, ...]] = {}
        self._kept: list[Any] = []  # keeps objects alive, so that no id is used again

    def persistent_id(self, obj: Any) -> Any:
        array: Any = None
        if type(obj) is Tensor and obj.device.type == "cpu" and obj.layout is torch.strided:
            plain = obj.is_contiguous() and not obj.requires_grad and not obj.is_conj() and not obj.is_quantized
            if plain and obj.nbytes >= _LARGE:
                array = obj.view(torch.uint8).numpy() if obj.dim() else None
                name = str(obj.dtype).removeprefix("torch.")
        elif type(obj) is np.ndarray and obj.flags.c_contiguous and not obj.dtype.hasobject and obj.nbytes >= _LARGE:
            array, name = obj, obj.dtype.str
        if array is None:
            return None
        if id(obj) not in self._seen:
            kind = "tensor" if isinstance(obj, Tensor) else "array"
            self._seen[id(obj)] = kind, self.size, name, tuple(obj.shape)
            self._kept.append(obj)
            self.shared_arrays.append((self.size, array))
            self.size += -(-obj.nbytes // _LINE) * _LINE
        return self._seen[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, memory: Any, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._memory = memory
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        kind, offset, name, shape = pid
        if offset not in self._made:
            count = int(np.prod(shape))
            if kind == "tensor":
                flat = torch.frombuffer(self._memory, dtype=getattr(torch, name), count=count, offset=offset)
                self._made[offset] = flat.view(shape)
            else:
                array = np.frombuffer(self._memory, dtype=np.dtype(name), count=count, offset=offset)
                self._made[offset] = array.reshape(shape)
        return self._made[offset]
