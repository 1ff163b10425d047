"""The record of a run: its trace, and beside it a file with the final parameters and the method."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .._util.files import atomic
from ..trace import Trace

__all__ = ["read_record", "write_record"]


def write_record(trace: Trace, path: Path, x: Tensor, about: Mapping[str, Any]) -> Path:
    """Write a trace and, beside it, the final parameters and a description of the run."""
    trace.save(path)
    metadata = {"latecomer": json.dumps(dict(about), default=repr)}
    with atomic(path.with_suffix(".safetensors")) as temporary:
        temporary.write_bytes(save({"x": x.detach().clone()}, metadata))
    return path


def read_record(path: Path) -> tuple[Tensor | None, dict[str, Any]]:
    """Read the file beside a trace: final parameters and description, or None and an empty dict."""
    beside = path.with_suffix(".safetensors")
    if not beside.exists():
        return None, {}
    try:
        with safe_open(beside, "pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["latecomer"])
            return file.get_tensor("x"), about
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(f"{beside} is damaged: {error}") from error
