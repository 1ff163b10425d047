"""``latecomer theory``: what the theorems promise for a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tyro
from rich.console import Console

__all__ = ["TheoryCommand"]


@dataclass(frozen=True)
class TheoryCommand:
    """Estimate a problem's constants and say what the theorems promise for it, and what to do.

    Example: latecomer theory advise --problem digits --workers 7 --steps 3750 --beta 0.1
    """

    what: tyro.conf.Positional[Literal["advise"]]
    """What to ask for."""
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

    def run(self, console: Console) -> None:
        """Estimate, compute, print."""
        from .. import delays, problems, theory

        model = delays.DataDependent(self.workers, self.slow_share)
        with console.status("estimating constants ..."):
            text = theory.advise(problems.PROBLEMS[self.problem](), model, self.steps, beta=self.beta, seed=self.seed)
        console.print(text, soft_wrap=True, highlight=False, markup=False)
