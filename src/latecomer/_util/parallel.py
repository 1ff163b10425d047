"""Many calls in parallel processes with one torch thread each; an interrupt ends them all."""

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
    """Call a function on every job and yield the results in order of completion.

    With one process the calls run in this process, in order.

    Args:
        function: A function that can be imported by name.
        jobs: Its arguments, one tuple per call.
        processes: Number of processes.
    """
    whole_number("processes", processes, least=1)
    if processes == 1:
        return (function(*job) for job in jobs)
    return _in_processes(function, jobs, processes)


def _in_processes(function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int) -> Iterator[T]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_set_up_worker)
    try:
        with _children_ignore_interrupts():
            futures = [pool.submit(function, *job) for job in jobs]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        pool.shutdown(wait=False, cancel_futures=True)
        raise ValueError("A worker process was killed, perhaps because memory ran out: try fewer processes") from error
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _set_up_worker() -> None:
    """Use one torch thread, and exit when the parent process ends, even if it is killed."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def exit_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


@contextmanager
def _children_ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C while processes start: they inherit that and go on ignoring it, only this process gets it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
