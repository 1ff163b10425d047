"""`check_engine` checks any engine against its contract."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ..core.devices import resolved
from ..core.flat import FlatModule
from ..core.gradient import Contributor, evaluated, one_thread
from ..core.rng import kept_generators, seeded
from ..engines import Died, Done, Engine, Evaluated, Event, Failed, Job, Ready, WorkerSpec
from ..problems import Problem, Quadratic
from ..problems.base import device_of
from ..training import Callback, fit, replay

__all__ = ["CHECKS", "EngineError", "KillAt", "Normed", "Probe", "check_engine"]

CHECKS: Mapping[str, str] = MappingProxyType(
    {
        "seats": "workers start",
        "bits": "a gradient has the same bits as in this process",
        "nan": "NaN is reported",
        "raising": "a job that raises is reported, and its worker continues",
        "evaluating": "a model is evaluated",
        "crashing": "a job that kills its worker is reported",
        "hung": "a hung worker can be killed, and the others continue meanwhile",
        "killed": "an idle worker can be killed; its seat stays empty",
        "restarted": "a new worker starts in an empty seat",
        "order": "answers come before a worker's death, and none after it",
        "closed": "closing twice is allowed",
        "averages": "batch-normalisation statistics are sent both ways",
        "run": "a run with deaths replays to the same bits",
        "orphans": "a killed server leaves no workers and no shared memory",
    }
)
"""The rules that `check_engine` checks, by name, in this order."""
_ALWAYS = {"seats", "closed"}  # checked in any case
_NEEDS_PROCESSES = {"crashing", "hung", "orphans"}  # only if workers are processes
RAISES, KILLS, HANGS = 1001, 1002, 1003
"""Ticket numbers on which a `Probe` fails."""


class EngineError(AssertionError):
    """An engine violates its contract.

    Examples:
        >>> raise EngineError("no answer")
        Traceback (most recent call last):
        latecomer.testing.engine.EngineError: no answer
    """


class Probe(Quadratic):
    """A quadratic that raises, kills its process or hangs on certain tickets.

    Examples:
        >>> Probe().batch_of(RAISES, 7, 0)
        Traceback (most recent call last):
        KeyError: 'probe'
    """

    def batch_of(self, number: int, sample: int, group: int) -> Any:
        """Return a batch, or fail as the ticket's number says."""
        if number == RAISES:
            raise KeyError("probe")
        if number == KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == HANGS:
            threading.Event().wait()
        return self.batch(sample, group)


class Normed(Problem):
    """A small network with batch normalisation, whose statistics must be sent.

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
        """Return eight random inputs."""
        return torch.randn(8, 3, generator=torch.Generator().manual_seed(sample >> 1))

    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """Return the error of predicting the sum of the inputs."""
        return nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss on fixed inputs."""
        return {"loss": float(self.loss(model, self.batch(0, 0).to(device_of(model))))}


class KillAt(Callback):
    """Kills workers at given arrivals of a run, ``(worker, arrival)``; if one is dying at that time, its replacement.

    Examples:
        >>> import latecomer as lc
        >>> problem = lc.problems.quadratic()
        >>> lc.fit(problem, lr=0.1, engine="inline", steps=20, callbacks=[KillAt((0, 3), (1, 9))]).deaths
        2
    """

    def __init__(self, *fail_at: tuple[int, int]) -> None:
        self.fail_at = sorted(fail_at, key=lambda pair: pair[1])

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        """Kill the workers that are due."""
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
    device: str = "cpu",
    carry: Any = None,
) -> list[str]:
    """Check that an engine keeps its contract; raise `EngineError`, which names the rule, for the first violation.

    Args:
        make_engine: Creates a new engine.
        processes: Whether workers are separate processes, which their jobs may kill.
        only: Names of `CHECKS` to run; starting and closing are always checked.
        timeout: Seconds to wait for each event; raise it if workers start slowly.
        device: Where workers compute.
        carry: Anything that is pickled with the task, so that workers import what makes the device known to torch.

    Returns:
        The rules that it keeps.

    Examples:
        >>> from latecomer.engines.inline import InlineEngine
        >>> check_engine(InlineEngine, processes=False)[:3]
        ['workers start', 'a gradient has the same bits as in this process', 'NaN is reported']
        >>> check_engine(InlineEngine, processes=False, only=["nan"])
        ['workers start', 'NaN is reported', 'closing twice is allowed']
    """
    wanted = set(CHECKS if only is None else only)
    if unknown := wanted - set(CHECKS):
        raise ValueError(f"Unknown checks: {', '.join(sorted(unknown))} (expected some of {', '.join(CHECKS)})")
    wanted |= _ALWAYS | ({"killed"} if "restarted" in wanted else {"restarted"} if "killed" in wanted else set())
    if not processes:
        wanted -= _NEEDS_PROCESSES
    check = _Check(make_engine, timeout, device, carry)
    with contextlib.closing(check):
        for name in (name for name in CHECKS if name in wanted):
            try:
                getattr(check, name)()
            except Exception as error:
                what = f"{error}" if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
                engine = type(check.engine).__name__
                raise EngineError(f'{engine} breaks the rule "{CHECKS[name]}": {what}') from error
    return [CHECKS[name] for name in CHECKS if name in wanted]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EngineError(message)


