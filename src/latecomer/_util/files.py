"""Atomic writes, and checks that a folder can be written."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["UnwritableError", "atomic", "writable", "writable_file"]


class UnwritableError(OSError):
    """A file or folder that cannot be written, as opposed to read."""


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; without an error it replaces ``path`` atomically."""
    if not path.name or path.is_dir():
        raise UnwritableError(errno.EISDIR, "it is a folder, not a file", str(path))
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.filename in (None, str(temporary), temporary, str(path.parent), path.parent):
            raise UnwritableError(error.errno, error.strerror, str(path)) from error  # name the user's path
        raise
    finally:
        temporary.unlink(missing_ok=True)


def writable(folder: Path) -> None:
    """Create a folder and test it, so that an unwritable folder fails before the work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UnwritableError(error.errno, error.strerror, str(folder)) from error


def writable_file(path: Path) -> None:
    """Create and test the folder of a file."""
    if not path.name or path.is_dir():
        raise ValueError(f"cannot write {str(path)!r}: it is a folder, not a file")
    writable(path.parent)
