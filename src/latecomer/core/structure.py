"""The structure of a model as text, so that another model of the same size is not taken for it."""

from __future__ import annotations

import hashlib
import re

from torch import nn

__all__ = ["first_difference", "structure", "structure_digest"]

_SHOWN = 200  # characters of a part of a model
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
        >>> first_difference(structure(nn.Sequential(nn.GELU())), structure(nn.ReLU()))
        "the recorded model has Sequential((0): GELU(approximate='none')) where this one has ReLU()"
    """
    if recorded == here:
        return ""
    old, new = recorded.splitlines(), here.splitlines()
    length = max(len(old), len(new))
    row = next(i for i in range(length) if old[i : i + 1] != new[i : i + 1])
    return f"the recorded model has {_part(old, row)} where this one has {_part(new, row)}"


def _part(lines: list[str], row: int) -> str:
    """Return what begins in a line of a repr, up to the bracket that closes it, as one line."""
    first = lines[row].strip() if row < len(lines) else ")"
    if first == ")":
        return "nothing"
    closing = lines[row][: len(lines[row]) - len(lines[row].lstrip())] + ")"
    if not first.endswith("(") or closing not in lines[row:]:
        return _cut(first)
    inside = ", ".join(line.strip() for line in lines[row + 1 : lines.index(closing, row)])
    return _cut(f"{first}{inside})".replace("(, ", "(").replace(", )", ")"))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
