"""Many runs at once: one process each, one torch thread each, results as they come, gone at once when interrupted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from .checks import whole_number

__all__ = ["in_parallel"]

T = TypeVar("T")


def in_parallel(function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int) -> Iterator[T]:
    """Call a function on every job and yield the results in the order they are done.

    With one process everything happens in this one, in order.

    Args:
        function: Something that can be imported by name.
        jobs: Its arguments, one tuple a call.
        processes: How many at a time.

    Examples:
        >>> list(in_parallel(divmod, [(7, 2), (9, 4)], processes=1))
        [(3, 1), (2, 1)]
    """
    whole_number("processes", processes, least=1)
    if processes == 1:
        return (function(*job) for job in jobs)
    return _spawned(function, jobs, processes)


def _spawned(function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int) -> Iterator[T]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)
    try:
        with _children_deaf_to_interrupts():
            futures = [pool.submit(function, *job) for job in jobs]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        pool.shutdown(wait=False, cancel_futures=True)
        raise ValueError("A worker process was killed, perhaps for want of memory: try fewer processes") from error
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _begin() -> None:
    """Set a worker up: one torch thread, and gone when whoever started it is gone, however that came about."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def _children_deaf_to_interrupts() -> Iterator[None]:
    """Let Ctrl-C reach this process only: what ignores it when it is born goes on ignoring it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
