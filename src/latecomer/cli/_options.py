"""What several commands read from the command line in the same way."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import tyro

from .._util.imports import import_file

__all__ = ["LR", "Imports", "Pairs", "hyper_parameters", "import_all", "pairs"]

Pairs = tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]]
"""The type of an option that takes several name=value, and may be given more than once."""
Imports = Annotated[tyro.conf.UseAppendAction[tuple[Path, ...]], tyro.conf.arg(name="import", metavar="FILE.PY")]
"""The type of the option --import, which may be given more than once."""
LR: Mapping[str, Any] = MappingProxyType({"lr": 0.02})
"""What a method gets that has no default of its own, unless --set says otherwise."""


def pairs(given: Iterable[Iterable[str]], option: str = "--set") -> dict[str, Any]:
    """Read name=value; a value is a number, True, False or a word, and the last of two for one name counts.

    Args:
        given: The words after each use of the option.
        option: What the user typed, for errors.

    Examples:
        >>> pairs((("lr=0.1", "beta=0.5"), ("output=uniform",)))
        {'lr': 0.1, 'beta': 0.5, 'output': 'uniform'}
    """
    found: dict[str, Any] = {}
    groups = [list(words) for words in given]
    if not all(groups):
        raise ValueError(f"{option} is given without a value (expected name=value, such as lr=0.05)")
    for word in (word for words in groups for word in words):
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"Invalid setting {word!r} (expected name=value)")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = float(value) if value.lower() in ("nan", "inf", "-inf") else value
    return found


def hyper_parameters(method: str, given: Iterable[Iterable[str]]) -> dict[str, Any]:
    """Return what --set says, and the command's defaults for what it leaves out and the method has no default for.

    Examples:
        >>> hyper_parameters("momentum", [["beta=0.5"]])
        {'lr': 0.02, 'beta': 0.5}
        >>> hyper_parameters("catch-up-adamw", [["beta=0.5"]])
        {'beta': 0.5}
    """
    from ..optim import known_method

    found = known_method(method).arguments.items()
    required = {name for name, argument in found if argument.default is argument.empty}
    defaults = {name: value for name, value in LR.items() if name in required}
    return {**defaults, **pairs(given)}


def import_all(files: Iterable[Path]) -> None:
    """Import the files of --import, which register methods."""
    for file in files:
        import_file(file)
