"""What a run trains, and what every counted arrival does to it besides the update itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..optim import known_method
from ..optim._kernels import is_finite
from ..problems.base import Problem
from ..server import Outcome
from .flat import FlatModule

__all__ = ["PATIENCE", "Trainee"]

PATIENCE = 100
"""How many non-finite contributions in a row end a run."""


class Trainee:
    """A model with its optimizer and learning-rate scheduler, the same in the simulator and on real workers.

    Args:
        problem: What to train on.
        method: Name of the method.
        options: Its hyper-parameters.
        seed: Initialises the model.
        schedule: Makes a learning-rate scheduler out of the optimizer, or None; it steps with every update.

    Examples:
        >>> import latecomer as lc
        >>> trainee = Trainee(lc.problems.quadratic(), "momentum", {"lr": 0.1}, seed=0)
        >>> for arrival in range(1, PATIENCE + 1):
        ...     trainee.counted(Outcome("zero", arrival=arrival, delay=0, finite=False))
        >>> trainee.diverged_at
        100
    """

    def __init__(
        self,
        problem: Problem,
        method: str,
        options: Mapping[str, Any],
        seed: int,
        schedule: Callable[[Any], Any] | None = None,
    ) -> None:
        self.flat = FlatModule(problem.model(seed))
        self.optimizer = known_method(method)([self.flat.x], **options)
        self.scheduler = None if schedule is None else schedule(self.optimizer)
        self.diverged_at: int | None = None
        self._bad_in_a_row = 0
        self._updates = self.optimizer.t

    @property
    def finite(self) -> bool:
        """Whether the parameters are free of NaN and infinities."""
        return is_finite(self.flat.x.detach())

    def counted(self, outcome: Outcome) -> None:
        """Take note of an arrival that the server has received."""
        if self.optimizer.t > self._updates:
            self._updates = self.optimizer.t
            if self.scheduler is not None:
                self.scheduler.step()
        if outcome.status == "applied":
            self._bad_in_a_row = 0
        elif not outcome.finite:
            self._bad_in_a_row += 1
            if self._bad_in_a_row >= PATIENCE or not self.finite:
                self.diverged_at = outcome.arrival

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the optimizer, whose state is the server's to save."""
        return {
            "buffers": dict(self.flat.module.named_buffers()),
            "scheduler": None if self.scheduler is None else dict(self.scheduler.state_dict()),
            "bad_in_a_row": self._bad_in_a_row,
            "diverged_at": self.diverged_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; the server has loaded its state before."""
        for name, buffer in self.flat.module.named_buffers():
            buffer.copy_(state["buffers"][name])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._bad_in_a_row, self.diverged_at = state["bad_in_a_row"], state["diverged_at"]
        self._updates = self.optimizer.t
