"""Checkpoints that are there whole or not at all: safetensors and JSON, verified when they are read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..files import atomic
from ..optim.checks import whole_number

__all__ = ["Checkpoints", "decoded", "encoded"]

_FORMAT = 2


class Checkpoints:
    """The checkpoints of one run in a folder, the newest ``keep`` of them.

    A checkpoint is ``arrival-000001200.json`` with the SHA-256 of everything, and ``arrival-000001200-4f2a90c1d3b7``
    with the suffix ``.safetensors``, whose name has the digest of the tensors in it. The JSON file is written last and
    is what makes it one. Each file is written under another name, flushed to the disk and renamed, so a crash at any
    moment leaves the ones before as they were, also one of the same arrival.

    Args:
        folder: Where.
        keep: How many to keep.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kept = Checkpoints(Path(folder), keep=2)
        ...     for arrivals in (10, 20, 30):
        ...         _ = kept.write(arrivals, {"x": torch.full((2,), float(arrivals))})
        ...     [path.stem for path in kept.paths()], kept.newest()["x"]
        (['arrival-000000020', 'arrival-000000030'], tensor([30., 30.]))
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder, self.keep = folder, whole_number("keep", keep, least=1)

    def paths(self) -> list[Path]:
        """Return the checkpoints there are, oldest first."""
        return sorted(self.folder.glob("arrival-*.json"))

    def write(self, arrivals: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint and remove those that are too many; may raise OSError, and has then changed nothing."""
        tensors: dict[str, Tensor] = {}
        text = json.dumps(encoded(state, tensors))
        data = save(tensors)
        digests = {"state": _digest(text.encode()), "tensors": _digest(data)}
        path = self.folder / f"arrival-{arrivals:09d}.json"
        tensor_path = self._tensors(path, digests["tensors"])
        try:
            _write(tensor_path, data)
            _write(path, json.dumps({"format": _FORMAT, "sha256": digests, "state": text}).encode())
        finally:
            self._tidy()
        return path

    @staticmethod
    def _tensors(path: Path, digest: str) -> Path:
        return path.with_name(f"{path.stem}-{digest[:12]}.safetensors")

    def _tidy(self) -> None:
        """Remove checkpoints that are too many, and tensors that belong to none: they only take room."""
        paths = self.paths()
        for old in paths[: -self.keep]:
            old.unlink(missing_ok=True)
        needed = set()
        for path in paths[-self.keep :]:
            try:
                needed.add(self._tensors(path, json.loads(path.read_bytes())["sha256"]["tensors"]))
            except (ValueError, KeyError, TypeError, OSError):  # it is damaged: somebody may still want to look at it
                needed |= set(self.folder.glob(f"{path.stem}-*.safetensors"))
        for tensors in set(self.folder.glob("arrival-*.safetensors")) - needed:
            tensors.unlink(missing_ok=True)

    def newest(self) -> dict[str, Any] | None:
        """Return the newest checkpoint that is whole; say so for every one that is not. None if there is none."""
        paths = self.paths()
        for path in reversed(paths):
            try:
                return self._read(path)
            except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
                warnings.warn(f"{path} is damaged ({error}): going back to the one before", stacklevel=2)
        if paths:
            raise ValueError(f"None of the {len(paths)} checkpoints in {self.folder} can be read: remove them to start")
        return None

    def _read(self, path: Path) -> dict[str, Any]:
        outer = json.loads(path.read_bytes())
        if outer["format"] != _FORMAT:
            raise ValueError(f"it has format {outer['format']!r}, this version reads {_FORMAT}")
        data = self._tensors(path, outer["sha256"]["tensors"]).read_bytes()
        found = {"state": _digest(outer["state"].encode()), "tensors": _digest(data)}
        for part, digest in outer["sha256"].items():
            if found[part] != digest:
                raise ValueError(f"its {part} do not fit their SHA-256")
        state: dict[str, Any] = decoded(json.loads(outer["state"]), load(data))
        return state


def _write(path: Path, data: bytes) -> None:
    with atomic(path) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename too
    finally:
        os.close(folder)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Turn nested dicts, lists, tuples, numbers, words and tensors into JSON; tensors go into ``tensors``.

    Examples:
        >>> tensors = {}
        >>> encoded({"m": torch.ones(1), 3: (1, None)}, tensors)
        {'dict': [['m', {'tensor': '0'}], [3, {'tuple': [1, None]}]]}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[encoded(k, tensors), encoded(v, tensors)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [encoded(item, tensors) for item in value]}
    if isinstance(value, list):
        return [encoded(item, tensors) for item in value]
    if hasattr(value, "item"):  # a number of numpy
        return encoded(value.item(), tensors)
    raise TypeError(f"A checkpoint cannot hold a {type(value).__name__}: {value!r}")


def decoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Turn back what `encoded` made.

    Examples:
        >>> tensors = {}
        >>> decoded(encoded({1: (2.5, float("inf"))}, tensors), tensors)
        {1: (2.5, inf)}
    """
    if isinstance(value, list):
        return [decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    (kind, inner), *_ = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "float":
        return float(inner)
    if kind == "tuple":
        return tuple(decoded(item, tensors) for item in inner)
    return {decoded(k, tensors): decoded(v, tensors) for k, v in inner}
