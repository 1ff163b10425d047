"""A line for everything that is counted, so that what a dead server had applied can be done again to the bit."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = ["ABSENT", "Entry", "Journal"]

ABSENT = 2
"""The ``group`` of a loss that is nobody's fault; of others it is 1 if the task raised, 0 if the worker died."""

_GAP = b"X"
_ENTRY = struct.Struct("<ciqid")
_CHECK = struct.Struct("<I")
_SIZE = _ENTRY.size + _CHECK.size


class Entry(NamedTuple):
    """Something that was counted.

    Args:
        kind: ``b"I"`` issued, ``b"L"`` lost, ``b"A"`` arrived, ``b"G"`` given up, ``b"J"`` joined; ``b"X"`` where
            entries are missing.
        worker: Whose.
        number: Of which ticket.
        group: Of its sample; of a ticket that came to nothing, why.
        at: The clock.
    """

    kind: bytes
    worker: int
    number: int
    group: int
    at: float


class Journal:
    """An append-only file of entries of one size, each with a checksum; a torn end is cut off.

    What a killed process has written is safe; nothing is flushed to the disk, so when the power fails the last entries
    may be missing, and the run goes on from before them. When the disk is full the journal stops; `resume` lets it go
    on behind a mark, which nobody reads past who comes from before it.

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
        for place in range(0, len(data) - _SIZE + 1, _SIZE):
            body = data[place : place + _ENTRY.size]
            if _CHECK.unpack_from(data, place + _ENTRY.size)[0] != zlib.crc32(body):
                break
            entry = Entry(*_ENTRY.unpack(body))
            if entry.kind == _GAP:
                break
            found.append(entry)
        return found

    def open(self, entries: int) -> None:
        """Go on after so many entries; what stands behind them is cut off."""
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
        """Write an entry; if the disk is full, the journal ends here and says so by raising OSError once."""
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
        """Go on behind a mark, if the journal had to stop; may raise OSError again, and has then changed nothing."""
        if self._file is None and self.stopped:
            self.open(self.entries)
            self.mark()

    def mark(self) -> None:
        """Say that what came before here is not in the journal."""
        self.append(Entry(_GAP, 0, 0, 0, 0.0))

    @property
    def going(self) -> bool:
        """Whether entries are being written."""
        return self._file is not None

    def close(self) -> None:
        """Stop writing."""
        if self._file is not None:
            self._file.close()
            self._file = None
