"""The journal: one entry per counted change, so that the work of a crashed server can be repeated to the bit."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = ["ABSENT", "COUNTED", "Entry", "Found", "Journal"]

ABSENT = 2
"""The ``group`` of a lost ticket whose worker was absent; 1 means that the task raised, 0 that the worker died."""

_GAP = b"X"
_KINDS = (b"I", b"L", b"A", b"G", b"J", _GAP)
COUNTED = (b"A", b"G")
"""The kinds of entries that are arrivals."""
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


class Found(NamedTuple):
    """The entries that a journal has after some number.

    Args:
        entries: The entries, up to the first that is damaged or missing.
        repaired: Numbers of the entries among them that had one flipped bit, which the checksum corrects.
        behind: Good entries behind the first that is damaged beyond repair. They cannot be repeated, because the state
            that they change is lost with the damaged one.
        damaged: Number of entries damaged beyond repair. An incomplete one at the end is what a crash leaves, and does
            not count.
        missing: Whether the file ends before the first of the entries that were asked for.
    """

    entries: list[Entry]
    repaired: dict[int, Entry]
    behind: list[Entry]
    damaged: int
    missing: bool


class Journal:
    """An append-only file of entries of fixed size, each with a checksum; an incomplete end is cut off.

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
        return self.look(start).entries

    def look(self, start: int) -> Found:
        """Return the entries from number ``start`` on, and what is damaged."""
        content = self.path.read_bytes() if self.path.exists() else b""
        data = content[start * _SIZE :]
        entries: list[Entry] = []
        repaired: dict[int, Entry] = {}
        behind: list[Entry] = []
        good, damaged = True, 0
        whole = len(data) // _SIZE
        for number in range(whole):
            raw = data[number * _SIZE : (number + 1) * _SIZE]
            entry = _entry(raw)
            if entry is None and good:
                entry = _corrected(raw)
                if entry is not None:
                    repaired[start + number] = entry
            if entry is None:
                good, damaged = False, damaged + 1
            elif entry.kind == _GAP:
                break
            else:
                (entries if good else behind).append(entry)
        else:
            damaged += good and not _is_torn(data[whole * _SIZE :])
        return Found(entries, repaired, behind, damaged, len(content) < start * _SIZE)

    def keep_copy(self) -> str:
        """Copy the file, because what cannot be repeated is cut off; return where the copy is, for a warning."""
        if not self.path.exists():
            return ""
        try:
            return f"; a copy is in {self._copied().name}"
        except OSError as error:
            return f"; it could not be copied ({error.strerror})"

    def _copied(self) -> Path:
        """Copy the file to ``journal.damaged``, or ``journal.damaged-2``, ...: no earlier copy is overwritten."""
        data = self.path.read_bytes()
        for number in itertools.count(1):
            copy = self.path.with_name(f"{self.path.name}.damaged{'' if number == 1 else f'-{number}'}")
            try:
                with copy.open("xb") as file:
                    file.write(data)
                return copy
            except FileExistsError:
                if copy.is_file() and copy.read_bytes() == data:  # of a recovery that was interrupted
                    return copy
        raise AssertionError

    def write_back(self, entries: Mapping[int, Entry]) -> None:
        """Write repaired entries in their places."""
        with self.path.open("r+b") as file:
            for number, entry in entries.items():
                file.seek(number * _SIZE)
                file.write(_packed(entry))

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
        try:
            written = self._file.write(_packed(entry))
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


def _packed(entry: Entry) -> bytes:
    body = _ENTRY.pack(*entry)
    return body + _CHECK.pack(zlib.crc32(body))


def _entry(raw: bytes) -> Entry | None:
    """Return an entry; None if it does not match its checksum."""
    body = raw[: _ENTRY.size]
    if _CHECK.unpack_from(raw, _ENTRY.size)[0] != zlib.crc32(body):
        return None
    return Entry(*_ENTRY.unpack(body))


def _is_torn(rest: bytes) -> bool:
    """Whether the incomplete end of a file may be the beginning of an entry: what it has of a checksum must match."""
    return _CHECK.pack(zlib.crc32(rest[: _ENTRY.size])).startswith(rest[_ENTRY.size :])


def _corrected(raw: bytes) -> Entry | None:
    """Return an entry with one flipped bit as it was; None if more is wrong.

    Two entries that match their checksums differ in far more than two bits, so at most one flip leads to one.
    """
    for bit in range(8 * len(raw)):
        entry = _entry((int.from_bytes(raw, "little") ^ (1 << bit)).to_bytes(len(raw), "little"))
        if entry is not None and entry.kind in _KINDS:
            return entry
    return None
