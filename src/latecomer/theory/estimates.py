"""Estimates of the constants in the theorems by sampling gradients, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .._util.checks import POSITIVE, whole_number
from .._util.intervals import Interval
from .._util.seeds import sample_seeds, stream
from ..core.gradient import one_thread
from ..problems.base import Problem
from .diagnostics import Gradients

__all__ = ["Constants", "estimate"]


@dataclass(frozen=True)
class Constants:
    """The constants of the theorems, as estimated by sampling: the largest value over some points.

    Attributes:
        L: Smoothness: the largest eigenvalue of the Hessian in absolute value; its interval is certified by the
            residual of the power iteration, for the sampled objective.
        sigma: Standard deviation of a gradient's noise.
        sigma_L: Lipschitz constant of that noise, in mean square.
        delta: Gap of the start above ``floor``.
        sup_noise: Largest norm of the noise in the samples: a lower bound of the supremum.
        points: Number of points.
    """

    L: Interval
    sigma: Interval
    sigma_L: Interval  # noqa: N815
    delta: Interval
    sup_noise: float
    points: int


def estimate(
    problem: Problem,
    *,
    samples: int = 48,
    points: int = 3,
    path: float = 0.5,
    iterations: int = 30,
    floor: float = 0.0,
    shares: Sequence[float] | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Constants:
    """Estimate L, sigma, sigma_L and delta of a problem at its start and along a short path of descent.

    Constants of a neural network are local: the largest of a few points is a lower bound for a whole run.

    Args:
        problem: The problem.
        samples: Samples per point.
        points: Number of points; the first is the start.
        path: Length of the path along the negative gradient, relative to the norm of the start (at least 1).
        iterations: Steps of the power iteration.
        floor: Lower bound on the objective.
        shares: Share of each group; the problem's own, or equal ones.
        seed: Draws samples, initialises the model.
        progress: Called with the passes over the samples so far and their total.

    Examples:
        >>> import latecomer as lc
        >>> found = estimate(lc.problems.quadratic(noise=0.0), points=2)
        >>> round(found.L.value, 2), found.sigma.low < 3 * 0.3 * 1.962 < found.sigma.high
        (1.0, True)
    """
    whole_number("samples", samples, least=4)
    whole_number("points", points, least=1)
    whole_number("iterations", iterations, least=1)
    POSITIVE.check("path", path)
    with one_thread():  # batches are small: threads would wait for each other, for minutes on a busy machine
        return _estimate(problem, samples, points, path, iterations, floor, shares, seed, progress or (lambda *_: None))


def _estimate(
    problem: Problem,
    samples: int,
    points: int,
    path: float,
    iterations: int,
    floor: float,
    shares: Sequence[float] | None,
    seed: int,
    on_progress: Callable[[int, int], None],
) -> Constants:
    """Do it. A point takes a pass over the samples for its noise, two for how it changes, and one an iteration."""
    each = 3 + iterations

    def done(passes: int) -> None:
        on_progress(passes, points * each)

    gradients = Gradients(problem, samples=2, shares=shares, seed=seed)
    rng = stream(seed, "estimate")
    groups = rng.choice(problem.groups, size=samples, p=gradients.shares)
    jobs = list(zip((int(s) for s in sample_seeds(seed + 1, samples)), groups.tolist(), strict=True))
    x = gradients.start.clone()
    length = path * max(1.0, float(x.norm()))
    unbiased = samples / (samples - 1)
    smooth, deviation, change, sup = [], [], [], 0.0
    for point in range(points):
        noise, mean = _noise(gradients, x, jobs)
        squares = (noise**2).sum(1).numpy() * unbiased
        deviation.append(_root_of_mean(squares, rng))
        sup = max(sup, float(np.sqrt(squares.max())))
        done(point * each + 1)
        smooth.append(_curvature(gradients, x, jobs, mean, iterations, rng, done, begun=point * each + 1))
        for direction in (torch.from_numpy(rng.standard_normal(len(x))).to(x), mean):
            step = direction / max(float(direction.norm()), 1e-30) * 1e-2 * length
            other, _ = _noise(gradients, x + step, jobs)
            squares = ((other - noise) ** 2).sum(1).numpy() * unbiased / max(float(step.norm()), 1e-30) ** 2
            change.append(_root_of_mean(squares, rng))
        if point + 1 < points:
            x = x - mean / max(float(mean.norm()), 1e-30) * length / (points - 1)
        done((point + 1) * each)
    return Constants(
        L=max(smooth, key=lambda interval: interval.value),
        sigma=max(deviation, key=lambda interval: interval.value),
        sigma_L=max(change, key=lambda interval: interval.value),
        delta=_gap(gradients, jobs, floor),
        sup_noise=sup,
        points=points,
    )


def _noise(gradients: Gradients, x: Tensor, jobs: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Return each sample's gradient minus their mean, and the mean."""
    drawn = torch.stack([gradients.of(x, sample, group) for sample, group in jobs]).double()
    mean = drawn.mean(0)
    return drawn - mean, mean.to(x)


