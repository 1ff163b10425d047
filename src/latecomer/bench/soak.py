"""Random kills during training, then the proof that nothing was lost and nothing counted twice."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..engines import Engine
from ..optim.checks import whole_number
from ..problems import Problem, Quadratic
from ..seeds import stream
from ..trace import STATUSES, Trace
from ..training import Callback, fit, replay

__all__ = ["Soak", "soak"]


@dataclass(frozen=True)
class Soak:
    """What came of a soak.

    Attributes:
        kills: How many workers were killed.
        deaths: How many deaths the engine reported.
        arrivals: Contributions counted.
        tickets: Tickets issued, those still out at the end included.
        lost: How often a kill took a ticket along, which was then issued again.
        exactly_once: Whether every ticket but those still out was counted exactly once.
        difference: Largest difference between the run's parameters and its replay's; 0 for the same bits.
        seconds: How long the run took.

    Examples:
        >>> Soak(2, deaths=2, arrivals=9, tickets=11, lost=1, exactly_once=True, difference=1.0, seconds=1.0).good
        False
    """

    kills: int
    deaths: int
    arrivals: int
    tickets: int
    lost: int
    exactly_once: bool
    difference: float
    seconds: float

    @property
    def good(self) -> bool:
        """Whether the run held."""
        return self.exactly_once and self.difference == 0.0 and self.deaths >= self.kills


class _Reaper(Callback):
    """Kills a random worker at every planned arrival, or as soon after it as one is up."""

    def __init__(self, when: Sequence[int], draws: np.random.Generator) -> None:
        self.when, self.draws, self.done = when, draws, 0

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        while self.done < len(self.when) and self.when[self.done] <= outcome.arrival:
            seats = self.draws.permutation(run.workers)
            if not any(run.kill(int(seat)) for seat in seats):
                return
            self.done += 1


def soak(
    kills: int = 1000,
    *,
    every: int = 8,
    workers: int = 2,
    method: str = "catch-up",
    problem: Problem | None = None,
    engine: str | Engine = "local",
    seed: int = 0,
    progress: Any = False,
    **options: Any,
) -> Soak:
    """Train while workers are killed at random, and check what is left.

    Args:
        kills: How many.
        every: Contributions between kills, on average.
        workers: Number of workers.
        method: Name of the method.
        problem: What to train; a quadratic by default.
        engine: Where.
        seed: Draws who is killed when, and the samples.
        progress: As for `latecomer.fit`.
        **options: Hyper-parameters of the method.

    Examples:
        >>> soak(5, engine="inline").good
        True
    """
    whole_number("kills", kills, least=1)
    steps = (kills + 1) * whole_number("every", every, least=1)
    draws = stream(seed, "kills")
    when = np.sort(draws.choice(np.arange(1, steps - every), size=kills, replace=False))
    reaper = _Reaper([int(arrival) for arrival in when], draws)
    problem = problem or Quadratic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.parquet"
        # A ticket is killed again and again by chance here, not by what is in it: none may be given up.
        result = fit(
            problem, optimizer=method, workers=workers, engine=engine, steps=steps, attempts=kills + 1,
            callbacks=[reaper], record=path, progress=progress, seed=seed, **{"lr": 1e-3, **options},
        )  # fmt: skip
        difference = replay(path, problem).difference
    return Soak(
        kills=reaper.done,
        deaths=result.deaths,
        arrivals=len(result.trace),
        tickets=int(result.trace.columns["ticket"].max()) + 1,
        lost=int((result.trace.columns["status"] == STATUSES.index("lost")).sum()),
        exactly_once=_exactly_once(result.trace, {ticket.number for ticket in result.server.in_flight}),
        difference=float("nan") if difference is None else difference,
        seconds=result.seconds,
    )


def _exactly_once(trace: Trace, out: set[int]) -> bool:
    counted = trace.ticket.tolist()
    tickets = set(trace.columns["ticket"].tolist())
    return len(counted) == len(set(counted)) and set(counted) | out == tickets and not set(counted) & out
