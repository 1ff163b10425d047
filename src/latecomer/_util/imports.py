"""Importing a file of the user's, by its path, and taking what it defines."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .places import place_of

__all__ = ["file_and_name", "import_file", "named_in_file"]


def import_file(file: str | os.PathLike[str]) -> ModuleType:
    """Import a Python file under its own name, once per process; an error in it becomes a sentence.

    Its folder goes to the front of ``sys.path``, so the file may import its neighbours, and worker processes, which get
    the same path, find it by the same name.
    """
    path = Path(file)
    if path.suffix != ".py":
        raise ValueError(f"Invalid file to import: {str(file)!r} (expected a Python file: path/to/rules.py)")
    if not path.is_file():
        raise ValueError(f"There is no file {str(file)!r} to import")
    main = sys.modules.get("__main__")
    if Path(getattr(main, "__file__", None) or "").resolve() == path.resolve():
        return main  # type: ignore[return-value]  # the script that is running: a second time it would register twice
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(path.stem)
    except (Exception, SystemExit) as error:
        place = "" if isinstance(error, SyntaxError) else f" ({place_of(error)})"  # its message has file and line
        raise ValueError(f"{file} cannot be imported: {type(error).__name__}: {error}{place}") from error
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise ValueError(f"{file} has the name of another module, {module.__name__!r}: rename it")
    return module


def file_and_name(words: str, what: str) -> tuple[str, str]:
    """Return the two parts of ``path/to/script.py:name``; raise if there is no such file.

    Args:
        words: The file and the name.
        what: What it should be, for errors.
    """
    file, colon, name = words.rpartition(":") if isinstance(words, str) else ("", "", "")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ValueError(
            f"Invalid {what} {words!r} (expected a Python file and a name in it: path/to/script.py:{what})"
        )
    if not Path(file).is_file():
        raise ValueError(f"There is no file {file!r} to take a {what} from")
    return file, name


def named_in_file(words: str, what: str) -> Any:
    """Import ``path/to/script.py:name`` and return what has this name.

    Args:
        words: The file and the name.
        what: What it should be, for errors.
    """
    file, name = file_and_name(words, what)
    module = import_file(file)
    if not hasattr(module, name):
        raise ValueError(f"{file} has no {name!r}")
    return getattr(module, name)
