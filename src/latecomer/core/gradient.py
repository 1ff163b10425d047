"""What one ticket contributes: the one function that the simulator and every worker process call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from ..optim._kernels import combine
from ..problems.base import Problem
from .batchnorm import RunningAverages
from .flat import FlatModule
from .history import COLUMNS
from .rng import other_generators

__all__ = ["Contributor", "evaluated", "one_thread"]


class Contributor:
    """Computes contributions of a problem: same ticket, point and coefficients, same bits, in whichever process.

    The ticket seeds torch's generator, so dropout is the same at both points and on every attempt. Running averages of
    batch normalisation do not touch the module: they are left in `averages`, as the first point had them, for
    whoever counts the arrival.

    Args:
        problem: What to train on.
        flat: Its model; used as scratch, its parameters are pointed at whatever is evaluated.
        points: At how many points a sample is evaluated.
        bf16: Round points and contributions to bfloat16, as a wire of half the width does; where they go through such a
            wire this changes nothing any more, and where they do not it gives the same bits.
        averages: The module's running averages, if somebody has them already.
    """

    def __init__(
        self,
        problem: Problem,
        flat: FlatModule,
        points: int,
        bf16: bool = False,
        averages: RunningAverages | None = None,
    ) -> None:
        self.problem, self.flat, self._bf16 = problem, flat, bf16
        self.averages = averages or RunningAverages(flat.module)
        self._second = torch.empty_like(flat.x, requires_grad=False) if points == 2 else None

    def __call__(
        self,
        points: Sequence[Tensor],
        out: Tensor,
        number: int,
        sample: int,
        group: int,
        version: int,
        here: float = 1.0,
        before: float = 0.0,
    ) -> float:
        """Write the contribution into ``out`` and return the loss, NaN where a formula gives the gradient alone.

        Args:
            points: What the ticket has to evaluate: its iterate, and the one before for rules with two points.
            out: Where the result goes.
            number: The ticket's number.
            sample: Its sample.
            group: Its group.
            version: Index of its iterate.
            here: Coefficient of the gradient at the iterate, by `AsyncOptimizer.coefficients`.
            before: Coefficient of the gradient at the iterate before.
        """
        batch = self.problem.batch_of(number, sample, group)
        if self._bf16:
            points = [_rounded(point) for point in points]
        loss = self._contribution(points, out, batch, sample, version, here, before)
        if self._bf16:
            out.copy_(_rounded(out))
        return loss

    def _contribution(
        self, points: Sequence[Tensor], out: Tensor, batch: Any, sample: int, version: int, here: float, before: float
    ) -> float:
        if self.averages.has_buffers:
            with self.averages.fresh():
                loss = self._gradient(points[0], batch, sample, out)
        else:
            loss = self._gradient(points[0], batch, sample, out)
        if self._second is None:
            return loss
        if version == 1:  # the start is its own predecessor
            combine(out, out, here, before)
        else:
            with self.averages.unchanged():
                self._gradient(points[1], batch, sample, self._second)
            combine(out, self._second, here, before)
        return loss

    def _gradient(self, point: Tensor, batch: Any, sample: int, out: Tensor) -> float:
        torch.default_generator.manual_seed(sample >> 1)  # dropout and the like
        target = out.view_as(out)  # torch may reshape what it writes to, and that must not be the slot
        if self.problem.gradient(point, batch, target):
            loss = math.nan
            if target.shape != out.shape:
                raise ValueError(f"The problem's gradient has shape {tuple(target.shape)}, not {tuple(out.shape)}")
        else:
            with other_generators(sample):
                loss = float(self.flat.gradient(point, lambda module: self.problem.loss(module, batch), out))
        self.problem.clip(out)
        return loss


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16).to(tensor.dtype)


def evaluated(problem: Problem, module: nn.Module) -> dict[str, float]:
    """Return a problem's metrics, without gradients, and leave every layer in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            metrics = problem.evaluate(module)
    finally:
        for part, training in modes:
            part.training = training
    if not isinstance(metrics, Mapping):
        raise TypeError(f"evaluate must return a dict of names and numbers, got {metrics!r}")
    taken = sorted(set(COLUMNS) & metrics.keys())
    if taken:
        raise ValueError(f"evaluate may not call a metric {taken[0]!r}: the history has that column")
    return {str(name): _number(name, value) for name, value in metrics.items()}


def _number(name: object, value: Any) -> float:
    """Return a metric as a number; one that is a tensor or an array of one element is taken out of it."""
    if isinstance(value, Real):
        return float(value)
    try:
        return float(value.item())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise TypeError(f"evaluate must return names and numbers, got {value!r} for {name!r}") from None


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one torch thread, as every worker does: more of them add up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
