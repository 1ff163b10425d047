"""Random kills during training, and a check that no ticket was lost and none counted twice."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._util.checks import whole_number
from .._util.seeds import stream
from ..engines import Engine
from ..problems import Problem, Quadratic
from ..trace import STATUSES, Trace
from ..training import Callback, fit, replay

__all__ = ["Soak", "soak"]

_UNLIMITED = 10**9  # contributions: the callback ends the run


@dataclass(frozen=True)
class Soak:
    """The result of a soak test.

    Attributes:
        kills: Number of workers that were killed.
        deaths: Number of deaths that the engine reported.
        arrivals: Number of contributions counted.
        late: Number of them with a delay of at least 1.
        tickets: Number of tickets issued, including those in flight at the end.
        lost: Number of tickets lost by a kill and issued again.
        exactly_once: Whether every ticket, except those in flight, was counted exactly once.
        difference: Largest difference between the run's parameters and its replay's; 0 for the same bits.
        seconds: Duration of the run.

    Examples:
        >>> fine = {"deaths": 2, "arrivals": 9, "late": 8, "tickets": 11, "lost": 1, "exactly_once": True, "seconds": 1}
        >>> Soak(2, difference=0.0, **fine).good, Soak(2, difference=1.0, **fine).good
        (True, False)
    """

    kills: int
    deaths: int
    arrivals: int
    late: int
    tickets: int
    lost: int
    exactly_once: bool
    difference: float
    seconds: float

    @property
    def good(self) -> bool:
        """Whether the run passed; without any late gradient it would test nothing."""
        return self.exactly_once and self.difference == 0.0 and self.deaths == self.kills and self.late > 0


class _RandomKills(Callback):
    """Kills a random worker after a random number of arrivals with all workers up; ends the run after the last kill."""

    def __init__(self, kills: int, every: int, draws: np.random.Generator, on_kill: Callable[[int], None]) -> None:
        self.kills, self.every, self.draws, self.on_kill = kills, every, draws, on_kill
        self.done, self._left = 0, self._gap()

    def _gap(self) -> int:
        return int(self.draws.geometric(1.0 / self.every))

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if len(run.up) < run.workers:  # a new one starts slower than many arrivals of the others
            return
        self._left -= 1
        if self._left > 0:
            return
        if self.done == self.kills:
            run.stop()
        elif run.kill(int(self.draws.integers(run.workers))):
            self.done += 1
            self._left = self._gap()
            self.on_kill(self.done)


def soak(
    kills: int = 1000,
    *,
    every: int = 8,
    workers: int = 3,
    method: str = "catch-up",
    problem: Problem | None = None,
    engine: str | Engine = "local",
    seed: int = 0,
    on_kill: Callable[[int], None] = lambda done: None,
    **options: Any,
) -> Soak:
    """Train while workers are killed at random, and check the result.

    Args:
        kills: Number of kills.
        every: Contributions between kills, on average, counted while all workers are up.
        workers: Number of workers.
        method: Name of the method.
        problem: The problem; a quadratic by default.
        engine: The engine.
        seed: Draws the kills and the samples.
        on_kill: Called after every kill with the number of kills so far.
        **options: Hyper-parameters of the method.

    Examples:
        >>> soak(5, engine="inline").good
        True
    """
    whole_number("kills", kills, least=1)
    random_kills = _RandomKills(kills, whole_number("every", every, least=1), stream(seed, "kills"), on_kill)
    problem = problem or Quadratic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.parquet"
        # Here tickets fail by chance, not because of their samples: none may be given up.
        result = fit(
            problem, method=method, workers=workers, engine=engine, steps=_UNLIMITED, attempts=kills + 1,
            callbacks=[random_kills], record=path, seed=seed, **{"lr": 1e-3, **options},
        )  # fmt: skip
        difference = replay(path, problem).difference
    return Soak(
        kills=random_kills.done,
        deaths=result.deaths,
        arrivals=len(result.trace),
        late=int((result.trace.delay > 0).sum()),
        tickets=int(result.trace.columns["ticket"].max()) + 1,
        lost=int((result.trace.columns["status"] == STATUSES.index("lost")).sum()),
        exactly_once=_exactly_once(result.trace, {ticket.number for ticket in result.server.in_flight}),
        difference=float("nan") if difference is None else difference,
        seconds=result.seconds,
    )


def _exactly_once(trace: Trace, in_flight: set[int]) -> bool:
    counted = trace.ticket.tolist()
    tickets = set(trace.columns["ticket"].tolist())
    return len(counted) == len(set(counted)) and set(counted) | in_flight == tickets and not set(counted) & in_flight
