"""Maps the server's workers to the engine's seats."""

from __future__ import annotations

__all__ = ["WorkerSeats"]


class WorkerSeats:
    """Maps the server's worker numbers to the engine's seats; the first to be ready are the server's first workers.

    Args:
        workers: Number of workers of the server.
    """

    def __init__(self, workers: int) -> None:
        self._free = set(range(workers))
        self._worker: dict[int, int] = {}
        self._seat: dict[int, int] = {}

    def assign_free(self, seat: int) -> int | None:
        """Assign a free worker number to a seat and return it; None if all are assigned."""
        if not self._free:
            return None
        worker = seat if seat in self._free else min(self._free)
        self._free.discard(worker)
        self.assign(seat, worker)
        return worker

    def assign(self, seat: int, worker: int) -> None:
        """Assign this worker number to a seat."""
        self._worker[seat], self._seat[worker] = worker, seat

    def worker(self, seat: int) -> int | None:
        """Return the worker in a seat, or None."""
        return self._worker.get(seat)

    def has_seat(self, worker: int) -> bool:
        """Whether a worker has a seat."""
        return worker in self._seat

    def seat(self, worker: int) -> int:
        """Return the seat of a worker."""
        return self._seat[worker]
