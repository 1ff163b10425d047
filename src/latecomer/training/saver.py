"""Saves a run: checkpoints written by a thread, and a journal of everything after the last checkpoint."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from typing import Any

from .._util.warn import warn
from ..core.checkpoint import RunFolder, loading
from .journal import COUNTED, Entry, Found, Journal

__all__ = ["Saver"]


class Saver(RunFolder):
    """Saves a run into a folder: checkpoints, written by a thread, and a journal of what came after them.

    If the disk is full the run goes on with a warning; older checkpoints stay intact.

    Args:
        folder: The folder.
        every: Arrivals between checkpoints.
        keep: Number of checkpoints to keep.
        run: Identifies the run; a folder with checkpoints of another run is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int, keep: int, run: Mapping[str, Any]) -> None:
        super().__init__(folder, every=every, keep=keep, run=run)
        self.journal = Journal(self.folder / "journal")
        self._entries_included = 0  # journal entries that the checkpoint includes
        self._gap = False  # whether entries are missing
        self.saved_at: int | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def restore(self) -> tuple[dict[str, Any] | None, list[Entry]]:
        """Return the newest state and the journal entries after it, or None and an empty list."""
        checkpoint = self.newest()
        if checkpoint is None:
            return None, []
        with loading():
            self._entries_included, self._gap = int(checkpoint["entries"]), bool(checkpoint["gap"])
            state, arrivals = dict(checkpoint["state"]), int(checkpoint["arrivals"])
            found = self.journal.look(self._entries_included)
        if found.missing or found.repaired or found.damaged:
            self._warn_of_damage(found, arrivals)
        return state, found.entries

    def _warn_of_damage(self, found: Found, arrivals: int) -> None:
        """Say what is damaged, and keep a copy: what cannot be repeated is cut off when the run goes on."""
        resumes_at = arrivals + sum(entry.kind in COUNTED for entry in found.entries)
        kept = self.journal.keep_copy()
        if found.missing:
            warn(
                f"{self.journal.path} ends before the checkpoint of arrival {arrivals:,}, so what came after that is "
                f"lost: the run resumes at arrival {resumes_at:,}{kept}",
            )
        if found.repaired:
            numbers = ", ".join(map(str, found.repaired))
            warn(
                f"{self.journal.path} has a flipped bit in entry {numbers}: it is repaired, and nothing is lost{kept}",
            )
            self.journal.write_back(found.repaired)
        if found.behind:
            lost = sum(entry.kind in COUNTED for entry in found.behind)
            damaged = self._entries_included + len(found.entries)
            warn(
                f"{self.journal.path} is damaged at entry {damaged}: the {len(found.behind)} good entries behind it "
                f"cannot be repeated without it, so the run resumes at arrival {resumes_at:,} instead of "
                f"{resumes_at + lost:,} or later{kept}",
            )
        elif found.damaged:
            which = "entry" if found.damaged == 1 else f"{found.damaged} entries"
            warn(
                f"The last {which} of {self.journal.path} cannot be read: the run resumes at arrival {resumes_at:,}, "
                f"and what came after that is lost{kept}",
            )

    def begin(self, entries: int = 0) -> None:
        """Continue the journal after ``entries`` repeated entries; they are in it already."""
        self.journal.open(self._entries_included + entries)
        if self._gap and not entries:  # an older checkpoint must not read past the missing entries
            self.journal.mark()

    def save(self, arrivals: int, state: dict[str, Any], now: bool = False) -> None:
        """Write a checkpoint in a thread, after the one before it.

        Args:
            arrivals: Number of arrivals counted.
            state: The state to save.
            now: Wait for this one, and raise OSError if it cannot be written: the first one must exist.
        """
        self.wait()
        with contextlib.suppress(OSError):  # still full; the user has been warned
            self.journal.resume()
        gap = self.journal.stopped
        checkpoint = {"entries": self.journal.entries, "gap": gap, "arrivals": arrivals, "state": state}
        self.saved_at = arrivals
        if now:
            self.write(arrivals, checkpoint)
            return
        self._thread = threading.Thread(target=self._write_in_thread, args=(arrivals, checkpoint))
        self._thread.start()

    def _write_in_thread(self, arrivals: int, checkpoint: dict[str, Any]) -> None:
        try:
            self.write(arrivals, checkpoint)
        except Exception as error:
            self._error = error  # raised or reported by `wait`: an exception in a thread is lost

    def wait(self) -> None:
        """Wait for the thread, and report its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            if not isinstance(error, OSError):
                raise error
            warn(
                f"A checkpoint could not be written to {self.folder} ({error.strerror}): training continues, the "
                "older checkpoints are intact",
            )

    def close(self) -> None:
        """Wait for the thread and close the files."""
        try:
            self.wait()
        finally:
            self.journal.close()
            super().close()
