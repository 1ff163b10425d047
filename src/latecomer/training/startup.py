"""Workers that die before they are ready: which deaths are tolerated, and what to tell the user."""

from __future__ import annotations

from ..engines import Died

__all__ = ["StartupFailures", "advice"]

_IMPORTABLE = "every module that the task uses must be importable in a new process"
_KILLED = "is memory running out? Fewer workers need less"
_LEAST_KILLS = 20


def advice(event: Died) -> str:
    """Return the common reasons for such a death."""
    return _KILLED if event.killed else _IMPORTABLE


class StartupFailures:
    """Counts workers that die before they are ready, in a row, and says when they would die for ever.

    A worker that ends by itself, because an import fails for example, does so again: before any worker was ready, the
    first one ends the run. A worker that is killed says nothing about the next one, so a burst of kills is tolerated.

    Args:
        workers: Largest number of workers.
        attempts: How often each may be killed on average.
    """

    def __init__(self, workers: int, attempts: int = 3) -> None:
        self._most_exits = 2 * workers
        self._most_kills = max(_LEAST_KILLS, workers * (attempts + 1))
        self._exits = self._kills = 0
        self._any_ready = False

    def ready(self) -> None:
        """Record that a worker is ready."""
        self._exits, self._kills, self._any_ready = 0, 0, True

    def verdict(self, event: Died) -> str:
        """Record a death, and return why the run should end; an empty string if another worker is worth a try."""
        if event.killed:
            self._kills += 1
            many = self._kills > self._most_kills
            return (
                f"{self._kills} workers in a row were {event.reason} before they were ready; {_KILLED}" if many else ""
            )
        self._exits += 1
        many = not self._any_ready or self._exits > self._most_exits
        return f"Workers die before they are ready ({event.reason}); {_IMPORTABLE}" if many else ""

    def died(self, event: Died) -> None:
        """Record a death, and raise if the run should end."""
        verdict = self.verdict(event)
        if verdict:
            raise ValueError(verdict)
