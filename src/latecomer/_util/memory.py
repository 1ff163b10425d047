"""How much memory there is, so that what cannot fit is refused before it is tried."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["available_memory", "check_memory"]

_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return the bytes that this process can still get, within the limits of its container; None if unknown."""
    found = []
    with suppress(OSError, ValueError, IndexError):  # not Linux
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
        found.append(1024 * int(line.split()[1]))
    with suppress(OSError, ValueError):  # no container, or one without a limit
        limit = int((_CGROUP / "memory.max").read_text())
        found.append(max(0, limit - int((_CGROUP / "memory.current").read_text())))
    return min(found) if found else None


def check_memory(needed: int, what: str, remedy: str) -> None:
    """Raise if something needs more memory than there is."""
    available = available_memory()
    if available is not None and needed > available:
        raise ValueError(f"{what} need {_shown(needed)} of memory, and {_shown(available)} are available: {remedy}")


def _shown(size: int) -> str:
    return f"{size / 2**30:,.1f} GB" if size >= 2**30 else f"{size / 2**20:,.0f} MB"