def _names(types: Collection[type]) -> str:
    return " and ".join(each.__name__ for each in types)


def _wait_for(engine: Engine, timeout: float, *wanted: type) -> list[Any]:
    """Wait for one event of each of these types, and return them in order."""
    found: list[Event] = []
    until = time.monotonic() + timeout
    while len(found) < len(wanted):
        found += engine.events(1.0)
        if time.monotonic() > until:
            raise EngineError(f"expected {_names(wanted)} within {timeout:g} s, found {found or 'no event'}")
    if sorted(type(event).__name__ for event in found) != sorted(w.__name__ for w in wanted):
        raise EngineError(f"expected {_names(wanted)}, found {found}")
    return found


class _Check:
    """The checks, on one engine."""

    def __init__(self, make_engine: Callable[[], Engine], timeout: float, device: str, carry: Any) -> None:
        self.make_engine, self.timeout, self.device, self.carry = make_engine, timeout, device, carry
        self.engine = make_engine()
        self.spec = WorkerSpec(_with(Probe(), carry), size=10, dtype=torch.float64, points=2, device=device)
        self.slots = self.engine.start(self.spec, seats=2, slots=3)

    def one(self, wanted: type, seat: int, number: int | None = None) -> Any:
        (event,) = _wait_for(self.engine, self.timeout, wanted)
        if event.seat != seat or (number is not None and getattr(event, "number", None) != number):
            raise EngineError(f"expected {wanted.__name__} of seat {seat} and ticket {number}, found {event}")
        return event

    def job(self, number: int, slot: int = 0, **more: Any) -> Job:
        for value, point in zip((5.0, 4.0), self.slots[slot].points, strict=True):
            point.fill_(value)
        return Job(number, slot, sample=2**63 + number, version=3, here=1.0, before=-0.9, **more)

    def seats(self) -> None:
        seats = {event.seat for event in _wait_for(self.engine, self.timeout, Ready, Ready)}
        _require(seats == {0, 1}, f"expected that seats 0 and 1 are ready, found {sorted(seats)}")
        shapes = [(len(slot.points), slot.gradient.shape, slot.gradient.dtype) for slot in self.slots]
        _require(
            shapes == [(2, torch.Size([10]), torch.float64)] * 3,
            f"expected 3 slots of 2 points of 10 float64 numbers, found {shapes}",
        )

    def bits(self) -> None:
        job = self.job(7, slot=2)
        self.engine.submit(1, job)
        done = self.one(Done, 1, 7)
        group, here = self.spec.problem.group_of(7, job.sample), torch.empty(10, dtype=torch.float64)
        contribute = Contributor(self.spec.problem, FlatModule(self.spec.problem.model(0), self.device_here), 2)
        with one_thread(), kept_generators():
            contribute(self.slots[2].points, here, 7, job.sample, group, 3, 1.0, -0.9)
        _require(done.group == group and done.finite, f"expected group {group} and a finite gradient, found {done}")
        _require(
            torch.equal(self.slots[2].gradient, here),
            f"expected {here.tolist()}, found {self.slots[2].gradient.tolist()}",
        )

    @property
    def device_here(self) -> torch.device:
        return resolved(self.device, 0)

    def nan(self) -> None:
        job = self.job(8)
        self.slots[0].points[0].fill_(float("nan"))
        self.engine.submit(0, job)
        _require(
            not self.one(Done, 0, 8).finite, "expected Done with finite=False for a gradient of NaN, found finite=True"
        )

    def raising(self) -> None:
        self.engine.submit(0, self.job(RAISES))
        reason = self.one(Failed, 0, RAISES).reason
        _require("KeyError: 'probe'" in reason, f"expected the reason KeyError: 'probe', found {reason!r}")
        self.works(0)

    def evaluating(self) -> None:
        self.engine.submit(1, self.job(12, evaluate=True))
        metrics = self.one(Evaluated, 1, 12).metrics
        _require(metrics["loss"] > 0, f"expected a positive loss, found {metrics}")

    def works(self, seat: int) -> None:
        self.engine.submit(seat, self.job(20, slot=seat))
        self.one(Done, seat, 20)

    def crashing(self) -> None:
        self.engine.submit(0, self.job(KILLS))
        self.one(Died, 0)
        self.engine.restart(0)
        self.one(Ready, 0)
        self.works(0)

    def hung(self) -> None:
        self.engine.submit(0, self.job(HANGS))
        self.works(1)
        self.engine.kill(0)
        self.one(Died, 0)
        self.engine.restart(0)
        self.one(Ready, 0)

    def killed(self) -> None:
        self.engine.kill(1)
        self.one(Died, 1)
        self.engine.kill(1)  # the seat is empty: no effect
        self.engine.submit(1, self.job(21))  # no effect either
        self.works(0)

    def restarted(self) -> None:
        self.engine.restart(1)
        self.one(Ready, 1)
        self.works(1)

    def order(self) -> None:
        """Kill a worker right after it got a job: an answer may come before its death, but nothing after it."""
        for number in (31, 32, 33):
            self.engine.submit(0, self.job(number))
            self.engine.kill(0)
            found: list[Event] = []
            until = time.monotonic() + self.timeout
            while not found or not isinstance(found[-1], Died):
                found += self.engine.events(1.0)
                _require(
                    time.monotonic() < until, f"expected Died after the worker was killed, found {found or 'no event'}"
                )
            _require(
                all(isinstance(event, Done) for event in found[:-1]),
                f"expected at most Done before Died, found {found}",
            )
            self.slots[0].gradient.fill_(number)  # after Died the slot can be reused
            self.engine.restart(0)
            self.one(Ready, 0)
            _require(
                bool((self.slots[0].gradient == number).all()),
                "expected that nothing writes to a slot after Died, found that its gradient changed",
            )

    def closed(self) -> None:
        self.engine.submit(0, self.job(22))  # a running job must not block it
        self.engine.close()
        self.engine.close()

    def close(self) -> None:
        self.engine.close()

    def averages(self) -> None:
        _check_statistics(self.make_engine, self.timeout, self.device, self.device_here, self.carry)

    def run(self) -> None:
        _check_run(self.make_engine, self.device, self.carry)

    def orphans(self) -> None:
        _check_orphans(self.make_engine, self.timeout, self.spec)


