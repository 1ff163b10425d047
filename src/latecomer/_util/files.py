"""Writes that are atomic or flushed to disk, digests, and checks that files and folders can be written."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = [
    "UnwritableError", "atomic", "atomic_flushed", "check_distinct", "sha256", "writable", "writable_file",
    "write_flushed",
]  # fmt: skip


class UnwritableError(OSError):
    """A file or folder that cannot be written, as opposed to read."""


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; without an error it replaces ``path`` atomically.

    The temporary file exists already, under a name that nobody can predict, so that no link that somebody has put there
    is followed. It has the permissions of the file that it replaces, or those of any new file.
    """
    if not path.name or path.is_dir():
        raise UnwritableError(errno.EISDIR, "it is a folder, not a file", str(path))
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))  # minus the umask
        with suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.filename in (None, str(temporary), temporary, str(path.parent), path.parent):
            raise UnwritableError(error.errno, error.strerror, str(path)) from error  # name the user's path
        raise
    finally:
        with suppress(OSError):  # a name that is too long, for example: the error above says so
            temporary.unlink()


def write_flushed(path: Path, data: bytes) -> None:
    """Write a file and flush it to disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def atomic_flushed(path: Path, data: bytes) -> None:
    """Replace a file atomically, and flush both its content and its name to disk."""
    with atomic(path) as temporary:
        write_flushed(temporary, data)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # flush the rename too
    finally:
        os.close(folder)


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def check_no_file(name: str, folder: Path) -> None:
    """Raise if there is a file where a folder is meant; that it does not exist yet is no error."""
    if folder.is_file():
        raise ValueError(f"Invalid {name}: {str(folder)!r} is a file (expected a folder)")


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


def check_distinct(files: Mapping[str, Path | None], folders: Mapping[str, Path | None]) -> None:
    """Refuse outputs of a run that would overwrite each other, before the work.

    Args:
        files: Files to be written, by what writes them.
        folders: Folders to be filled, by what fills them.
    """
    found: dict[Path, str] = {}
    for what, path in [*files.items(), *folders.items()]:
        if path is None:
            continue
        real = Path(os.path.realpath(path))  # the same file through a link is the same file
        other = found.get(real)
        if other is not None and not (what in folders and other in folders):
            raise ValueError(f"{other} and {what} would both write {path}: choose another name for one of them")
        found[real] = what
    for inner, what in found.items():
        for outer in inner.parents:
            if found.get(outer) in files:
                raise ValueError(f"{found[outer]} would write the file {outer}, and {what} needs a folder of that name")
