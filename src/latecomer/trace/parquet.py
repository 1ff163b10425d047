"""Traces as Parquet files with a versioned header; reading trusts nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .._util.files import atomic
from .schema import COLUMNS, NULLS, STATUSES, Header, TraceError

__all__ = ["checksum", "read", "write"]

SCHEMA_VERSION = 2
_KEY = b"latecomer.trace"
_LARGEST_HEADER = 1 << 26  # joins and leaves are listed in it


def write(header: Header, columns: Mapping[str, NDArray[Any]], path: Path) -> Path:
    """Write a trace; an existing file is replaced in one go or not at all."""
    arrays = []
    for name in COLUMNS:
        column = columns[name]
        if name == "status":
            words = np.array([*STATUSES, None], dtype=object)[column]
            arrays.append(pa.array(words, pa.string()).dictionary_encode())
        elif name in ("start", "end"):
            arrays.append(pa.array(column, mask=np.isnan(column)))
        else:
            arrays.append(pa.array(column, mask=column == NULLS[name] if name in NULLS else None))
    table = pa.table(dict(zip(COLUMNS, arrays, strict=True)))
    text = json.dumps({"schema": SCHEMA_VERSION, **asdict(header), "checksum": checksum(header, columns)})
    with atomic(path) as temporary:
        pq.write_table(table.replace_schema_metadata({_KEY: text.encode()}), temporary, compression="zstd")
    return path


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
        if path.stat().st_size == 0:
            raise TraceError(f"{path} is empty")
        file = pq.ParquetFile(path)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise TraceError(f"{path} is not a trace: it is truncated, or no Parquet file at all") from error
    except OSError as error:
        if error.errno is None:  # Arrow's own way of saying that it makes no sense
            raise TraceError(f"{path} is not a trace: its structure is damaged") from error
        raise TraceError(f"Cannot read {path}: {error.strerror}") from error
    with file:
        try:
            header, stated = _header(file.schema_arrow.metadata, path)
            missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
            if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
                raise TraceError(f"{path} has two columns of the same name")
            if missing:
                raise TraceError(f"{path} has a trace's header but lacks the columns {', '.join(missing)}")
            table = file.read(columns=list(COLUMNS))
            return header, {name: _column(table[name], name, path) for name in COLUMNS}, stated
        except (pa.ArrowException, UnicodeDecodeError, OSError, MemoryError, OverflowError) as error:
            raise TraceError(f"{path} is damaged: its data cannot be read") from error


def _header(metadata: Mapping[bytes, bytes] | None, path: Path) -> tuple[Header, str]:
    raw = (metadata or {}).get(_KEY)
    if raw is None:
        raise TraceError(f"{path} is a Parquet file but no trace: it has no {_KEY.decode()} header")
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
        "seed": type(header.seed) is int,
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


def _column(column: pa.ChunkedArray, name: str, path: Path) -> NDArray[Any]:
    kind = COLUMNS[name]
    if name == "status":
        words = column.cast(pa.string()).to_numpy(zero_copy_only=False)
        codes: dict[str | None, int] = {None: -1, **{word: i for i, word in enumerate(STATUSES)}}
        unknown = next((word for word in words if word not in codes), None)
        if unknown is not None:
            raise TraceError(f"{path} has an unknown status {str(unknown)[:40]!r}")
        return np.array([codes[word] for word in words], dtype=kind)
    wanted = pa.from_numpy_dtype(np.dtype(kind))
    if column.type != wanted:
        raise TraceError(f"{path} has a column {name} of type {column.type} instead of {wanted}")
    if column.null_count:
        if name not in NULLS and name not in ("start", "end"):
            raise TraceError(f"{path} has an empty {name} in {column.null_count} rows")
        column = column.fill_null(np.nan if name in ("start", "end") else NULLS[name])
    values: NDArray[Any] = column.to_numpy()
    return values
