"""Errors of the user's code: where they were raised, and as a sentence."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["place_of", "raised_by", "user_code"]

_LIBRARY = str(Path(__file__).parent.parent) + os.sep
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NO_FILE = ("<frozen", "<string>")  # Python's own modules, and what dataclasses generate
_SENTENCES = (ValueError, TypeError, ImportError)
"""What this library raises on purpose."""


def _is_users(file: str) -> bool:
    """Return whether a file is neither of this library nor installed, as torch and Python itself are."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    others = (_LIBRARY, *_INSTALLED, *_NO_FILE, *([str(Path(torch).parent) + os.sep] if torch else []))
    return not file.startswith(others)


def place_of(error: BaseException) -> str:
    """Return file and line of an error: the last ones in the user's code, if there are any.

    Examples:
        >>> try:
        ...     exec(compile("1 / 0", "script.py", "exec"))
        ... except ZeroDivisionError as error:
        ...     place_of(error)
        'script.py, line 1'
    """
    last = ""
    cause: BaseException | None = error
    while cause is not None:
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            place = f"{frame.filename}, line {frame.lineno}"
            last = last or place
            if _is_users(frame.filename):
                return place
        cause = cause.__cause__
    return last


def raised_by(what: str, error: BaseException) -> str:
    """Return what the user's code raised, and where, as a sentence.

    Examples:
        >>> try:
        ...     exec(compile("{}['a']", "script.py", "exec"))
        ... except KeyError as error:
        ...     raised_by("The task", error)
        "The task raised KeyError: 'a' (script.py, line 1)"
    """
    text = f": {error}" if str(error) else ""
    return f"{what} raised {type(error).__name__}{text} ({place_of(error)})"


@contextmanager
def user_code(what: str, *, among_ours: bool = False) -> Iterator[None]:
    """Turn what the user's code raises into a ValueError that says what raised, and where; also a SystemExit.

    Args:
        what: What of the user's is called, for the sentence.
        among_ours: Whether much code of this library runs here too. Then only an error that came through the user's
            code is turned into one of the user's: a bug of the library, and what the library refuses, stay as they are.

    Examples:
        >>> with user_code("The task's model"):
        ...     exec(compile("1 / 0", "script.py", "exec"))
        Traceback (most recent call last):
        ValueError: The task's model raised ZeroDivisionError: division by zero (script.py, line 1)
        >>> from latecomer._util.checks import whole_number
        >>> with user_code("The method", among_ours=True):
        ...     whole_number("steps", -1)
        Traceback (most recent call last):
        ValueError: Invalid steps value: -1 (expected steps >= 0)
    """
    try:
        yield
    except (MemoryError, BrokenPipeError):  # nobody's mistake
        raise
    except (Exception, SystemExit) as error:
        if among_ours and not _is_of_user(error):
            raise
        raise ValueError(raised_by(what, error)) from error


def _is_of_user(error: BaseException) -> bool:
    """Return whether an error came through the user's code, and is no sentence with which this library refuses it."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    refused = files[-1].startswith(_LIBRARY) and isinstance(error, _SENTENCES)
    # The system's errors name their file, and a full disk is nobody's mistake.
    return not refused and not isinstance(error, OSError) and any(map(_is_users, files))
