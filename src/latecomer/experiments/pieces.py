"""Finished runs as files that can be committed: each piece is written once and never changed.

A piece is a gzipped text file with one run per line: its record, how long it took, and its evaluations. A store can be
filled from pieces, so nothing is computed twice when a machine is gone. Pieces can also be read without a store.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from .._util.files import atomic, check_no_file
from .._util.wording import in_short
from .spec import RunSpec
from .store import Store

__all__ = ["FinishedRuns", "Pieces", "read_piece"]

_PATTERN = "runs-*.jsonl.gz"
_UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, zlib.error,
    pl.exceptions.PolarsError,
)  # fmt: skip


class FinishedRuns(Protocol):
    """Runs that can be looked up by their key: a store, or pieces."""

    def __contains__(self, key: str, /) -> bool: ...
    def record(self, key: str) -> dict[str, Any]:
        """Return the record of a run."""
        ...

    def history(self, key: str) -> pl.DataFrame:
        """Return the evaluations of a run."""
        ...

    def seconds(self, key: str) -> float | None:
        """Return the CPU seconds that a run took, if they are known."""
        ...


def read_piece(path: Path) -> list[tuple[RunSpec, dict[str, Any]]]:
    """Return the runs of a piece: spec and entry (record, seconds, history); a damaged file gets a sentence."""
    runs: dict[str, tuple[RunSpec, dict[str, Any]]] = {}
    try:
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            entry = json.loads(line)
            run = RunSpec(**entry["record"]["spec"])
            if run.key != entry["record"]["key"]:
                raise ValueError(f"the run {entry['record']['key'][:12]} has another key than its spec says")
            if run.key in runs:
                raise ValueError(f"the run {run.key[:12]} is in it twice")
            outcome, final = entry["record"]["outcome"], entry["record"]["final"]
            if not isinstance(outcome, dict) or not all(map(_known, final.values())):
                raise ValueError(f"the run {run.key[:12]} has no result")
            entry["seconds"], columns = float(entry["seconds"]), entry["history"]
            entry["history"] = {name: [_number(value) for value in values] for name, values in columns.items()}
            if {len(values) for values in columns.values()} != {len(columns["update"])}:
                raise ValueError(f"the columns of {run.key[:12]} have several lengths")
            if not columns["update"]:
                raise ValueError(f"the run {run.key[:12]} has no evaluations")
            runs[run.key] = run, entry
        if not runs:
            raise ValueError("it is empty")
    except _UNREADABLE as error:
        raise ValueError(f"{path} is damaged ({in_short(error)}): take it from the repository again") from None
    return list(runs.values())


class Pieces:
    """The runs in a folder of pieces. Every piece is read once; those that were added meanwhile are read when needed.

    Args:
        folder: The folder.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store, pieces = Store(Path(folder, "a")), Pieces(Path(folder))
        ...     spec = RunSpec("quadratic", "momentum", "uniform", steps=10)
        ...     store.put(spec, pl.DataFrame({"update": [0, 10], "loss": [1.0, 0.5]}), {"diverged_at": None}, 0.1)
        ...     pieces.export(store).name, spec.key in pieces, pieces.history(spec.key)["loss"].to_list()
        ('runs-0001.jsonl.gz', True, [1.0, 0.5])
    """

    def __init__(self, folder: Path) -> None:
        check_no_file("folder of committed runs", folder)
        self.folder = folder
        self._read: set[Path] = set()
        self._entries: dict[str, tuple[RunSpec, dict[str, Any]]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the pieces that have not been read."""
        for path in sorted(set(self.folder.glob(_PATTERN)) - self._read):
            self._entries |= {run.key: (run, entry) for run, entry in read_piece(path)}
            self._read.add(path)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, key: str) -> dict[str, Any]:
        """Return the record of a run."""
        return dict(self._entries[key][1]["record"])

    def seconds(self, key: str) -> float:
        """Return the duration of a run."""
        return float(self._entries[key][1]["seconds"])

    def history(self, key: str) -> pl.DataFrame:
        """Return the evaluations of a run."""
        history = self._entries[key][1]["history"]
        return pl.DataFrame(history, infer_schema_length=None, schema_overrides={"time": pl.Float64})

    def fill(self, store: Store) -> int:
        """Put all runs into a store, unless it has them, and return how many were new."""
        new = [key for key in self._entries if key not in store]
        for key in new:
            run, entry = self._entries[key]
            store.put(run, self.history(key), entry["record"]["outcome"], entry["seconds"])
        return len(new)

    def export(self, store: Store) -> Path | None:
        """Write the runs of a store that no piece has into a new piece; None if there are none."""
        self.refresh()
        todo = sorted(set(store.keys()) - self._entries.keys())
        if not todo:
            return None
        lines = []
        for key in todo:
            columns = store.history(key).to_dict(as_series=False)
            history = {name: [_text(value) for value in values] for name, values in columns.items()}
            entry = {"record": store.record(key), "seconds": store.seconds(key) or 0.0, "history": history}
            lines.append(json.dumps(entry))
        number = 1 + max((int(path.name.split("-")[1].split(".")[0]) for path in self._read), default=0)
        target = self.folder / f"runs-{number:04d}.jsonl.gz"
        with atomic(target) as temporary:
            temporary.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
        self.refresh()
        return target


def _known(value: Any) -> bool:
    """Return whether this is a metric as a record has it: a number, or None if it was not finite."""
    return value is None or isinstance(value, (int, float))


def _text(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as words."""
    return value if not isinstance(value, float) or math.isfinite(value) else repr(value)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
