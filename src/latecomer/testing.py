"""Tests for engines: run the table of faults against anybody's."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .engines import Died, Done, Engine, Evaluated, Event, Failed, Job, Ready, WorkerSpec
from .flat import FlatModule
from .job import Contributor, one_thread
from .problems import Quadratic
from .training import Callback, fit, replay

__all__ = ["EngineError", "KillAt", "Probe", "check_engine"]

_PATIENCE = 60.0
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


class KillAt(Callback):
    """Kills workers at given arrivals of a run: ``(seat, arrival)`` pairs.

    Examples:
        >>> import latecomer as lc
        >>> problem = lc.problems.quadratic()
        >>> lc.fit(problem, lr=0.1, engine="inline", steps=20, callbacks=[KillAt((0, 3), (1, 9))]).deaths
        2
    """

    def __init__(self, *fail_at: tuple[int, int]) -> None:
        self.fail_at = fail_at

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        """Kill whoever is on the list."""
        for seat, arrival in self.fail_at:
            if arrival == outcome.arrival:
                run.engine.kill(seat)


def check_engine(make_engine: Callable[[], Engine], *, processes: bool = True) -> list[str]:
    """Check that an engine keeps its contract; raise `EngineError` for the first thing it does wrong.

    Args:
        make_engine: Makes a fresh engine.
        processes: Whether workers are processes of their own, which may be killed by what they compute.

    Returns:
        What was checked.

    Examples:
        >>> from latecomer.engines.inline import InlineEngine
        >>> check_engine(InlineEngine, processes=False)[:3]
        ['workers take their seats', 'a gradient has the same bits as in this process', 'NaN is reported']
    """
    check = _Check(make_engine, processes)
    names = ["seats", "bits", "nan", "raising", "evaluating", "killed", "restarted", "closed", "whole_run"]
    if processes:
        names[5:5] = ["suicide", "hung"]
    return [getattr(check, name)() for name in names]


class _Check:
    """One engine, taken through the table of faults."""

    def __init__(self, make_engine: Callable[[], Engine], processes: bool) -> None:
        self.make_engine, self.processes = make_engine, processes
        self.engine = make_engine()
        self.spec = WorkerSpec(Probe(), size=10, dtype=torch.float64, points=2)
        self.slots = self.engine.start(self.spec, seats=2, slots=3)

    def events(self, *wanted: type) -> list[Event]:
        """Wait until there is one event for each of these types, and return them in order."""
        found: list[Event] = []
        until = time.monotonic() + _PATIENCE
        while len(found) < len(wanted):
            found += self.engine.events(1.0)
            if time.monotonic() > until:
                raise EngineError(f"waited {_PATIENCE:g} s for {[w.__name__ for w in wanted]}, got {found}")
        if sorted(type(event).__name__ for event in found) != sorted(w.__name__ for w in wanted):
            raise EngineError(f"expected {[w.__name__ for w in wanted]}, got {found}")
        return found

    def one(self, wanted: type, seat: int, number: int | None = None) -> Any:
        (event,) = self.events(wanted)
        if event.seat != seat or (number is not None and getattr(event, "number", None) != number):
            raise EngineError(f"expected {wanted.__name__} of seat {seat} and ticket {number}, got {event}")
        return event

    def must(self, true: bool, what: str) -> None:
        if not true:
            raise EngineError(what)

    def job(self, number: int, slot: int = 0, **more: Any) -> Job:
        for value, point in zip((5.0, 4.0), self.slots[slot].points, strict=True):
            point.fill_(value)
        return Job(number, slot, sample=2**63 + number, version=3, here=1.0, before=-0.9, **more)

    def seats(self) -> str:
        seats = {event.seat for event in self.events(Ready, Ready)}
        self.must(seats == {0, 1}, f"seats 0 and 1 must be ready, got {seats}")
        shapes = [(len(slot.points), slot.gradient.shape, slot.gradient.dtype) for slot in self.slots]
        self.must(shapes == [(2, torch.Size([10]), torch.float64)] * 3, f"the slots have the wrong shapes: {shapes}")
        return "workers take their seats"

    def bits(self) -> str:
        job = self.job(7, slot=2)
        self.engine.submit(1, job)
        done = self.one(Done, 1, 7)
        group, here = self.spec.problem.group_of(7, job.sample), torch.empty(10, dtype=torch.float64)
        contribute = Contributor(self.spec.problem, FlatModule(self.spec.problem.model(0)), 2)
        with one_thread(), torch.random.fork_rng(devices=[]):
            contribute(self.slots[2].points, here, 7, job.sample, group, 3, 1.0, -0.9)
        self.must(done.group == group and done.finite, f"wrong group or flag: {done}")
        self.must(torch.equal(self.slots[2].gradient, here), "the gradient has other bits than in this process")
        return "a gradient has the same bits as in this process"

    def nan(self) -> str:
        job = self.job(8)
        self.slots[0].points[0].fill_(float("nan"))
        self.engine.submit(0, job)
        self.must(not self.one(Done, 0, 8).finite, "a NaN went unnoticed")
        return "NaN is reported"

    def raising(self) -> str:
        self.engine.submit(0, self.job(RAISES))
        reason = self.one(Failed, 0, RAISES).reason
        self.must("KeyError: 'probe'" in reason, f"the reason is {reason!r}")
        self.works(0)
        return "a job that raises is reported, and its worker goes on"

    def evaluating(self) -> str:
        self.engine.submit(1, self.job(12, evaluate=True))
        metrics = self.one(Evaluated, 1, 12).metrics
        self.must(metrics["loss"] > 0, f"the metrics are {metrics}")
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

    def closed(self) -> str:
        self.engine.submit(0, self.job(22))  # work in progress is no obstacle
        self.engine.close()
        self.engine.close()
        return "closing twice is fine"

    def whole_run(self) -> str:
        problem = Probe()
        with tempfile.TemporaryDirectory() as folder:
            result = fit(
                problem,
                optimizer="ordered-mu2",
                lr=0.01,
                workers=2,
                engine=self.make_engine(),
                steps=100,
                callbacks=[KillAt((0, 20), (1, 40), (1, 60))],
                record=Path(folder) / "run.parquet",
            )
            again = replay(Path(folder) / "run.parquet", problem)
        # A worker that is killed shortly before the end may die when nobody counts any more.
        self.must(1 <= result.deaths <= 3, f"3 workers were killed, {result.deaths} deaths reported")
        self.must(len(set(result.trace.ticket.tolist())) == 100, "not every ticket was applied exactly once")
        self.must(again.difference == 0.0, again.verdict)
        return "a run with deaths replays to the same bits"
