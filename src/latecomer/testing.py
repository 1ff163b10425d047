"""Tests for engines: run the table of faults against anybody's."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .core.flat import FlatModule
from .core.gradient import Contributor, evaluated, one_thread
from .core.rng import seeded
from .engines import Died, Done, Engine, Evaluated, Event, Failed, Job, Ready, WorkerSpec
from .problems import Problem, Quadratic
from .training import Callback, fit, replay

__all__ = ["CHECKS", "EngineError", "KillAt", "Normed", "Probe", "check_engine"]

CHECKS = (
    "seats", "bits", "nan", "raising", "evaluating", "suicide", "hung", "killed", "restarted", "order", "closed",
    "averages", "run", "orphans",
)  # fmt: skip
"""What `check_engine` looks at, in this order."""
_ALWAYS = {"seats", "closed"}
_DEADLY = {"suicide", "hung", "orphans"}  # only for processes
RAISES, KILLS, HANGS = 1001, 1002, 1003
"""Tickets with which a `Probe` misbehaves."""


class EngineError(AssertionError):
    """An engine that does not do what its contract says.

    Examples:
        >>> raise EngineError("nothing came back")
        Traceback (most recent call last):
        latecomer.testing.EngineError: nothing came back
    """


class Probe(Quadratic):
    """A quadratic that raises, kills its process or hangs on certain tickets.

    Examples:
        >>> Probe().batch_of(RAISES, 7, 0)
        Traceback (most recent call last):
        KeyError: 'probe'
    """

    def batch_of(self, number: int, sample: int, group: int) -> Any:
        """Return a batch, or do what the ticket is known for."""
        if number == RAISES:
            raise KeyError("probe")
        if number == KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == HANGS:
            threading.Event().wait()
        return self.batch(sample, group)


class Normed(Problem):
    """A small network with batch normalisation, whose running averages have to travel.

    Examples:
        >>> normed = Normed()
        >>> normed.loss(normed.model(0), normed.batch(7, 0)).item() > 0
        True
    """

    name = "normed"

    def model(self, seed: int) -> nn.Module:
        """Return the network."""
        with seeded(seed):
            return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def batch(self, sample: int, group: int) -> torch.Tensor:
        """Draw eight inputs."""
        return torch.randn(8, 3, generator=torch.Generator().manual_seed(sample >> 1))

    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """Ask for the sum of the inputs."""
        return nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss on inputs that are always the same."""
        return {"loss": float(self.loss(model, self.batch(0, 0)))}


class KillAt(Callback):
    """Kills workers at given arrivals of a run, ``(seat, arrival)``; if one is dying just then, its successor.

    Examples:
        >>> import latecomer as lc
        >>> problem = lc.problems.quadratic()
        >>> lc.fit(problem, lr=0.1, engine="inline", steps=20, callbacks=[KillAt((0, 3), (1, 9))]).deaths
        2
    """

    def __init__(self, *fail_at: tuple[int, int]) -> None:
        self.fail_at = sorted(fail_at, key=lambda pair: pair[1])

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        """Kill whoever is on the list."""
        due = [pair for pair in self.fail_at if pair[1] <= outcome.arrival]
        for pair in due:
            if run.kill(pair[0]):
                self.fail_at.remove(pair)


def check_engine(
    make_engine: Callable[[], Engine],
    *,
    processes: bool = True,
    only: Collection[str] | None = None,
    timeout: float = 60.0,
) -> list[str]:
    """Check that an engine keeps its contract; raise `EngineError` for the first thing it does wrong.

    Args:
        make_engine: Makes a fresh engine.
        processes: Whether workers are processes of their own, which may be killed by what they compute.
        only: Names out of `CHECKS`, to look at some things only; taking and leaving seats are always looked at.
        timeout: Seconds to wait for anything; more where workers take long to start.

    Returns:
        What was checked.

    Examples:
        >>> from latecomer.engines.inline import InlineEngine
        >>> check_engine(InlineEngine, processes=False)[:3]
        ['workers take their seats', 'a gradient has the same bits as in this process', 'NaN is reported']
        >>> check_engine(InlineEngine, processes=False, only=["nan"])
        ['workers take their seats', 'NaN is reported', 'closing twice is fine']
    """
    wanted = set(CHECKS if only is None else only)
    if unknown := wanted - set(CHECKS):
        raise ValueError(f"Unknown checks: {', '.join(sorted(unknown))} (expected some of {', '.join(CHECKS)})")
    wanted |= _ALWAYS | ({"killed"} if "restarted" in wanted else {"restarted"} if "killed" in wanted else set())
    if not processes:
        wanted -= _DEADLY
    check, found = _Check(make_engine, timeout), []
    with contextlib.closing(check):
        for name in CHECKS:
            if name in wanted:
                found.append(getattr(check, name)())
    return found


