"""The contribution of one ticket, computed by the same code in the simulator and in every worker."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..optim._kernels import combine
from ..problems.base import Problem
from .batchnorm import RunningAverages
from .devices import Crossing, moved
from .flat import FlatModule
from .history import COLUMNS
from .rng import other_generators, seed_torch

__all__ = ["Contributor", "evaluated", "one_thread"]

_Batches = Sequence[tuple[int, Any]]  # seeds and micro-batches of a ticket


class Contributor:
    """Computes contributions: the same ticket, point and coefficients give the same bits in every process.

    The ticket seeds torch's generators, so dropout is the same at both points and on every attempt. Batch-normalisation
    statistics of the first point are left in `averages`; the module's own do not change.

    Points and contributions that are on another device than the model cross in one copy each.

    Args:
        problem: What to train on.
        flat: Its model; used as scratch space, its parameters are pointed at the points to evaluate.
        points: Number of points at which a sample is evaluated.
        bf16: Round points and contributions to bfloat16. Where they are sent as bfloat16 anyway this changes nothing;
            elsewhere it gives the same bits.
        averages: The module's batch-normalisation statistics, if they exist already.

    Attributes:
        result: The last contribution, on the model's device.
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
        self.result = flat.x.detach()
        self._cross = Crossing()
        self._here: list[Tensor] = []  # points and contribution, if they are on another device or rounded

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
        batches: _Batches | None = None,
    ) -> float:
        """Write the contribution into ``out`` and return the loss; NaN if the problem computes its gradient directly.

        Args:
            points: The iterate, and the iterate before it for methods with two points.
            out: Receives the contribution.
            number: Number of the ticket.
            sample: Seed of the ticket's sample.
            group: Group of its sample.
            version: Index of its iterate.
            here: Coefficient of the gradient at the iterate, by `AsyncOptimizer.coefficients`.
            before: Coefficient of the gradient at the iterate before.
            batches: What the ticket consists of, if it has been drawn already.
        """
        batches = self.problem.micro_batches(number, sample, group) if batches is None else batches
        device = self.flat.device
        if device.type != "cpu":
            batches = [(seed, moved(batch, device)) for seed, batch in batches]
        points, self.result = self.here(points), out
        if out.device != device:
            self.result = self._memory(len(points))
        if self._bf16:
            # Into the same memory for every job: the model keeps views of every point that it has been at.
            points = [self._memory(i).copy_(point.to(torch.bfloat16)) for i, point in enumerate(points)]
        loss = self._contribution(points, self.result, batches, version, here, before)
        if self._bf16:
            self.result.copy_(self.result.to(torch.bfloat16))
        if self.result is not out:
            self._cross(out, self.result)
        return loss

    def here(self, points: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return points on the model's device, copied if they are elsewhere."""
        if points[0].device == self.flat.device:
            return points
        return [self._cross(self._memory(i), point) for i, point in enumerate(points)]

    def _memory(self, index: int) -> Tensor:
        while len(self._here) <= index:
            self._here.append(torch.empty_like(self.flat.x, requires_grad=False))
        return self._here[index]

    def _contribution(
        self, points: Sequence[Tensor], out: Tensor, batches: _Batches, version: int, here: float, before: float
    ) -> float:
        if self.averages.has_buffers:
            with self.averages.fresh():
                loss = self._gradient(points[0], batches, out)
        else:
            loss = self._gradient(points[0], batches, out)
        if self._second is None:
            return loss
        if version == 1:  # x_0 = x_1, so both gradients are the same
            combine(out, out, here, before)
        else:
            with self.averages.unchanged():
                self._gradient(points[1], batches, self._second)
            combine(out, self._second, here, before)
        return loss

    def _gradient(self, point: Tensor, batches: _Batches, out: Tensor) -> float:
        """Write the mean gradient of a ticket's micro-batches into ``out``, and return their mean loss."""
        (sample, batch), *others = batches
        loss = self._gradient_of(point, batch, sample, out)
        if others:
            # A sum of its own: the loss may call zero_grad, which clears what backward has written into `out`.
            total = out.clone()
            for sample, batch in others:
                loss += self._gradient_of(point, batch, sample, out)
                total.add_(out)
            torch.div(total, len(batches), out=out)
            loss /= len(batches)
        self.problem.clip(out)
        return loss

    def _gradient_of(self, point: Tensor, batch: Any, sample: int, out: Tensor) -> float:
        seed_torch(sample)  # for dropout and similar layers
        target = out.view_as(out)  # torch may resize its output; the slot must keep its shape
        version = point._version
        direct = self.problem.gradient(point, batch, target)
        if point._version != version:
            raise ValueError(
                "The problem's gradient changes the point in place, which other tickets start from too: compute with a "
                "copy, x = x.clone()"
            )
        if direct:
            loss = math.nan
            if target.shape != out.shape:
                raise ValueError(f"The problem's gradient has shape {tuple(target.shape)}, not {tuple(out.shape)}")
        else:
            with other_generators(sample):
                loss = float(self.flat.gradient(point, lambda module: self.problem.loss(module, batch), out))
        return loss


def evaluated(problem: Problem, flat: FlatModule, point: Tensor) -> dict[str, float]:
    """Return a problem's metrics at a point, computed without gradients; every layer keeps its mode."""
    module = flat.at(point)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad(), flat.intact("evaluate"):
            metrics = problem.evaluate(module)
    finally:
        for part, training in modes:
            part.training = training
    if not isinstance(metrics, Mapping):
        shown = " ".join(repr(metrics).split())[:100]
        raise TypeError(f"evaluate must return a dict of names and numbers, got {shown}")
    taken = sorted(set(COLUMNS) & metrics.keys())
    if taken:
        raise ValueError(f"evaluate may not return a metric named {taken[0]!r}: the history has a column of that name")
    return {str(name): _metric_value(name, value) for name, value in metrics.items()}


def _metric_value(name: object, value: Any) -> float:
    """Return a metric as a float; it may be a tensor or an array with one element."""
    if isinstance(value, Real):
        return float(value)
    try:
        return float(value.item())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise TypeError(f"evaluate must return names and numbers, got {value!r} for {name!r}") from None


@contextmanager
def one_thread(threads: int = 1) -> Iterator[None]:
    """Use one torch thread, or as many as a worker has: other numbers add in another order, so the bits differ."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
