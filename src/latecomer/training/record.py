"""The record of a run: its trace, and beside it a file with the final parameters, the method, history and faults."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from .._util.files import atomic, check_distinct
from .._util.wording import in_short
from ..core.faults import FaultLog
from ..core.flat import digest
from ..core.history import MEANS
from ..trace import Trace

__all__ = [
    "as_recorded",
    "beside",
    "check_outputs",
    "read_record",
    "recorded_faults",
    "recorded_history",
    "write_record",
]

_COUNTED = ("update", "arrival")  # columns of a history that are whole numbers


def write_record(
    trace: Trace, path: Path, x: Tensor, about: Mapping[str, Any], history: pl.DataFrame | None = None
) -> Path:
    """Write a trace and, beside it, the final parameters, the history and a description, with a digest of all.

    The history is a tensor, one row per evaluation, in which what is missing is NaN; its digest and the names of its
    columns are in the description.
    """
    trace.save(path)
    tensors = {"x": x.detach().to("cpu", copy=True)}
    about = {**about, "trace": trace.digest}
    if history is not None and history.height:
        tensors["history"] = _numbers(history)
        about["history"] = {"columns": history.columns, "sha256": digest(tensors["history"])}
    text = _text(about)
    with atomic(beside(path)) as temporary:
        temporary.write_bytes(save(tensors, {"latecomer": text, "sha256": _seal(text, x)}))
    return path


def _numbers(history: pl.DataFrame) -> Tensor:
    """Return a history as a matrix; what is no number is NaN."""
    rows = [
        [float(value) if isinstance(value, (int, float)) else math.nan for value in row] for row in history.iter_rows()
    ]
    return torch.tensor(rows, dtype=torch.float64)


def read_record(path: Path, trace: Trace) -> tuple[Tensor | None, dict[str, Any]]:
    """Read and verify the file beside a trace: final parameters and description, or None and an empty dict.

    Files from before there was a digest are read without.
    """
    file = beside(path)
    if not file.exists():
        return None, {}
    try:
        with safe_open(file, "pt") as opened:
            metadata = dict(opened.metadata() or {})
            x, text = opened.get_tensor("x"), metadata.pop("latecomer")
        stated = metadata.pop("sha256", None)
        if metadata or (stated is not None and stated != _seal(text, x)):
            raise ValueError("it does not match its SHA-256")
        about = json.loads(text)
        if not isinstance(about, dict) or not isinstance(about.get("options", {}), dict):
            raise ValueError("it does not describe a run")
    except Exception as error:  # whatever a damaged file makes the reader raise
        raise ValueError(f"{file} is damaged: {in_short(error)}") from error
    if about.get("trace", trace.digest) != trace.digest:
        raise ValueError(f"{file.name} belongs to another run than {path.name}: a record is both files")
    return x, about


def recorded_history(path: Path, about: Mapping[str, Any]) -> pl.DataFrame | None:
    """Return the history of a record, None if it has none; a missing value is null in the first columns, else NaN."""
    stated = about.get("history")
    if stated is None:
        return None
    file = beside(path)
    try:
        with safe_open(file, "pt") as opened:
            rows = opened.get_tensor("history")
        names = [str(name) for name in stated["columns"]]
        if digest(rows) != stated["sha256"] or rows.dtype != torch.float64 or rows.shape[1:] != (len(names),):
            raise ValueError("its history does not match its SHA-256")
        table = pl.DataFrame(rows.numpy(), schema=names)
    except Exception as error:  # whatever a damaged file makes the reader raise
        raise ValueError(f"{file} is damaged: {in_short(error)}") from error
    whole = [pl.col(name).cast(pl.Int64) for name in _COUNTED if name in names]
    return table.with_columns(*whole, *(pl.col(name).fill_nan(None) for name in MEANS if name in names))


def recorded_faults(path: Path, about: Mapping[str, Any]) -> FaultLog | None:
    """Return the faults of a record, None if it has no list of them."""
    if "faults" not in about:
        return None
    log = FaultLog()
    try:
        log.load_state_dict(about["faults"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{beside(path)} is damaged: its faults cannot be read") from error
    return log


def as_recorded(value: Any) -> Any:
    """Return a value as a record gives it back: a tuple as a list, for example."""
    return json.loads(_text(value))


def _text(value: Any) -> str:
    return json.dumps(value, default=repr)


def beside(path: Path) -> Path:
    """Return where the final parameters of a recorded run are."""
    return path.with_suffix(".safetensors")


def check_outputs(
    record: Path | None, *, checkpoint: Path | None, tensorboard: Path | None, save: Path | None = None
) -> None:
    """Refuse outputs of a run that would overwrite each other, before it begins."""
    files: dict[str, Path | None] = {"record": record, "save": save}
    if record is not None:
        if record.suffix != ".parquet":
            raise ValueError(
                f"Invalid record: {str(record)!r} (it is a Parquet file, and the final parameters are written beside "
                f"it as {record.stem}.safetensors: call it {record.stem}.parquet)"
            )
        files["the final parameters of record"] = beside(record)
    check_distinct(files, {"checkpoint": checkpoint, "tensorboard": tensorboard})
    for what, path in files.items():
        own = path is not None and path.name.startswith(("arrival-", "journal", ".lock"))
        if own and path is not None and checkpoint is not None and path.parent.resolve() == checkpoint.resolve():
            raise ValueError(f"{what} would overwrite {path}, which belongs to the checkpoints: choose another name")


def _seal(text: str, x: Tensor) -> str:
    what = f"{digest(x)} {x.dtype} {tuple(x.shape)} {text}"
    return hashlib.sha256(what.encode(errors="surrogatepass")).hexdigest()
