"""Finished runs as files that can be committed: each piece is written once and never changed.

A piece is a gzipped text file with one run per line: its record, how long it took, and its evaluations. A store can be
filled from pieces, so nothing is computed twice when a machine is gone.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from .._util.files import atomic
from .._util.wording import in_short
from .spec import RunSpec
from .store import Store

__all__ = ["export_runs", "import_runs", "read_piece"]

_PATTERN = "runs-*.jsonl.gz"
_UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, zlib.error,
    pl.exceptions.PolarsError,
)  # fmt: skip


def read_piece(path: Path) -> Iterator[tuple[RunSpec, dict[str, Any], float, pl.DataFrame]]:
    """Yield the runs of a piece: spec, record, seconds and history; a damaged file gets a sentence, and yields none."""
    seen: set[str] = set()
    runs = []
    try:
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            entry = json.loads(line)
            history = {name: [_number(value) for value in values] for name, values in entry["history"].items()}
            run = RunSpec(**entry["record"]["spec"])
            if run.key != entry["record"]["key"]:
                raise ValueError(f"the run {entry['record']['key'][:12]} has another key than its spec says")
            if run.key in seen:
                raise ValueError(f"the run {run.key[:12]} is in it twice")
            seen.add(run.key)
            table = pl.DataFrame(history, infer_schema_length=None, schema_overrides={"time": pl.Float64})
            runs.append((run, entry["record"], float(entry["seconds"]), table))
        if not runs:
            raise ValueError("it is empty")
    except _UNREADABLE as error:
        raise ValueError(f"{path} is damaged ({in_short(error)}): take it from the repository again") from None
    yield from runs


def import_runs(folder: Path, store: Store) -> int:
    """Put the runs of all pieces in a folder into a store, unless it has them, and return how many were new."""
    new = 0
    for path in sorted(folder.glob(_PATTERN)):
        for run, record, seconds, history in read_piece(path):
            if run.key not in store:
                store.put(run, history, record["outcome"], seconds)
                new += 1
    return new


def export_runs(store: Store, folder: Path, keys: list[str] | None = None) -> Path | None:
    """Write the runs of a store that no piece in the folder has into a new piece; None if there are none.

    Args:
        store: Where the runs are.
        folder: Where the pieces are.
        keys: Which runs; all if left out.
    """
    pieces = sorted(folder.glob(_PATTERN))
    known = {run.key for path in pieces for run, *_ in read_piece(path)}
    todo = [key for key in (store.keys() if keys is None else sorted(keys)) if key not in known and key in store]
    if not todo:
        return None
    lines = []
    for key in todo:
        columns = store.history(key).to_dict(as_series=False)
        history = {name: [_text(value) for value in values] for name, values in columns.items()}
        entry = {"record": store.record(key), "seconds": store.seconds(key) or 0.0, "history": history}
        lines.append(json.dumps(entry))
    number = 1 + max((int(path.name.split("-")[1].split(".")[0]) for path in pieces), default=0)
    target = folder / f"runs-{number:04d}.jsonl.gz"
    with atomic(target) as temporary:
        temporary.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
    return target


def _text(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as words."""
    return value if not isinstance(value, float) or math.isfinite(value) else repr(value)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
