"""Traces as Parquet files with a versioned header; reading trusts nothing."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .._util.files import atomic
from .footer import measure
from .schema import COLUMNS, NULLS, STATUSES, Header, TraceError

__all__ = ["checksum", "read", "write"]

SCHEMA_VERSION = 2
_KEY = "latecomer.trace"
_LARGEST_HEADER = 1 << 26  # joins and leaves are listed in it
_MAGIC = b"PAR1"  # what a Parquet file begins and ends with
# Polars believes the sizes it reads, and a damaged one can end the process. So the SHA-256 of the whole file stands
# between its data and its footer, where no reader of Parquet looks, and is checked before polars sees a byte. Files
# that something else has written have none; polars reads them unchecked, and stops at most damage with a panic, which
# is not an Exception.
_SEAL = b"latecomer.sha256"
_SEAL_LENGTH = len(_SEAL) + hashlib.sha256().digest_size
# A row has eight random bytes, the seed of its sample, which nothing can compress; only rows of a ticket that was lost
# and issued again repeat them. So a file with fewer than four bytes per row is no trace of a run.
_BYTES_PER_ROW = 4
_ROWS_OF_ANY_FILE = 1 << 16  # about 20 MB in memory
_UNPACKING = 64
_BYTES_OF_ANY_FILE = 1 << 24
_STATUS_TYPES = (pl.String, pl.Categorical, pl.Enum)
_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, OSError, MemoryError, OverflowError)


def write(header: Header, columns: Mapping[str, NDArray[Any]], path: Path) -> Path:
    """Write a trace; an existing file is replaced in one go or not at all."""
    series = []
    for name in COLUMNS:
        column = pl.Series(name, columns[name])
        if name == "status":
            column = column.replace_strict({-1: None, **dict(enumerate(STATUSES))}, return_dtype=pl.String)
        elif name in ("start", "end"):
            column = column.fill_nan(None)
        elif name in NULLS:
            column = column.set(column == NULLS[name], None)
        series.append(column)
    text = json.dumps({"schema": SCHEMA_VERSION, **asdict(header), "checksum": checksum(header, columns)})
    written = io.BytesIO()  # not the file: polars has errors of its own for a disk that is full
    pl.DataFrame(series).write_parquet(written, metadata={_KEY: text})
    raw = written.getvalue()
    footer = _footer(raw)
    with atomic(path) as temporary:
        temporary.write_bytes(b"".join([raw[:footer], _SEAL, hashlib.sha256(raw).digest(), raw[footer:]]))
    return path


def _footer(raw: bytes) -> int:
    """Return where the footer of a Parquet file starts."""
    return len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")


def _check_seal(raw: bytes, path: Path) -> None:
    """Raise if the file has a checksum of its bytes and other bytes."""
    footer = _footer(raw)
    start = footer - _SEAL_LENGTH
    if start < 0 or not raw.startswith(_SEAL, start):
        return
    sha = hashlib.sha256(memoryview(raw)[:start])
    sha.update(memoryview(raw)[footer:])
    if sha.digest() != raw[start + len(_SEAL) : footer]:
        raise TraceError(f"{path} is damaged: its bytes do not fit their checksum")


def checksum(header: Header, columns: Mapping[str, NDArray[Any]]) -> str:
    """Return a fingerprint of everything in the file."""
    values = asdict(header)
    if not header.given_up:  # files from before there was such a list have the same checksum
        del values["given_up"]
    sha = hashlib.sha256(json.dumps(values).encode())
    for name in COLUMNS:
        sha.update(columns[name].tobytes())
    return sha.hexdigest()


def read(path: Path) -> tuple[Header, dict[str, NDArray[Any]], str]:
    """Read header, columns and checksum; a file that is no trace gets one clear sentence."""
    try:
        if path.is_dir():
            raise TraceError(f"{path} is a folder, not a trace file")
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"Cannot read {path}: {error.strerror}") from error
    if not raw:
        raise TraceError(f"{path} is empty")
    if len(raw) < 12 or not raw.startswith(_MAGIC) or not raw.endswith(_MAGIC):
        raise TraceError(f"{path} is not a trace: it is truncated, or no Parquet file at all")
    _check_seal(raw, path)
    _check_extent(raw, path)
    try:
        metadata = pl.read_parquet_metadata(io.BytesIO(raw))
        schema = dict(pl.read_parquet_schema(io.BytesIO(raw)))
    except pl.exceptions.DuplicateError as error:
        raise TraceError(f"{path} has two columns of the same name") from error
    except _UNREADABLE as error:
        raise TraceError(f"{path} is not a trace: its structure is damaged") from error
    header, stated = _header(metadata, path)
    missing = [name for name in COLUMNS if name not in schema]
    if missing:
        raise TraceError(f"{path} has a trace's header but lacks the columns {', '.join(missing)}")
    for name in COLUMNS:
        _check_type(schema[name], name, path)
    try:
        frame = pl.read_parquet(raw, columns=list(COLUMNS))
        return header, {name: _column(frame[name], name, path) for name in COLUMNS}, stated
    except TraceError:
        raise
    except _UNREADABLE as error:
        raise TraceError(f"{path} is damaged: its data cannot be read") from error


def _header(metadata: Mapping[str, str], path: Path) -> tuple[Header, str]:
    raw = metadata.get(_KEY)
    if raw is None:
        raise TraceError(f"{path} is a Parquet file but no trace: it has no {_KEY} header")
    try:
        values: dict[str, Any] = json.loads(raw if len(raw) <= _LARGEST_HEADER else "null")
        schema = values.pop("schema")
        if schema != SCHEMA_VERSION:
            raise TraceError(f"{path} has trace schema {schema!r}; this version of Latecomer reads {SCHEMA_VERSION}")
        stated = str(values.pop("checksum"))
        joined, left = (tuple((at, seat) for at, seat in values[name]) for name in ("joined", "left"))
        given_up = tuple(values.get("given_up", ()))
        tuples = {"groups": tuple(values["groups"]), "joined": joined, "left": left, "given_up": given_up}
        header = Header(**{**values, **tuples})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{path} has a header that cannot be understood") from error
    fits = {
        "workers": type(header.workers) is int and 1 <= header.workers < 2**31,
        "seed": type(header.seed) is int and header.seed >= 0,
        "policy": isinstance(header.policy, str),
        "groups": 0 < len(header.groups) < 2**15 and all(isinstance(name, str) for name in header.groups),
        "model": isinstance(header.model, str),
        "clock": header.clock in ("none", "virtual", "real"),
        "strict": isinstance(header.strict, bool),
        "joined": all(type(number) is int for event in header.joined for number in event),
        "left": all(type(number) is int for event in header.left for number in event),
        "given_up": all(type(number) is int for number in header.given_up),
        "versions": isinstance(header.versions, dict),
    }
    bad = [name for name, fine in fits.items() if not fine]
    if bad:
        raise TraceError(f"{path} has a header with an impossible {bad[0]}")
    return header, stated


def _check_extent(raw: bytes, path: Path) -> None:
    """Refuse a file that would take far more memory than it takes on disk, before anything is unpacked."""
    try:
        rows, size = measure(raw, _footer(raw))
    except (ValueError, IndexError, RecursionError) as error:
        raise TraceError(f"{path} is not a trace: its structure is damaged") from error
    most_rows = max(_ROWS_OF_ANY_FILE, len(raw) // _BYTES_PER_ROW)
    most_bytes = max(_BYTES_OF_ANY_FILE, _UNPACKING * len(raw))
    if rows > most_rows or size > most_bytes:
        raise TraceError(
            f"{path} has {len(raw):,} bytes and would unpack to {rows:,} rows and {size:,} bytes (a trace of that size "
            f"has at most {most_rows:,} rows and {most_bytes:,} bytes): it is damaged, or was made to fill the memory"
        )


def _check_type(found: Any, name: str, path: Path) -> None:
    if name == "status":
        fits, wanted = isinstance(found, _STATUS_TYPES) or found in _STATUS_TYPES, "string"
    else:
        wanted = np.dtype(COLUMNS[name]).name
        fits = str(found).lower() == wanted
    if not fits:
        raise TraceError(f"{path} has a column {name} of type {str(found).lower()[:40]} instead of {wanted}")


def _column(column: pl.Series, name: str, path: Path) -> NDArray[Any]:
    if name == "status":
        words = column.cast(pl.String)  # files of version 0.1 have categories here
        unknown = words.filter(~words.is_in(STATUSES))
        if len(unknown):
            raise TraceError(f"{path} has an unknown status {unknown[0][:40]!r}")
        codes: dict[str | None, int] = {None: NULLS[name], **{word: code for code, word in enumerate(STATUSES)}}
        return words.replace_strict(codes, return_dtype=pl.Int8).to_numpy()
    if column.null_count():
        if name not in NULLS and name not in ("start", "end"):
            raise TraceError(f"{path} has an empty {name} in {column.null_count()} rows")
        column = column.fill_null(np.nan if name in ("start", "end") else NULLS[name])
    return column.to_numpy()
