"""Checkpoints that are there whole or not at all: safetensors and JSON, verified when they are read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from .._util.checks import whole_number
from .._util.files import atomic
from .journal import Journal

__all__ = ["Checkpoints", "Saver", "decoded", "encoded"]

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


class Saver:
    """Saves a run into a folder as it goes: a checkpoint now and then by a thread, and a journal of what came after.

    A disk that is full costs a warning, not the run; the checkpoints before are as they were.

    Args:
        folder: Where.
        every: Arrivals between checkpoints.
        keep: How many checkpoints to keep.
        run: What run this is; a folder of another one is refused.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saver = Saver(folder, every=10, keep=2, run={"method": "momentum"})
        ...     saver.begin()
        ...     saver.save(0, {"x": 1})
        ...     saver.close()
        ...     later = Saver(folder, every=10, keep=2, run={"method": "momentum"})
        ...     state, entries = later.restore()
        ...     later.close()
        >>> state["x"], entries
        (1, [])
    """

    def __init__(self, folder: str | Path, *, every: int, keep: int, run: Mapping[str, Any]) -> None:
        self.folder, self.every = Path(folder), whole_number("checkpoint_every", every, least=1)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"Invalid checkpoint: {str(folder)!r} is a file (expected a folder)")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoints, self.journal = Checkpoints(self.folder, keep), Journal(self.folder / "journal")
        self._run = json.loads(json.dumps(dict(run), default=repr))
        self._found, self._gap = 0, False  # entries of the journal that the checkpoint has in it; whether some lack
        self.saved_at: int | None = None
        self._lock = FileLock(self.folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"{self.folder} is in use by another run: choose another folder, or wait for it") from None
        for left in self.folder.glob("arrival-*.part"):  # of a process that was killed: we hold the lock
            left.unlink(missing_ok=True)
        self._thread: threading.Thread | None = None
        self._trouble: Exception | None = None

    def restore(self) -> tuple[dict[str, Any] | None, list[Any]]:
        """Return the newest state there is and what happened after it, or None and nothing."""
        state = self.checkpoints.newest()
        if state is None:
            return None, []
        if state["run"] != self._run:
            differs = sorted(key for key in {*state["run"], *self._run} if state["run"].get(key) != self._run.get(key))
            raise ValueError(
                f"{self.folder} has checkpoints of another run (with another {', another '.join(differs)}): choose "
                "another folder, or remove it"
            )
        self._found, self._gap = state["entries"], state["gap"]
        return state["state"], self.journal.read(self._found)

    def begin(self, entries: int = 0) -> None:
        """Go on writing the journal after so many entries that have been done again; they stand in it already."""
        self.journal.open(self._found + entries)
        if self._gap and not entries:  # nobody may read on from before what is missing
            self.journal.mark()

    def save(self, arrivals: int, state: dict[str, Any], now: bool = False) -> None:
        """Write a checkpoint in a thread; wait for the one before if it is not done.

        Args:
            arrivals: What has been counted.
            state: What to save.
            now: Wait for this one too, and raise OSError if it cannot be written: without a first one nothing is safe.
        """
        self.wait()
        with contextlib.suppress(OSError):  # the disk is still full, as has been said
            self.journal.resume()
        gap = self.journal.stopped
        whole = {"run": self._run, "entries": self.journal.entries, "gap": gap, "state": state}
        self.saved_at = arrivals
        if now:
            self.checkpoints.write(arrivals, whole)
            return
        self._thread = threading.Thread(target=self._write, args=(arrivals, whole))
        self._thread.start()

    def _write(self, arrivals: int, whole: dict[str, Any]) -> None:
        try:
            self.checkpoints.write(arrivals, whole)
        except Exception as error:
            self._trouble = error  # told by whoever waits: nobody hears what a thread raises

    def wait(self) -> None:
        """Wait for the thread; say what went wrong in it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._trouble is not None:
            error, self._trouble = self._trouble, None
            if not isinstance(error, OSError):
                raise error
            warnings.warn(
                f"A checkpoint could not be written to {self.folder} ({error.strerror}): training goes on, the "
                "checkpoints before it are intact",
                stacklevel=2,
            )

    def close(self) -> None:
        """Wait, and stop writing."""
        try:
            self.wait()
        finally:
            self.journal.close()
            self._lock.release()


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