def _with(problem: Problem, carry: Any) -> Problem:
    problem.carried = carry  # type: ignore[attr-defined]
    return problem


def _check_statistics(
    make_engine: Callable[[], Engine], timeout: float, device: str, device_here: torch.device, carry: Any
) -> None:
    problem = _with(Normed(), carry)
    flat = FlatModule(problem.model(0), device_here)
    here = Contributor(problem, flat, 1)
    size, count = flat.x.numel(), here.averages.size
    with make_engine() as engine:
        slots = engine.start(WorkerSpec(problem, size, flat.x.dtype, statistics=count, device=device), seats=1, slots=2)
        _wait_for(engine, timeout, Ready)
        for slot in slots:
            slot.points[0].copy_(flat.x.detach())
        engine.submit(0, Job(0, slot=1, sample=7))
        _wait_for(engine, timeout, Done)
        with one_thread(), kept_generators():
            here(slots[1].points, torch.empty(size), 0, 7, 0, 1)
        _require(
            torch.equal(slots[1].statistics, here.averages.from_last_job),
            "expected the statistics of the job in its slot, found others",
        )
        slots[0].statistics.copy_(torch.arange(count) + 1.0)
        engine.submit(0, Job(1, slot=0, evaluate=True))
        (event,) = _wait_for(engine, timeout, Evaluated)
        here.averages.load(torch.arange(count) + 1.0)
        _require(
            event.metrics == evaluated(problem, flat, here.here(slots[0].points)[0]),
            "expected an evaluation with the statistics in its slot, found other metrics",
        )


def _check_run(make_engine: Callable[[], Engine], device: str, carry: Any) -> None:
    problem = _with(Normed(), carry)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.parquet"
        result = fit(
            problem, method="ordered-mu2", lr=0.01, workers=2, engine=make_engine(), steps=100, record=path,
            callbacks=[KillAt((0, 20), (1, 40), (1, 60))], device=device,
        )  # fmt: skip
        again = replay(path, problem)
    _require(result.deaths == 3, f"expected 3 deaths, of the workers that were killed, found {result.deaths}")
    _require(
        len(set(result.trace.ticket.tolist())) == 100,
        "expected that every ticket arrives once, found one that arrives twice",
    )
    _require(again.difference == 0.0, f"expected the same bits, found: {again.verdict}")


def _check_orphans(make_engine: Callable[[], Engine], timeout: float, spec: WorkerSpec) -> None:
    """Kill a server, and wait for the end of its workers."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve_for_ever, args=(make_engine, timeout, spec, theirs), name="server")
    server.start()
    theirs.close()
    try:
        _require(ours.poll(2 * timeout), "expected that workers of a server in another process start, found none")
        pids, memory = ours.recv()
    except EOFError:
        raise EngineError("expected that workers of a server in another process start, found that it ended") from None
    finally:
        server.kill()
        server.join()
        ours.close()
    _require(
        all(_ended(pid, timeout) for pid in pids),
        f"expected that the workers of a killed server end, found some alive ({pids})",
    )
    _require(
        not memory & _shared_memory(),
        f"expected that no shared memory remains, found {sorted(memory & _shared_memory())}",
    )


def _serve_for_ever(make_engine: Callable[[], Engine], timeout: float, spec: WorkerSpec, pipe: Connection) -> None:
    before = _shared_memory()
    engine = make_engine()
    engine.start(spec, seats=2, slots=2)
    pids = [event.pid for event in _wait_for(engine, timeout, Ready, Ready)]
    pipe.send((pids, _shared_memory() - before))
    threading.Event().wait()


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir() if not path.name.startswith("sem.")} if folder.exists() else set()


def _ended(pid: int, timeout: float = 60.0) -> bool:
    """Wait up to ``timeout`` for the end of a process that is not a child."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], timeout)[0])
    finally:
        os.close(watched)
