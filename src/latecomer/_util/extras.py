"""Packages that only some users need: where one is missing, the error says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["needs"]


@contextmanager
def needs(extra: str | None, package: str, what: str) -> Iterator[None]:
    """Import a package of an extra within this block; if that fails, the error says how to get it.

    Args:
        extra: The extra of Latecomer that brings the package, None if none does.
        package: What pip calls it.
        what: What cannot be done without it; the sentence begins with it.

    Examples:
        >>> with needs("report", "matplotlib", "Drawing figures"):
        ...     import matplotlib_that_is_not_there
        Traceback (most recent call last):
        ImportError: Drawing figures needs matplotlib: pip install 'latecomer[report]'
    """
    try:
        yield
    except ImportError as error:
        # A package that is there and broken has its reason in the sentence, or it would send the reader in circles.
        reason = "" if isinstance(error, ModuleNotFoundError) else f" ({' '.join(str(error).split())})"
        wanted = package if extra is None else f"'latecomer[{extra}]'"
        raise ImportError(f"{what} needs {package}{reason}: pip install {wanted}") from error
