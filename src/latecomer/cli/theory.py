"""``latecomer theory``: what the theorems promise for a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ._output import Json, show

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Advise"]


@dataclass(frozen=True)
class Advise:
    """Estimate a problem's constants, compute the bounds of the theorems for it, and give advice.

    Example: latecomer theory advise --problem digits --workers 7 --steps 3750 --beta 0.1
    """

    problem: Literal["digits", "logistic", "quadratic"] = "digits"
    """What is to be trained."""
    workers: int = 7
    """Number of workers."""
    steps: int = 3750
    """Number of updates."""
    beta: float | None = None
    """The beta that is meant to be used; the theorem's if left out."""
    slow_share: float = 0.1
    """Share of slow samples in the paper's delay model."""
    seed: int = 0
    """Draws samples and the schedule."""
    json: Json = False
    """Print the numbers as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Estimate, compute, print."""
        from .. import delays, problems, theory
        from ._progress import counting

        model = delays.DataDependent(self.workers, self.slow_share)
        problem = problems.PROBLEMS[self.problem]()
        with counting("estimating constants", console) as on_progress:
            found = theory.advise(problem, model, self.steps, beta=self.beta, seed=self.seed, progress=on_progress)
        show(console, found, found.numbers)
