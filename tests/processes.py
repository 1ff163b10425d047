"""Which processes there are, what they listen on, and whether they are gone."""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path


def stat(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def descendants() -> set[int]:
    """Return the processes that this one has started, and those they have."""
    parents = {entry.name: stat(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found, new = set[str](), {str(os.getpid())}
    while new:
        new = {pid for pid, words in parents.items() if words and words[1] in new and words[0] != "Z"}
        found |= new
    return {int(pid) for pid in found}


def children(pid: int) -> set[int]:
    """Return the processes that another one has started."""
    found = (entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {int(name) for name in found if stat(name)[1:2] == [str(pid)]}


def ended(pids: set[int], timeout: float = 60.0) -> bool:
    """Wait until processes have ended, without polling."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, _, _ = select.select([fd], [], [], timeout)
        os.close(fd)
        if not ready:
            return False
    return True


def listening(pids: set[int]) -> set[str]:
    """Return the addresses on which processes listen, as the kernel writes them."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):  # closed meanwhile
                inodes.add(str(entry.readlink())[8:-1])  # socket:[4711]
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}
