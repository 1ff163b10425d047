"""Who sits where: the engine numbers its seats, the server its workers, and whoever comes late joins at the end."""

from __future__ import annotations

from ..engines import Died
from .evaluator import IMPORTABLE

__all__ = ["StartupFailures", "WorkerSeats"]


class StartupFailures:
    """Counts workers that die before they are ready, and gives up when that would go on for ever.

    Args:
        seats: How many workers there may be.

    Examples:
        >>> startup_failures = StartupFailures(seats=2)
        >>> startup_failures.died(Died(0, "killed by SIGKILL"))
        >>> startup_failures.died(Died(0, "exit code 1"))
        Traceback (most recent call last):
        ValueError: Workers die before they are ready (exit code 1); everything a task uses must be importable, and a
            script that calls fit needs `if __name__ == '__main__':` around the call
    """

    def __init__(self, seats: int) -> None:
        self.seats = seats
        self._count, self._anybody = 0, False

    def ready(self) -> None:
        """Note that a worker is up."""
        self._count, self._anybody = 0, True

    def died(self, event: Died) -> None:
        """Note a death; a signal may be bad luck, but who ends by itself before anybody was up will do so again."""
        self._count += 1
        hopeless = not self._anybody and not event.reason.startswith("killed")
        if hopeless or self._count >= 2 * self.seats + 1:
            raise ValueError(f"Workers die before they are ready ({event.reason}); {IMPORTABLE}")


class WorkerSeats:
    """Which worker of the server sits in which seat of the engine: whoever comes first is among the first.

    Args:
        workers: How many the server has.

    Examples:
        >>> seating = WorkerSeats(workers=2)
        >>> seating.take(0), seating.take(3), seating.take(1), seating.worker(1)
        (0, 1, None, None)
        >>> seating.join(seat=1, worker=2)
        >>> seating.seat(2), seating.worker(3)
        (1, 1)
    """

    def __init__(self, workers: int) -> None:
        self._free = set(range(workers))
        self._worker: dict[int, int] = {}
        self._seat: dict[int, int] = {}

    def take(self, seat: int) -> int | None:
        """Seat somebody new as a worker that the server has and nobody is yet; None if there is none left."""
        if not self._free:
            return None
        worker = seat if seat in self._free else min(self._free)
        self._free.discard(worker)
        self.join(seat, worker)
        return worker

    def join(self, seat: int, worker: int) -> None:
        """Note that somebody new is this worker."""
        self._worker[seat], self._seat[worker] = worker, seat

    def worker(self, seat: int) -> int | None:
        """Return who sits there; None if nobody has yet."""
        return self._worker.get(seat)

    def taken(self, worker: int) -> bool:
        """Whether somebody is this worker."""
        return worker in self._seat

    def seat(self, worker: int) -> int:
        """Return where a worker sits."""
        return self._seat[worker]
