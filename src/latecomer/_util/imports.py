"""Importing a file of the user's, by its path."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["import_file"]


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
        raise ValueError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise ValueError(f"{file} has the name of another module, {module.__name__!r}: rename it")
    return module
