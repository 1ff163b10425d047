"""Parts of sentences: errors of others, lists, shares."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["counted", "in_short", "listed", "percent"]


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


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence.

    Examples:
        >>> listed(["a"]), listed(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def counted(number: int, what: str) -> str:
    """Return a number of things.

    Examples:
        >>> counted(1, "method"), counted(1200, "run")
        ('1 method', '1,200 runs')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def percent(share: float) -> str:
    """Return a share in whole per cent.

    Examples:
        >>> percent(0.125)
        '12 %'
    """
    return f"{100 * share:.0f} %"
