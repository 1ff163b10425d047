"""The record of a run: its trace, and beside it a file with the final parameters and the method."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from .._util.files import atomic, check_distinct
from .._util.wording import in_short
from ..core.flat import digest
from ..trace import Trace

__all__ = ["as_recorded", "beside", "check_outputs", "read_record", "write_record"]


def write_record(trace: Trace, path: Path, x: Tensor, about: Mapping[str, Any]) -> Path:
    """Write a trace and, beside it, the final parameters and a description of the run, with a digest of both."""
    trace.save(path)
    text = _text({**about, "trace": trace.digest})
    with atomic(beside(path)) as temporary:
        final = {"x": x.detach().to("cpu", copy=True)}
        temporary.write_bytes(save(final, {"latecomer": text, "sha256": _seal(text, x)}))
    return path


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
