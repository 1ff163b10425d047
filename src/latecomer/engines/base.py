"""The engine interface: jobs go to workers, events come back. An engine moves bytes and decides nothing.

A *seat* is one of an engine's numbered places for a worker process. Its number stays the same when the process dies and
is replaced. A *slot* is memory for one ticket: its points and its result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .._util.memory import check_memory
from ..problems.base import Problem
from .registered import RegisteredMethods

__all__ = ["Died", "Done", "Engine", "Evaluated", "Event", "Failed", "Job", "Ready", "Slot", "WorkerSpec"]

_WORKER_BYTES = 1 << 14  # what the server keeps for a worker, with its ticket, and with a small model in this process


@dataclass(frozen=True)
class WorkerSpec:
    """What every worker gets once, at its start.

    Args:
        problem: What to train on; it is pickled to reach worker processes.
        size: Number of parameters.
        dtype: Their dtype.
        points: Number of points at which a sample is evaluated.
        statistics: Number of float64 batch-normalisation statistics, sent with a contribution and to an evaluation.
        seed: Initialises the model. Trainable parameters come with every job, frozen ones do not.
        bf16: Round points and contributions to bfloat16, which halves what is sent.
        evaluators: Number of seats, the last ones, that only evaluate.
        methods: The methods that were registered in this process, for a worker to know.
        device: Where workers compute: a device of torch, or ``"auto"``. A name, because a worker may learn of a device
            only when it unpickles the problem.
        threads: Torch threads per worker.
        prefetch: Number of batches that a worker draws ahead, in a process of its own.

    Examples:
        >>> import latecomer as lc
        >>> WorkerSpec(lc.problems.quadratic(), size=10, dtype=torch.float64).points
        1
    """

    # First, so that it is unpickled before the problem: code of the user's that runs then may look a method up.
    methods: RegisteredMethods = field(default_factory=RegisteredMethods, kw_only=True, repr=False)
    problem: Problem
    size: int
    dtype: torch.dtype
    points: int = 1
    statistics: int = 0
    seed: int = 0
    bf16: bool = False
    evaluators: int = 0
    device: str = "cpu"
    threads: int = 1
    prefetch: int = 0


@dataclass(frozen=True)
class Slot:
    """Memory for one ticket, visible to the server and to the worker that computes it.

    Args:
        index: Index of the slot.
        points: The points to evaluate, one flat tensor per point; written by the server, read by the worker.
        gradient: The result; the worker writes it before it reports `Done`.
        statistics: Batch-normalisation statistics of the job.

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
    """A job for a worker: compute the contribution of a ticket, or evaluate the model.

    Args:
        number: Number of the ticket; for an evaluation, any unique number.
        slot: Index of the slot with its points, which also takes the result.
        sample: Seed of the ticket's sample.
        version: Index of the iterate.
        here: Coefficient of the gradient at the first point.
        before: Coefficient of the gradient at the second point.
        evaluate: Evaluate at the slot's first point, with its statistics, instead of computing a contribution.
        upcoming: Number of the ticket that is issued next, by which a worker guesses its own next one.
        workers: Number of workers, for the same purpose.

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
    upcoming: int = 0
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has started and can take a job.

    Args:
        seat: Seat of the worker.
        pid: Its process.
        device: What kind of device it computes on.

    Examples:
        >>> Ready(seat=0, pid=4711).seat
        0
    """

    seat: int
    pid: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Done:
    """A contribution is complete in its slot.

    Args:
        seat: Seat of the worker.
        number: Number of the ticket.
        finite: Whether it is free of NaN and infinities; the worker checks.
        loss: Loss of its batch, NaN if unknown.
        group: Group of its sample.
        seconds: Duration of the job.

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
    """An evaluation is complete.

    Examples:
        >>> Evaluated(seat=2, number=100, metrics={"loss": 0.5}).metrics["loss"]
        0.5
    """

    seat: int
    number: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Failed:
    """The code of a job has raised; the worker is alive and can take the next job.

    Args:
        seat: Seat of the worker.
        number: Number of the ticket or evaluation.
        reason: The last line of the traceback.
        where: File and line of the error, if known.

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
    """A worker has died and its job is lost; `restart` starts a new worker in its seat.

    Args:
        seat: Seat of the worker.
        reason: How it died, for people: a signal, an exit code. It begins with ``killed`` if a signal ended it.

    Examples:
        >>> Died(seat=1, reason="killed by SIGKILL").seat
        1
    """

    seat: int
    reason: str

    @property
    def killed(self) -> bool:
        """Whether something else ended it, rather than its own code: its reason then begins with ``killed``."""
        return self.reason.startswith("killed")


Event = Ready | Done | Evaluated | Failed | Died
"""Anything an engine reports."""


class Engine(ABC):
    """Moves bytes between a server and its workers, and reports events. The server makes all decisions.

    To write one, implement the six methods; `latecomer.testing.check_engine` tests it. The contract:

    - `start` creates ``slots`` slots and starts a worker in each of ``seats`` seats. Each reports `Ready` when it can
      take a job.
    - A *slot* has three parts: the points of a ticket (server to worker), its gradient and its statistics (worker to
      server). The server writes the points before `submit` and reads the result after `Done`. In between it touches
      neither. Where memory is not shared, `submit` sends the points, and `Done` is reported after the result has been
      copied into the slot.
    - `submit` sends a job to a seat that is ready. The worker computes it with `latecomer.engines.worker.Worker`,
      which all engines share, and answers with exactly one of `Done`, `Evaluated` and `Failed`, or dies.
    - Events of one seat are reported in order. After `Died` nothing older of that worker is reported, and nothing it
      may still write reaches a slot: the slot can be reused immediately.
    - `kill` ends a worker immediately; the engine reports `Died`. `restart` starts a new worker in the seat, which
      reports `Ready`. Nothing restarts by itself.
    - `close` ends all workers and frees all memory; it may be called twice. If the server's process dies, even by
      SIGKILL, no process and no shared memory of the engine may remain.
    - Workers use the spec's device and number of torch threads, and ignore Ctrl-C. No ticket is with two workers at the
      same time.

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
    """Whether points and gradients are rounded to bfloat16 when they are sent; a replay must do the same."""

    on_this_machine: bool = True
    """Whether all workers run on the server's machine, and have its devices."""

    def check_workers(self, workers: int) -> None:
        """Raise if there is no room for so many workers; called before anything is made for them."""
        check_memory(workers * _WORKER_BYTES, f"{workers:,} workers", "use fewer workers")

    @abstractmethod
    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        """Start workers in seats 0 to ``seats - 1``, and return the slots."""

    @abstractmethod
    def submit(self, seat: int, job: Job) -> None:
        """Send a job to a worker that is ready; if it has just died, `events` reports that."""

    @abstractmethod
    def events(self, timeout: float | None = None) -> list[Event]:
        """Return new events in order; wait up to ``timeout`` seconds (None: without limit) for the first."""

    @abstractmethod
    def kill(self, seat: int) -> None:
        """End the worker in this seat immediately."""

    @abstractmethod
    def restart(self, seat: int) -> None:
        """Start a new worker in a seat whose worker has died."""

    @abstractmethod
    def close(self) -> None:
        """End all workers and free all memory."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
