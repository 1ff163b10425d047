"""Where a run leaves its state: checkpoints written beside the training, and the record of the whole run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..files import atomic
from ..optim.checks import whole_number
from ..trace import Trace
from .checkpoint import Checkpoints
from .journal import Journal

__all__ = ["Saver", "read_record", "write_record"]


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


def digest(x: Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes."""
    return hashlib.sha256(x.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def write_record(trace: Trace, path: Path, x: Tensor, about: Mapping[str, Any]) -> Path:
    """Write a trace and, beside it, where the run ended and with which method.

    Examples:
        >>> import latecomer as lc, tempfile
        >>> trace = lc.delays.Constant(workers=2).trace(steps=3, seed=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_record(trace, Path(folder) / "run.parquet", torch.ones(2), {"method": "momentum"})
        ...     x, about = read_record(path)
        >>> x, about["method"]
        (tensor([1., 1.]), 'momentum')
    """
    trace.save(path)
    metadata = {"latecomer": json.dumps(dict(about), default=repr)}
    with atomic(path.with_suffix(".safetensors")) as temporary:
        temporary.write_bytes(save({"x": x.detach().clone()}, metadata))
    return path


def read_record(path: Path) -> tuple[Tensor | None, dict[str, Any]]:
    """Read what stands beside a trace; None and nothing if there is no such file.

    Examples:
        >>> read_record(Path("nowhere.parquet"))
        (None, {})
    """
    beside = path.with_suffix(".safetensors")
    if not beside.exists():
        return None, {}
    try:
        with safe_open(beside, "pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["latecomer"])
            return file.get_tensor("x"), about
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(f"{beside} is damaged: {error}") from error
