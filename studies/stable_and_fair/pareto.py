"""The Pareto front: candidates that no other one dominates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Score", "front"]


@dataclass(frozen=True)
class Score:
    """One candidate with its two scores.

    Args:
        name: Name of the candidate.
        stability: Share of learning rates that end near the best; more is better.
        fairness: A measure of fairness, more is better: influence of slow over fast samples, or minus an excess
            loss. NaN counts as the worst.

    Examples:
        >>> Score("momentum", stability=0.3, fairness=1.0).dominates(Score("ordered", 0.3, 0.5))
        True
    """

    name: str
    stability: float
    fairness: float

    def _values(self) -> tuple[float, float]:
        return tuple(-math.inf if math.isnan(v) else v for v in (self.stability, self.fairness))  # type: ignore[return-value]

    def dominates(self, other: Score) -> bool:
        """Whether this one is as good in both and better in one."""
        mine, theirs = self._values(), other._values()
        return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))


def front(scores: Iterable[Score]) -> list[Score]:
    """Return the scores that no other dominates, the most stable first; equals stay together.

    Examples:
        >>> scores = [Score("a", 0.9, 0.3), Score("b", 0.4, 1.0), Score("c", 0.4, 0.9), Score("d", 0.8, 0.3)]
        >>> [score.name for score in front(scores)]
        ['a', 'b']
    """
    candidates = list(scores)
    best = [score for score in candidates if not any(other.dominates(score) for other in candidates)]
    return sorted(best, key=lambda score: (-score._values()[0], -score._values()[1], score.name))
