"""Where in the user's code an error was raised."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

__all__ = ["place_of"]

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
