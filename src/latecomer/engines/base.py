"""What an engine is: seats, slots, jobs down, events up. It moves bytes and decides nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..problems.base import Problem

__all__ = ["Died", "Done", "Engine", "Evaluated", "Event", "Failed", "Job", "Ready", "Slot", "WorkerSpec"]


@dataclass(frozen=True)
class WorkerSpec:
    """What every worker needs to know once.

    Args:
        problem: What to train on; it reaches worker processes by pickle.
        size: Number of parameters.
        dtype: Their type.
        points: At how many points a sample is evaluated.
        statistics: How many float64 numbers of running averages go up with a contribution, and down to be evaluated.
        seed: What the model is made with; its parameters come with every ticket, but what is frozen does not.
        bf16: Round points and contributions to bfloat16, for a wire of half the width.
        evaluators: The last so many seats evaluate only.

    Examples:
        >>> import latecomer as lc
        >>> WorkerSpec(lc.problems.quadratic(), size=10, dtype=torch.float64).points
        1
    """

    problem: Problem
    size: int
    dtype: torch.dtype
    points: int = 1
    statistics: int = 0
    seed: int = 0
    bf16: bool = False
    evaluators: int = 0


@dataclass(frozen=True)
class Slot:
    """Memory for one ticket that both the server and whoever computes it can see.

    Args:
        index: Which of the engine's slots it is.
        points: What to evaluate, one flat tensor a point; the server writes it, a worker only reads.
        gradient: What comes back; the worker writes it before it reports `Done`.
        statistics: Running averages of batch normalisation that come back with it.

    Examples:
        >>> Slot(0, [torch.zeros(3)], torch.zeros(3), torch.zeros(0, dtype=torch.float64)).gradient.shape
        torch.Size([3])
    """

    index: int
    points: list[Tensor]
    gradient: Tensor
    statistics: Tensor


@dataclass(frozen=True, slots=True)
class Job:
    """What a seat is asked to do: compute the contribution of a ticket, or evaluate the model.

    Args:
        number: The ticket's number; for an evaluation, whatever tells it from others.
        slot: Which slot has its points, and takes its result.
        sample: The ticket's sample.
        version: Index of the iterate.
        here: Coefficient of the gradient at the first point.
        before: Coefficient of the gradient at the second.
        evaluate: Evaluate at the slot's first point, with its statistics, instead of computing a contribution.

    Examples:
        >>> Job(number=4, slot=0, sample=7, version=1).here
        1.0
    """

    number: int
    slot: int
    sample: int = 0
    version: int = 1
    here: float = 1.0
    before: float = 0.0
    evaluate: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has taken its seat and waits for a job.

    Examples:
        >>> Ready(seat=0, pid=4711).seat
        0
    """

    seat: int
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """A contribution lies in its slot.

    Args:
        seat: Who computed it.
        number: Of which ticket.
        finite: Whether it is free of NaN and infinities; the worker looks.
        loss: Of its batch, NaN if unknown.
        group: Of its sample.
        seconds: How long the worker took.

    Examples:
        >>> Done(seat=0, number=4, finite=True).group
        0
    """

    seat: int
    number: int
    finite: bool
    loss: float = float("nan")
    group: int = 0
    seconds: float = float("nan")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation is done.

    Examples:
        >>> Evaluated(seat=2, number=100, metrics={"loss": 0.5}).metrics["loss"]
        0.5
    """

    seat: int
    number: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Failed:
    """The code of a job has raised; its worker lives on and waits for the next one.

    Args:
        seat: Where.
        number: Which ticket or evaluation.
        reason: The last line of the traceback.
        where: The line of code before it, if known.

    Examples:
        >>> Failed(seat=0, number=4, reason="ValueError: no").reason
        'ValueError: no'
    """

    seat: int
    number: int
    reason: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Died:
    """A worker is gone, with whatever it was doing; `restart` puts a new one in its seat.

    Args:
        seat: Where.
        reason: For people: a signal, an exit code.

    Examples:
        >>> Died(seat=1, reason="killed by SIGKILL").seat
        1
    """

    seat: int
    reason: str


Event = Ready | Done | Evaluated | Failed | Died
"""Whatever an engine may report."""


class Engine(ABC):
    """Moves bytes between a server and its workers, and reports what happened. All decisions are the server's.

    To write one, implement the six methods; `latecomer.testing.check_engine` tests it. The contract:

    - `start` makes ``slots`` slots and seats ``seats`` workers. Each reports `Ready` once it can take a job.
    - A *slot* is three kinds of memory: the points of a ticket (server to worker), its gradient and its statistics
      (worker to server). The server writes the points before `submit`, and reads the rest after `Done`. Between the two
      it touches neither. Where memory is not shared, `submit` sends the points and `Done` is reported once the result
      has been copied into the slot.
    - `submit` hands a job to a seat that is ready. A worker computes it with `latecomer.engines.worker.Worker`, which
      every engine shares, and answers with exactly one of `Done`, `Evaluated` and `Failed`, or dies.
    - Events of one seat come in the order they happened. After `Died` nothing of the worker's past is reported, and
      nothing it might still be writing reaches a slot: a slot may be handed to somebody else at once.
    - `kill` ends a worker at once, whatever it does; the engine reports `Died`. `restart` seats a new one, which
      reports `Ready`. Nothing restarts by itself.
    - `close` ends all workers and gives back all memory; it may be called twice. When the server's own process dies, by
      SIGKILL too, nothing of the engine may be left behind: neither processes nor shared memory.
    - Workers use one torch thread, ignore Ctrl-C, and get no ticket twice at the same time.

    Examples:
        >>> import latecomer as lc
        >>> from latecomer.engines.inline import InlineEngine
        >>> spec = WorkerSpec(lc.problems.quadratic(noise=0.0), size=10, dtype=torch.float64)
        >>> with InlineEngine() as engine:
        ...     slot = engine.start(spec, seats=1, slots=1)[0]
        ...     ready = engine.events()
        ...     _ = slot.points[0].fill_(5.0)
        ...     engine.submit(0, Job(number=0, slot=0))
        ...     [(event.number, event.finite) for event in engine.events()]
        [(0, True)]
    """

    bf16: bool = False
    """Whether points and gradients are rounded to bfloat16 on their way; whoever replays the run must know."""

    @abstractmethod
    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        """Seat workers 0 to ``seats - 1``, and return the slots."""

    @abstractmethod
    def submit(self, seat: int, job: Job) -> None:
        """Hand a job to a worker that is ready; if it has just died, `events` will say so."""

    @abstractmethod
    def events(self, timeout: float | None = None) -> list[Event]:
        """Return what has happened, in order; wait up to ``timeout`` seconds (for ever if None) for something to."""

    @abstractmethod
    def kill(self, seat: int) -> None:
        """End the worker in this seat at once."""

    @abstractmethod
    def restart(self, seat: int) -> None:
        """Put a new worker into a seat whose worker has died."""

    @abstractmethod
    def close(self) -> None:
        """End everything and give all memory back."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
