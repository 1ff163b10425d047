"""Where in the user's code an error was raised."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["place_of", "user_code"]

_LIBRARY = str(Path(__file__).parent.parent) + os.sep


def place_of(error: BaseException) -> str:
    """Return file and line of an error: the last ones outside torch and this library, if there are any.

    Examples:
        >>> try:
        ...     exec(compile("1 / 0", "script.py", "exec"))
        ... except ZeroDivisionError as error:
        ...     place_of(error)
        'script.py, line 1'
    """
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    inside = (_LIBRARY, *([str(Path(torch).parent) + os.sep] if torch else []))
    last = ""
    cause: BaseException | None = error
    while cause is not None:
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            place = f"{frame.filename}, line {frame.lineno}"
            last = last or place
            if not frame.filename.startswith(inside):
                return place
        cause = cause.__cause__
    return last


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Raise a ValueError with one sentence in place of what the user's code raises, even if that is an exit.

    Args:
        what: What raises, at the beginning of the sentence.

    Examples:
        >>> with user_code("The loss"):
        ...     exec(compile("1 / 0", "script.py", "exec"))
        Traceback (most recent call last):
        ValueError: The loss raised ZeroDivisionError: division by zero (script.py, line 1)
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ValueError(f"{what} raised {type(error).__name__}: {error} ({place_of(error)})") from error