def _must(true: bool, what: str) -> None:
    if not true:
        raise EngineError(what)


def _wait_for(engine: Engine, timeout: float, *wanted: type) -> list[Any]:
    """Wait until there is one event for each of these types, and return them in order."""
    found: list[Event] = []
    until = time.monotonic() + timeout
    while len(found) < len(wanted):
        found += engine.events(1.0)
        if time.monotonic() > until:
            raise EngineError(f"waited {timeout:g} s for {[w.__name__ for w in wanted]}, got {found}")
    if sorted(type(event).__name__ for event in found) != sorted(w.__name__ for w in wanted):
        raise EngineError(f"expected {[w.__name__ for w in wanted]}, got {found}")
    return found


class _Check:
    """One engine, taken through the table of faults."""

    def __init__(self, make_engine: Callable[[], Engine], timeout: float) -> None:
        self.make_engine, self.timeout = make_engine, timeout
        self.engine = make_engine()
        self.spec = WorkerSpec(Probe(), size=10, dtype=torch.float64, points=2)
        self.slots = self.engine.start(self.spec, seats=2, slots=3)

    def one(self, wanted: type, seat: int, number: int | None = None) -> Any:
        (event,) = _wait_for(self.engine, self.timeout, wanted)
        if event.seat != seat or (number is not None and getattr(event, "number", None) != number):
            raise EngineError(f"expected {wanted.__name__} of seat {seat} and ticket {number}, got {event}")
        return event

    def job(self, number: int, slot: int = 0, **more: Any) -> Job:
        for value, point in zip((5.0, 4.0), self.slots[slot].points, strict=True):
            point.fill_(value)
        return Job(number, slot, sample=2**63 + number, version=3, here=1.0, before=-0.9, **more)

    def seats(self) -> str:
        seats = {event.seat for event in _wait_for(self.engine, self.timeout, Ready, Ready)}
        _must(seats == {0, 1}, f"seats 0 and 1 must be ready, got {seats}")
        shapes = [(len(slot.points), slot.gradient.shape, slot.gradient.dtype) for slot in self.slots]
        _must(shapes == [(2, torch.Size([10]), torch.float64)] * 3, f"the slots have the wrong shapes: {shapes}")
        return "workers take their seats"

    def bits(self) -> str:
        job = self.job(7, slot=2)
        self.engine.submit(1, job)
        done = self.one(Done, 1, 7)
        group, here = self.spec.problem.group_of(7, job.sample), torch.empty(10, dtype=torch.float64)
        contribute = Contributor(self.spec.problem, FlatModule(self.spec.problem.model(0)), 2)
        with one_thread(), torch.random.fork_rng(devices=[]):
            contribute(self.slots[2].points, here, 7, job.sample, group, 3, 1.0, -0.9)
        _must(done.group == group and done.finite, f"wrong group or flag: {done}")
        _must(torch.equal(self.slots[2].gradient, here), "the gradient has other bits than in this process")
        return "a gradient has the same bits as in this process"

    def nan(self) -> str:
        job = self.job(8)
        self.slots[0].points[0].fill_(float("nan"))
        self.engine.submit(0, job)
        _must(not self.one(Done, 0, 8).finite, "a NaN went unnoticed")
        return "NaN is reported"

    def raising(self) -> str:
        self.engine.submit(0, self.job(RAISES))
        reason = self.one(Failed, 0, RAISES).reason
        _must("KeyError: 'probe'" in reason, f"the reason is {reason!r}")
        self.works(0)
        return "a job that raises is reported, and its worker goes on"

    def evaluating(self) -> str:
        self.engine.submit(1, self.job(12, evaluate=True))
        metrics = self.one(Evaluated, 1, 12).metrics
        _must(metrics["loss"] > 0, f"the metrics are {metrics}")
        return "a model is evaluated"

    def works(self, seat: int) -> None:
        self.engine.submit(seat, self.job(20, slot=seat))
        self.one(Done, seat, 20)

    def suicide(self) -> str:
        self.engine.submit(0, self.job(KILLS))
        self.one(Died, 0)
        self.engine.restart(0)
        self.one(Ready, 0)
        self.works(0)
        return "a job that kills its worker is reported"

    def hung(self) -> str:
        self.engine.submit(0, self.job(HANGS))
        self.works(1)
        self.engine.kill(0)
        self.one(Died, 0)
        self.engine.restart(0)
        self.one(Ready, 0)
        return "a hung worker can be killed, and the others go on meanwhile"

    def killed(self) -> str:
        self.engine.kill(1)
        self.one(Died, 1)
        self.engine.kill(1)  # there is nobody
        self.engine.submit(1, self.job(21))  # nor anybody to take it
        self.works(0)
        return "an idle worker can be killed; its seat stays empty"

    def restarted(self) -> str:
        self.engine.restart(1)
        self.one(Ready, 1)
        self.works(1)
        return "a new worker takes a seat"

    def order(self) -> str:
        """Kill a worker that has just got a job: whatever it answers comes before its death, and nothing after it."""
        for number in (31, 32, 33):
            self.engine.submit(0, self.job(number))
            self.engine.kill(0)
            found: list[Event] = []
            until = time.monotonic() + self.timeout
            while not found or not isinstance(found[-1], Died):
                found += self.engine.events(1.0)
                _must(time.monotonic() < until, f"a killed worker's death is not reported, only {found}")
            _must(all(isinstance(event, Done) for event in found[:-1]), f"before its death may come a Done: {found}")
            self.slots[0].gradient.fill_(number)  # by now the slot is the next one's
            self.engine.restart(0)
            self.one(Ready, 0)
            _must(bool((self.slots[0].gradient == number).all()), "a slot was written to after its worker's death")
        return "what a worker says comes before its death, and nothing after it"

    def closed(self) -> str:
        self.engine.submit(0, self.job(22))  # work in progress is no obstacle
        self.engine.close()
        self.engine.close()
        return "closing twice is fine"

    def close(self) -> None:
        self.engine.close()

    def averages(self) -> str:
        return _averages(self.make_engine, self.timeout)

    def run(self) -> str:
        return _whole_run(self.make_engine)

    def orphans(self) -> str:
        return _orphans(self.make_engine, self.timeout)


