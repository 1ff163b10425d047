"""The revision of the code that made a result."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

__all__ = ["commit"]


@functools.cache
def commit() -> str | None:
    """Return the revision of the code, with a plus sign if it has been changed since; None outside a checkout."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True).stdout
        changed = subprocess.run(["git", "status", "--porcelain", "."], cwd=here.parent, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.strip() + ("+" if changed.stdout.strip() else "")
