"""The journal: one entry per counted change, so that the work of a crashed server can be repeated to the bit."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = ["ABSENT", "Entry", "Journal"]

ABSENT = 2
"""The ``group`` of a lost ticket whose worker was absent; 1 means that the task raised, 0 that the worker died."""

_GAP = b"X"
_ENTRY = struct.Struct("<ciqid")
_CHECK = struct.Struct("<I")
_SIZE = _ENTRY.size + _CHECK.size


class Entry(NamedTuple):
    """One change of the run's state.

    Args:
        kind: ``b"I"`` issued, ``b"L"`` lost, ``b"A"`` arrived, ``b"G"`` given up, ``b"J"`` joined; ``b"X"`` where
            entries are missing.
        worker: The worker.
        number: Number of the ticket.
        group: Group of its sample; for a lost or given-up ticket the reason.
        at: Time on the run's clock.
    """

    kind: bytes
    worker: int
    number: int
    group: int
    at: float


class Journal:
    """An append-only file of entries of fixed size, each with a checksum; a damaged end is cut off.

    Entries survive the death of the process. They are not flushed to disk, so a power failure may lose the last ones,
    and the run resumes before them. If the disk is full the journal stops; `resume` continues it after a gap marker.
    A checkpoint from before the gap reads only up to the marker.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = 0
        self._file: BinaryIO | None = None
        self.stopped = False

    def read(self, start: int) -> list[Entry]:
        """Return the entries from number ``start`` on, up to the first that is damaged or missing."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()[start * _SIZE :]
        found = []
        for offset in range(0, len(data) - _SIZE + 1, _SIZE):
            body = data[offset : offset + _ENTRY.size]
            if _CHECK.unpack_from(data, offset + _ENTRY.size)[0] != zlib.crc32(body):
                break
            entry = Entry(*_ENTRY.unpack(body))
            if entry.kind == _GAP:
                break
            found.append(entry)
        return found

    def open(self, entries: int) -> None:
        """Open for writing after ``entries`` entries; the rest is cut off."""
        self.path.touch()
        file = self.path.open("r+b", buffering=0)
        try:
            file.truncate(entries * _SIZE)
            file.seek(entries * _SIZE)
        except OSError:
            file.close()
            raise
        self._file, self.entries, self.stopped = file, entries, False

    def append(self, entry: Entry) -> None:
        """Write an entry; if the disk is full, raise OSError once and stop the journal."""
        if self._file is None:
            return
        body = _ENTRY.pack(*entry)
        try:
            written = self._file.write(body + _CHECK.pack(zlib.crc32(body)))
            if written != _SIZE:
                raise OSError(28, "No space left on device", str(self.path))
        except OSError:
            self.close()
            self.stopped = True
            raise
        self.entries += 1

    def resume(self) -> None:
        """Continue after a gap marker if the journal has stopped; if it raises OSError, nothing has changed."""
        if self._file is None and self.stopped:
            self.open(self.entries)
            self.mark()

    def mark(self) -> None:
        """Write a gap marker: entries before it are missing."""
        self.append(Entry(_GAP, 0, 0, 0, 0.0))

    @property
    def is_open(self) -> bool:
        """Whether entries are being written."""
        return self._file is not None

    def close(self) -> None:
        """Stop writing."""
        if self._file is not None:
            self._file.close()
            self._file = None