def _root_of_mean(values: NDArray[np.float64], rng: np.random.Generator) -> Interval:
    """Return the root of a mean with its bootstrap interval."""
    again = values[rng.integers(len(values), size=(2000, len(values)))].mean(1)
    low, high = np.sqrt(np.quantile(again, [0.025, 0.975]))
    return Interval(float(np.sqrt(values.mean())), float(low), float(high))


def _curvature(
    gradients: Gradients,
    x: Tensor,
    jobs: list[tuple[int, int]],
    mean: Tensor,
    iterations: int,
    rng: np.random.Generator,
    done: Callable[[int], None],
    begun: int,
) -> Interval:
    """Run a power iteration with Hessian-vector products; return the largest absolute eigenvalue."""
    problem, module = gradients.problem, gradients.flat.at(x.clone())
    params = [p for p in module.parameters() if p.requires_grad]
    sizes = [p.numel() for p in params]
    batches = [problem.batch(sample, group) for sample, group in jobs]
    parts = _joined(problem, module, params, batches, gradients.flat.views(mean))
    v = torch.from_numpy(rng.standard_normal(len(x))).to(x)
    v /= v.norm()
    value = residual = 0.0
    for iteration in range(iterations):
        hv = torch.zeros_like(v)
        pieces = [piece.view_as(p) for piece, p in zip(torch.split(v, sizes), params, strict=True)]
        for share, batch in parts:
            first = torch.autograd.grad(problem.loss(module, batch), params, create_graph=True)
            along = torch.stack([(g * piece).sum() for g, piece in zip(first, pieces, strict=True)]).sum()
            if along.requires_grad:  # a linear loss has no second derivative
                second = torch.autograd.grad(along, params, allow_unused=True, materialize_grads=True)
                hv += torch.cat([part.reshape(-1) for part in second]) * share
        done(begun + iteration + 1)
        value, norm = float(torch.dot(v, hv)), float(hv.norm())
        residual = float((hv - value * v).norm())
        if norm == 0.0 or residual < 1e-6 * norm:
            break
        v = hv / norm
    return Interval(abs(value), max(0.0, abs(value) - residual), abs(value) + residual)


_TOGETHER = 8  # batches in one: several times faster than one by one, and the memory of 8


def _joined(
    problem: Problem, module: nn.Module, params: Sequence[Tensor], batches: list[Any], mean: list[Tensor]
) -> list[tuple[float, Any]]:
    """Return batches with their share of the objective: several in one where that is the same objective.

    It is where a loss is a mean over samples, and is not under batch normalisation or dropout, so that is checked: the
    gradient of the joined batches must be the mean of the gradients of the single ones.
    """
    alone = [(1 / len(batches), batch) for batch in batches]
    if not all(isinstance(b, tuple) and all(isinstance(part, Tensor) and part.ndim for part in b) for b in batches):
        return alone
    if len({tuple(part.shape for part in b) for b in batches}) > 1:
        return alone
    groups = [batches[i : i + _TOGETHER] for i in range(0, len(batches), _TOGETHER)]
    together = [(len(g) / len(batches), tuple(torch.cat(parts) for parts in zip(*g, strict=True))) for g in groups]
    missing = [-part for part in mean]
    for share, batch in together:
        first = torch.autograd.grad(problem.loss(module, batch), params, allow_unused=True, materialize_grads=True)
        missing = [left + share * part for left, part in zip(missing, first, strict=True)]
    norms = [torch.cat([part.reshape(-1) for part in parts]).norm().item() for parts in (missing, mean)]
    return together if norms[0] <= 1e-4 * norms[1] else alone


def _gap(gradients: Gradients, jobs: list[tuple[int, int]], floor: float) -> Interval:
    problem, module = gradients.problem, gradients.flat.at(gradients.start.clone())
    with torch.no_grad():
        losses = np.array([float(problem.loss(module, problem.batch(sample, group))) for sample, group in jobs])
    value, error = float(losses.mean()) - floor, 1.96 * float(losses.std(ddof=1)) / len(losses) ** 0.5
    return Interval(value, value - error, value + error)
