"""Defers Ctrl-C until an update is complete."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interrupts_between_arrivals"]


@contextmanager
def interrupts_between_arrivals() -> Iterator[list[int]]:
    """Collect Ctrl-C in a list, so that it never interrupts an update."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)
