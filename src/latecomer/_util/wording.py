"""Errors of others, as part of a sentence of ours."""

from __future__ import annotations

__all__ = ["in_short"]


def in_short(error: BaseException) -> str:
    """Return an error in one line of a few words; one without a message by its type.

    Examples:
        >>> in_short(ValueError("no  such   thing")), in_short(RecursionError()), in_short(KeyError("a"))
        ('no such thing', 'RecursionError', "KeyError: 'a'")
    """
    text = " ".join(str(error).split())[:200]
    if isinstance(error, (ValueError, OSError)) and text:
        return text
    return f"{type(error).__name__}{f': {text}' if text else ''}"
