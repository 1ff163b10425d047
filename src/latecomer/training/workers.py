"""Who sits where: the engine numbers its seats, the server its workers, and whoever comes late joins at the end."""

from __future__ import annotations

__all__ = ["WorkerSeats"]


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
