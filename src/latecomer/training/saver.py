"""Saving a run as it goes: checkpoints written by a thread, and a journal of what came after the last one."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Mapping
from typing import Any

from ..core.checkpoint import RunFolder
from .journal import Entry, Journal

__all__ = ["Saver"]


class Saver(RunFolder):
    """Saves a run into a folder as it goes: a checkpoint now and then by a thread, and a journal of what came after.

    A disk that is full costs a warning, not the run; the checkpoints before are as they were.

    Args:
        folder: Where.
        every: Arrivals between checkpoints.
        keep: How many checkpoints to keep.
        run: What run this is; a folder of another one is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int, keep: int, run: Mapping[str, Any]) -> None:
        super().__init__(folder, every=every, keep=keep, run=run)
        self.journal = Journal(self.folder / "journal")
        self._found, self._gap = 0, False  # entries of the journal that the checkpoint has in it; whether some lack
        self.saved_at: int | None = None
        self._thread: threading.Thread | None = None
        self._trouble: Exception | None = None

    def restore(self) -> tuple[dict[str, Any] | None, list[Entry]]:
        """Return the newest state there is and what happened after it, or None and nothing."""
        whole = self.newest()
        if whole is None:
            return None, []
        self._found, self._gap = whole["entries"], whole["gap"]
        return whole["state"], self.journal.read(self._found)

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
        whole = {"entries": self.journal.entries, "gap": gap, "state": state}
        self.saved_at = arrivals
        if now:
            self.write(arrivals, whole)
            return
        self._thread = threading.Thread(target=self._write_in_thread, args=(arrivals, whole))
        self._thread.start()

    def _write_in_thread(self, arrivals: int, whole: dict[str, Any]) -> None:
        try:
            self.write(arrivals, whole)
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
            super().close()
