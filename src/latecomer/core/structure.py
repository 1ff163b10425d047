"""The structure of a model as text, so that another model of the same size is not taken for it."""

from __future__ import annotations

import hashlib
import re

from torch import nn

__all__ = ["first_difference", "structure", "structure_digest"]

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")  # in the repr of a function, other in every process


def structure(module: nn.Module) -> str:
    """Return the module's repr, and name, shape and dtype of every parameter and buffer, without any values.

    What a module computes in ``forward`` without a layer of its own, such as ``nn.functional.relu``, is not in it.
    """
    lines = [_ADDRESS.sub("0x", repr(module))]
    for name, parameter in module.named_parameters(remove_duplicate=False):
        frozen = "" if parameter.requires_grad else ", frozen"
        lines.append(f"parameter {name}: {parameter.dtype} {tuple(parameter.shape)}{frozen}")
    for name, buffer in module.named_buffers(remove_duplicate=False):
        lines.append(f"buffer {name}: {buffer.dtype} {tuple(buffer.shape)}")
    return "\n".join(lines)


def structure_digest(text: str) -> str:
    """Return a short fingerprint of what `structure` returned."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def first_difference(recorded: str, here: str) -> str:
    """Say where two structures differ, for people; an empty string if they do not.

    Examples:
        >>> first_difference(structure(nn.Sequential(nn.GELU())), structure(nn.Sequential(nn.ReLU())))
        "the recorded model has (0): GELU(approximate='none') where this one has (0): ReLU()"
    """
    if recorded == here:
        return ""
    old, new = recorded.splitlines(), here.splitlines()
    length = max(len(old), len(new))
    lines = zip(old + ["nothing"] * (length - len(old)), new + ["nothing"] * (length - len(new)), strict=True)
    then, now = next((a.strip()[:200], b.strip()[:200]) for a, b in lines if a != b)
    return f"the recorded model has {then} where this one has {now}"
