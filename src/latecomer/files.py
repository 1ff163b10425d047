"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["atomic"]


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a path to write to; when all went well it takes the place of ``path`` in one go.

    Examples:
        >>> import tempfile
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
