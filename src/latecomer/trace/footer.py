"""What a Parquet file would become in memory, from its footer and the heads of its pages, before anything is unpacked.

Compressed data of a few megabytes can unpack to many gigabytes, and polars unpacks whatever a file says. A footer is a
Thrift structure in the compact protocol; only the fields that count rows and bytes are looked at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Extent", "measure"]

_DEPTH = 32  # a footer has about eight levels
_BOOLEANS = (1, 2)
# Fields of parquet.thrift, by number.
_FILE_ROWS, _FILE_GROUPS = 3, 4
_GROUP_COLUMNS, _GROUP_ROWS = 1, 3
_CHUNK_METADATA = 3
_COLUMN_VALUES, _COLUMN_PACKED, _COLUMN_DATA, _COLUMN_DICTIONARY = 5, 7, 9, 11
_PAGE_UNPACKED, _PAGE_PACKED = 2, 3
_PAGE_KINDS = (5, 7, 8)  # heads of a data page, of a dictionary page, and of a data page of the second version
_PAGE_VALUES = 1


class Extent(NamedTuple):
    """What a file unpacks to.

    Args:
        rows: Rows, as the largest of all numbers that the file states.
        size: Bytes of all its pages, unpacked.
    """

    rows: int
    size: int


def measure(raw: bytes, footer: int) -> Extent:
    """Return what a Parquet file says about its size; raise ValueError if that cannot be read.

    Args:
        raw: The file.
        footer: Where its footer starts.
    """
    file, _ = _Thrift(raw, footer, len(raw) - 8).struct()
    rows, size, in_groups = _whole(file.get(_FILE_ROWS, 0)), 0, 0
    for group in _structs(file.get(_FILE_GROUPS, [])):
        group_rows = _whole(group.get(_GROUP_ROWS, 0))
        for chunk in _structs(group.get(_GROUP_COLUMNS, [])):
            (column,) = _structs([chunk.get(_CHUNK_METADATA)])
            start = _whole(column.get(_COLUMN_DICTIONARY, column.get(_COLUMN_DATA)))
            values, unpacked = _pages(raw, start, start + _whole(column.get(_COLUMN_PACKED)))
            group_rows = max(group_rows, values, _whole(column.get(_COLUMN_VALUES, 0)))
            size += unpacked
        in_groups += group_rows
    return Extent(max(rows, in_groups), size)


def _pages(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Return how many values the pages of a column have, and their unpacked size."""
    if end > len(raw):
        raise ValueError("a column ends behind the file")
    values = size = 0
    while at < end:
        head, at = _Thrift(raw, at, end).struct()
        size += _whole(head.get(_PAGE_UNPACKED))
        at += _whole(head.get(_PAGE_PACKED))
        data, dictionary, second = (_structs([head[kind]])[0] if kind in head else {} for kind in _PAGE_KINDS)
        values += _whole(data.get(_PAGE_VALUES, 0)) + _whole(second.get(_PAGE_VALUES, 0))
        _whole(dictionary.get(_PAGE_VALUES, 0))
    return values, size


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of rows or bytes")
    return value


def _structs(values: Any) -> list[dict[int, Any]]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError("its structure is not that of a Parquet file")
    return values


class _Thrift:
    """Reads a structure in Thrift's compact protocol into nested dicts (by number of the field) and lists."""

    def __init__(self, raw: bytes, at: int, end: int) -> None:
        self._raw, self._at, self._end = raw, at, end

    def _byte(self) -> int:
        if not 0 <= self._at < self._end:
            raise ValueError("it ends within a structure")
        self._at += 1
        return self._raw[self._at - 1]

    def _number(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("a number is too long")

    def _signed(self) -> int:
        value = self._number()
        return value >> 1 ^ -(value & 1)

    def struct(self, depth: int = 0) -> tuple[dict[int, Any], int]:
        """Return a structure, and where it ends."""
        found: dict[int, Any] = {}
        number = 0
        while True:
            head = self._byte()
            if not head & 15:
                return found, self._at
            number = number + (head >> 4) if head >> 4 else self._signed()
            found[number] = head & 15 == 1 if head & 15 in _BOOLEANS else self._value(head & 15, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEPTH:
            raise ValueError("its structure is too deep")
        if kind in (*_BOOLEANS, 3):  # in a list a truth value takes a byte
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._number())
        if kind in (9, 10):
            head = self._byte()
            count = self._number() if head >> 4 == 15 else head >> 4
            if count > self._end - self._at:  # an entry takes a byte at least
                raise ValueError("a list is longer than the file")
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind == 11:
            return self._map(depth)
        if kind == 12:
            return self.struct(depth + 1)[0]
        raise ValueError(f"there is no type {kind}")

    def _skip(self, length: int) -> None:
        if length > self._end - self._at:
            raise ValueError("a text is longer than the file")
        self._at += length

    def _map(self, depth: int) -> None:
        count = self._number()
        if not count:
            return
        if count > self._end - self._at:
            raise ValueError("a map is longer than the file")
        kinds = self._byte()
        for _ in range(count):
            self._value(kinds >> 4, depth + 1)
            self._value(kinds & 15, depth + 1)
