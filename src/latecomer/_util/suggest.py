"""The name that somebody probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "unknown"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean NAME?`` for the known name that is closest to a mistyped one, or nothing.

    Examples:
        >>> did_you_mean("trian", ["train", "trace"])
        'did you mean train?'
        >>> did_you_mean("help", ["train", "trace"])
        ''
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Return the sentence for a name that is not known: with the closest one, and with all that there are.

    Examples:
        >>> unknown("method", "momentun", ["momentum", "mu2"])
        "Unknown method 'momentun': did you mean momentum? (expected one of momentum, mu2)"
    """
    names = list(known)
    hint = did_you_mean(name, names) if isinstance(name, str) else ""
    return f"Unknown {what} {name!r}{f': {hint}' if hint else ''} (expected one of {', '.join(names)})"
