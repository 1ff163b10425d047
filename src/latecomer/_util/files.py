"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["atomic", "writable", "writable_file"]


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a path to write to; when all went well it takes the place of ``path`` in one go.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     target = Path(folder) / "a.txt"
        ...     with atomic(target) as temporary:
        ...         _ = temporary.write_text("whole")
        ...     target.read_text(), len(list(Path(folder).iterdir()))
        ('whole', 1)
    """
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.filename in (str(temporary), temporary):  # name what was asked for
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def writable(folder: Path) -> None:
    """Make a folder and try it, so that an hour of work does not end in front of a locked door.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     writable(Path(folder) / "new")
        ...     (Path(folder) / "new").is_dir()
        True
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(folder)) from error


def writable_file(path: Path) -> None:
    """Make the folder of a file and try it.

    Examples:
        >>> writable_file(Path("."))
        Traceback (most recent call last):
        ValueError: cannot write '.': it is a folder, not a file
    """
    if not path.name or path.is_dir():
        raise ValueError(f"cannot write {str(path)!r}: it is a folder, not a file")
    writable(path.parent)