def _averages(make_engine: Callable[[], Engine], timeout: float) -> str:
    problem = Normed()
    flat = FlatModule(problem.model(0))
    here = Contributor(problem, flat, 1)
    size, count = flat.x.numel(), here.averages.size
    with make_engine() as engine:
        slots = engine.start(WorkerSpec(problem, size, flat.x.dtype, statistics=count), seats=1, slots=2)
        _wait_for(engine, timeout, Ready)
        for slot in slots:
            slot.points[0].copy_(flat.x.detach())
        engine.submit(0, Job(0, slot=1, sample=7))
        _wait_for(engine, timeout, Done)
        with one_thread(), torch.random.fork_rng(devices=[]):
            here(slots[1].points, torch.empty(size), 0, 7, 0, 1)
        _must(
            torch.equal(slots[1].statistics, here.averages.from_last_job),
            "running averages do not come up as computed",
        )
        slots[0].statistics.copy_(torch.arange(count) + 1.0)
        engine.submit(0, Job(1, slot=0, evaluate=True))
        (event,) = _wait_for(engine, timeout, Evaluated)
        flat.at(slots[0].points[0])
        here.averages.load(torch.arange(count) + 1.0)
        _must(event.metrics == evaluated(problem, flat.module), "running averages do not go down to be evaluated")
    return "running averages go both ways"


def _whole_run(make_engine: Callable[[], Engine]) -> str:
    problem = Normed()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.parquet"
        result = fit(
            problem, method="ordered-mu2", lr=0.01, workers=2, engine=make_engine(), steps=100, record=path,
            callbacks=[KillAt((0, 20), (1, 40), (1, 60))],
        )  # fmt: skip
        again = replay(path, problem)
    _must(result.deaths == 3, f"3 workers were killed, {result.deaths} deaths reported")
    _must(len(set(result.trace.ticket.tolist())) == 100, "not every ticket was applied exactly once")
    _must(again.difference == 0.0, again.verdict)
    return "a run with deaths replays to the same bits"


def _orphans(make_engine: Callable[[], Engine], timeout: float) -> str:
    """Kill a server, and wait for everybody it had started."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve_for_ever, args=(make_engine, timeout, theirs), name="server")
    server.start()
    theirs.close()
    try:
        _must(ours.poll(2 * timeout), "a server in a process of its own did not get its workers up")
        pids, memory = ours.recv()
    except EOFError:
        raise EngineError("a server in a process of its own ended before its workers were up") from None
    finally:
        server.kill()
        server.join()
        ours.close()
    _must(all(_ended(pid, timeout) for pid in pids), f"the server was killed, and workers live on ({pids})")
    _must(not memory & _shared_memory(), f"the server was killed, and shared memory is left: {sorted(memory)}")
    return "nothing is left of a server that is killed"


def _serve_for_ever(make_engine: Callable[[], Engine], timeout: float, pipe: Connection) -> None:
    before = _shared_memory()
    engine = make_engine()
    engine.start(WorkerSpec(Probe(), size=10, dtype=torch.float64), seats=2, slots=2)
    pids = [event.pid for event in _wait_for(engine, timeout, Ready, Ready)]
    pipe.send((pids, _shared_memory() - before))
    threading.Event().wait()


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir() if not path.name.startswith("sem.")} if folder.exists() else set()


def _ended(pid: int, timeout: float = 60.0) -> bool:
    """Wait until a process that is not our child has ended, as long as timeout lasts."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], timeout)[0])
    finally:
        os.close(watched)
