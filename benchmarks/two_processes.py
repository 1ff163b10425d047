"""Two processes at once, without a server: jobs timed side by side, and synchronous rounds with an all-reduce."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from latecomer._util.seeds import sample_seeds
from latecomer.core.flat import FlatModule
from latecomer.core.gradient import Contributor, one_thread
from latecomer.planning import JobTimes, time_jobs
from latecomer.problems import Problem

PROCESSES = 2
_WARM_UP = 5  # rounds
_REDUCES = 100
_RATE = 1e-3


def side_by_side(problem: Problem, jobs: int, method: str) -> list[JobTimes]:
    """Time the same jobs in two processes at the same time."""
    return _in_both(_timed, problem, jobs, method)


def all_reduce(problem: Problem, rounds: int, timed: JobTimes, *, buckets: bool = False) -> tuple[float, JobTimes]:
    """Train in synchronous rounds; return jobs per second, and what took time: jobs, and an all-reduce per round."""
    (rate, first, reduce), (_, second, _) = _in_both(_rounds, problem, rounds, buckets)
    seconds = [one + other for one, other in zip(first, second, strict=True)]
    count = sum(map(len, seconds))
    shares = [len(own) / count for own in seconds if own]
    seconds = [own for own in seconds if own]
    return rate, replace(timed, seconds=seconds, shares=shares, names=(), server=timed.server + reduce)


def pairs(groups: Sequence[int], buckets: bool) -> list[tuple[int, int]]:
    """Return which two jobs are done in each round: neighbours, or with buckets the next two of one group."""
    if not buckets:
        return list(itertools.pairwise(range(len(groups))))[::2]
    found, waiting = [], dict[int, int]()
    for number, group in enumerate(groups):
        if group in waiting:
            found.append((waiting.pop(group), number))
        else:
            waiting[group] = number
    return found


def _in_both(work: Callable[..., Any], *args: Any) -> list[Any]:
    if not (dist.is_available() and dist.is_gloo_available()):
        raise SystemExit("This torch has no gloo, which connects the two processes: take another build of torch")
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder, "meeting").as_uri()
        with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
            jobs = [pool.submit(_joined, rank, meeting, work, *args) for rank in range(PROCESSES)]
            return [job.result() for job in jobs]


def _joined(rank: int, meeting: str, work: Callable[..., Any], *args: Any) -> Any:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=PROCESSES)
    try:
        with one_thread():
            dist.barrier()
            return work(rank, *args)
    finally:
        dist.destroy_process_group()


def _timed(rank: int, problem: Problem, jobs: int, method: str) -> JobTimes:
    return time_jobs(problem, jobs=jobs, method=method)


def _rounds(rank: int, problem: Problem, rounds: int, buckets: bool) -> tuple[float, list[list[float]], float]:
    flat = FlatModule(problem.model(0))
    points, contribute = [flat.x.detach().clone()], Contributor(problem, flat, 1)
    out = torch.empty_like(points[0])
    samples = sample_seeds(0, PROCESSES * (rounds + _WARM_UP) + problem.groups).tolist()  # some wait for a partner
    groups = [problem.group_of(number, sample) for number, sample in enumerate(samples)]
    seconds: list[list[float]] = [[] for _ in range(problem.groups)]
    for place, pair in enumerate(pairs(groups, buckets)[: rounds + _WARM_UP]):
        if place == _WARM_UP:
            dist.barrier()
            begin, seconds = time.perf_counter(), [[] for _ in seconds]
        number, start = pair[rank], time.perf_counter()
        contribute(points, out, number, samples[number], groups[number], 2)
        seconds[groups[number]].append(time.perf_counter() - start)
        dist.all_reduce(out)
        points[0].add_(out, alpha=-_RATE / PROCESSES)
    rate = PROCESSES * rounds / (time.perf_counter() - begin)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(_REDUCES):  # both are there, so nobody waits
        dist.all_reduce(out)
    return rate, seconds, (time.perf_counter() - begin) / _REDUCES
