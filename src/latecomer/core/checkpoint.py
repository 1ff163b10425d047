"""Checkpoints as safetensors and JSON: written atomically, verified when they are read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load, save
from torch import Tensor

from .._util.checks import whole_number
from .._util.files import atomic_flushed, check_no_file, sha256
from .._util.warn import warn
from .._util.wording import in_short

__all__ = ["Checkpoints", "RunFolder", "checkpoint_options", "decoded", "encoded", "loading"]

_FORMAT = 4
_PARTS = ("state", "tensors")
_KEEP = 3


class _OtherVersionError(ValueError):
    """An intact checkpoint in a format that this version does not read."""


class Checkpoints:
    """The newest ``keep`` checkpoints of one run, in a folder.

    A checkpoint has two files: ``arrival-000001200.json``, which has the SHA-256 of everything, and
    ``arrival-000001200-4f2a90c1d3b7.safetensors``, named by its digest. The JSON file is written last and makes
    the checkpoint valid. Every file is written under another name, flushed to disk and renamed. So a crash at any
    moment leaves the older checkpoints intact, even one of the same arrival.

    Args:
        folder: The folder.
        keep: Number of checkpoints to keep.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder, self.keep = folder, whole_number("keep", keep, least=1)
        self._intact: set[Path] = set()  # written or verified by this process
        self._damaged: set[Path] = set()

    def paths(self) -> list[Path]:
        """Return the paths of the checkpoints, oldest first."""
        return sorted(self.folder.glob("arrival-*.json"))

    def write(self, arrivals: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint and remove the oldest; if it raises OSError, the older checkpoints are intact."""
        tensors: dict[str, Tensor] = {}
        text = json.dumps(encoded(state, tensors))
        data = save(tensors)
        digests = {"state": _digest_of_state(text), "tensors": sha256(data)}
        path = self.folder / f"arrival-{arrivals:09d}.json"
        tensor_path = self._tensor_path(path, digests["tensors"])
        try:
            atomic_flushed(tensor_path, data)
            atomic_flushed(path, json.dumps({"format": _FORMAT, "sha256": digests, "state": text}).encode())
            self._intact.add(path)
            self._damaged.discard(path)
        finally:
            self._remove_old()
        return path

    @staticmethod
    def _tensor_path(path: Path, digest: str) -> Path:
        return path.with_name(f"{path.stem}-{digest[:12]}.safetensors")

    def _remove_old(self) -> None:
        """Remove the oldest checkpoints, and tensor files that belong to none.

        Damaged ones do not count, and the newest one that is known to be intact always stays. A damaged one that is
        newer than all others stays too: somebody may want to look at it.
        """
        paths = self.paths()
        kept = {*[path for path in paths if path not in self._damaged][-self.keep :]}
        kept |= {*[path for path in paths if path in self._intact][-1:]}
        for old in [path for path in paths if path not in kept and any(path < other for other in kept)]:
            old.unlink(missing_ok=True)
        needed = set()
        for path in self.paths():
            try:
                needed.add(self._tensor_path(path, _outer(path)["sha256"]["tensors"]))
            except Exception:  # damaged: keep its tensors for a manual look
                needed |= set(self.folder.glob(f"{path.stem}-*.safetensors"))
        for tensors in set(self.folder.glob("arrival-*.safetensors")) - needed:
            tensors.unlink(missing_ok=True)

    def newest(self) -> dict[str, Any] | None:
        """Return the newest intact checkpoint, with a warning per damaged one; None if there is none."""
        paths = self.paths()
        for path in reversed(paths):
            try:
                state = self._read(path)
            except _OtherVersionError:
                raise
            except Exception as error:  # whatever a damaged file makes a decoder raise, a RecursionError for example
                self._damaged.add(path)
                warn(f"{path} is damaged ({in_short(error)}): trying the one before it")
            else:
                self._intact.add(path)
                return state
        if paths:
            raise ValueError(f"None of the {len(paths)} checkpoints in {self.folder} is readable: remove them to start")
        return None

    def _read(self, path: Path) -> dict[str, Any]:
        outer = _outer(path)
        digests = outer["sha256"]
        data = self._tensor_path(path, digests["tensors"]).read_bytes()
        found = {"state": _digest_of_state(outer["state"]), "tensors": sha256(data)}
        for part in _PARTS:
            if found[part] != digests[part]:
                raise ValueError(f"the {part} do not match their SHA-256")
        state = decoded(json.loads(outer["state"]), load(data))
        if not isinstance(state, dict):
            raise ValueError("it has no state")
        return state


def _outer(path: Path) -> dict[str, Any]:
    """Read the JSON file of a checkpoint; raise unless it has exactly what this version writes."""
    outer = json.loads(path.read_bytes())
    if not isinstance(outer, dict) or type(outer.get("format")) is not int:
        raise ValueError("it has no format")
    digests: Any = outer.get("sha256")
    complete = (
        outer.keys() == {"format", "sha256", "state"}
        and isinstance(outer["state"], str)
        and isinstance(digests, dict)
        and digests.keys() == set(_PARTS)
        and all(isinstance(digest, str) and len(digest) == 64 for digest in digests.values())
    )
    if outer["format"] != _FORMAT:
        # The digest includes the format. So a checkpoint of another version is told from one of this version with a
        # flipped bit.
        if complete and digests["state"] == _digest_of_state(outer["state"]):
            raise ValueError("its format does not match its SHA-256")
        raise _OtherVersionError(
            f"{path} was written by another version of latecomer (format {outer['format']!r}, this one reads "
            f"{_FORMAT}): finish the run with that version, or choose another folder"
        )
    if not complete:
        raise ValueError("it lacks a SHA-256 or the state, or has other entries")
    return outer


class RunFolder:
    """The folder of one run: its checkpoints, and a lock that keeps other processes from writing there.

    Args:
        folder: The folder.
        every: Arrivals between checkpoints.
        keep: Number of checkpoints to keep.
        run: Identifies the run; a folder with checkpoints of another run is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int, keep: int, run: Mapping[str, Any]) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise TypeError(f"Invalid checkpoint: {folder!r} (expected the name of a folder)")
        self.folder, self.every = Path(folder), whole_number("checkpoint_every", every, least=1)
        if not os.fspath(folder):
            raise ValueError("Invalid checkpoint: '' (expected the name of a folder)")
        check_no_file("checkpoint", self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoints = Checkpoints(self.folder, keep)
        self._run = json.loads(json.dumps(dict(run), default=repr))
        self._lock = FileLock(self.folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"{self.folder} is in use by another run: choose another folder, or wait for it") from None
        for leftover in self.folder.glob("arrival-*.part"):  # of a killed process: this one holds the lock
            leftover.unlink(missing_ok=True)

    def newest(self) -> dict[str, Any] | None:
        """Return the newest state, or None; raise if it belongs to another run."""
        state = self.checkpoints.newest()
        if state is None:
            return None
        with loading():
            run = dict(state["run"])
        if run != self._run:
            differs = sorted(key for key in {*run, *self._run} if run.get(key) != self._run.get(key))
            raise ValueError(
                f"{self.folder} has checkpoints of another run (with another {', another '.join(differs)}): choose "
                "another folder, or remove it"
            )
        return state

    def write(self, arrivals: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint; if it raises OSError, the older checkpoints are intact."""
        self.checkpoints.write(arrivals, {"run": self._run, **state})

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()


def checkpoint_options(folder: object, every: int | None, keep: int | None, evaluate_every: int) -> tuple[int, int]:
    """Return how often to save, and how many checkpoints to keep; refuse both without a folder."""
    given = {name: value for name, value in {"checkpoint_every": every, "keep": keep}.items() if value is not None}
    checked = {name: whole_number(name, value, least=1) for name, value in given.items()}
    if folder is None and checked:
        name, value = next(iter(checked.items()))
        raise ValueError(f"{name}={value} needs a folder for the checkpoints: pass checkpoint= too")
    return checked.get("checkpoint_every", evaluate_every), checked.get("keep", _KEEP)


@contextmanager
def loading() -> Iterator[None]:
    """Turn whatever is raised while a state is loaded into one sentence: an intact file may hold something else."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"The newest checkpoint cannot be loaded ({in_short(error)}): remove it to resume from the one before it"
        ) from error


def _digest_of_state(text: str) -> str:
    return sha256(f"{_FORMAT}\n{text}".encode(errors="surrogatepass"))


def encoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Turn nested dicts, lists, tuples, numbers, strings and tensors into JSON; tensors go into ``tensors``."""
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
    if hasattr(value, "item"):  # a numpy scalar
        return encoded(value.item(), tensors)
    raise TypeError(f"A checkpoint cannot hold a {type(value).__name__}: {value!r}")


def decoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Undo `encoded`."""
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
