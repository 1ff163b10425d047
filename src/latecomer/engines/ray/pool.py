"""Many independent calls on a Ray cluster: results as they complete; an error cancels the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..._util.checks import whole_number
from .cluster import Cluster, ending

__all__ = ["on_ray"]

T = TypeVar("T")


def on_ray(
    function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], processes: int, address: str | None = None
) -> Iterator[T]:
    """Call a function on every job, each in a Ray task of one CPU, and yield results in order of completion.

    A task whose node is lost is run again by Ray on another node, so the function must be safe to repeat.

    Args:
        function: The function.
        jobs: Its arguments, one tuple per call; a relative path means the same folder on every node.
        processes: Number of tasks at the same time.
        address: Address of the cluster, ``"auto"``, or None for Ray on this machine.
    """
    whole_number("processes", processes, least=1)
    if not jobs:
        return
    cluster = Cluster(address, cpus=processes)
    ray = cluster.connect()
    folder, todo = str(Path.cwd()), list(jobs)[::-1]
    waiting: set[Any] = set()
    try:
        remote = ray.remote(num_cpus=1, max_retries=3)(_in_folder)
        while todo or waiting:
            while todo and len(waiting) < processes:
                waiting.add(remote.remote(folder, function, *todo.pop()))
            for ref in ray.wait(list(waiting))[0]:
                waiting.discard(ref)
                yield ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except ray.exceptions.RayError as error:
        raise ValueError(f"Ray could not finish a task ({ending(error)})") from None
    finally:
        for ref in waiting:
            ray.cancel(ref, force=True)
        cluster.close()


def _in_folder(folder: str, function: Callable[..., T], *job: Any) -> T:
    """Call a function in the folder where the sweep was started, so that relative paths mean the same."""
    if Path(folder).is_dir():
        os.chdir(folder)
    return function(*job)
