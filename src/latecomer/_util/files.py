"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["UnwritableError", "atomic", "writable", "writable_file"]


class UnwritableError(OSError):
    """Something that cannot be written, as opposed to read."""


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
        raise UnwritableError(errno.EISDIR, "it is a folder, not a file", str(path))
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.filename in (None, str(temporary), temporary, str(path.parent), path.parent):
            raise UnwritableError(error.errno, error.strerror, str(path)) from error  # name what was asked for
        raise
    finally:
        temporary.unlink(missing_ok=True)


def writable(folder: Path) -> None:
    """Make a folder and try it, so that an unwritable folder fails before the work.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     writable(Path(folder) / "new")
        ...     (Path(folder) / "new").is_dir()
        True
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UnwritableError(error.errno, error.strerror, str(folder)) from error


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
