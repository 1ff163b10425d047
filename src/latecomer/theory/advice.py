"""The theorems applied to a user's problem, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..delays import DelayModel
from ..optim import METHODS
from ..optim.momentum import BETA
from ..problems.base import Problem
from ..trace import Trace
from .estimates import Constants, estimate
from .theorem1 import catch_up, nonconvex, prior_nonconvex, repaired_nonconvex
from .theorem2 import convex
from .workers import largest_useful_workers

__all__ = ["Advice", "advise"]


class Advice(str):
    """The result of `advise`: a text, with the numbers in it as data.

    Attributes:
        numbers: Constants with their intervals, parameters and bounds by rule, largest useful numbers of workers, the
            influence each group keeps, and the sentences of advice.

    Examples:
        >>> Advice("beta 0.1 is fine", {"beta": 0.1}).numbers["beta"]
        0.1
    """

    numbers: Mapping[str, Any]

    def __new__(cls, text: str, numbers: Mapping[str, Any]) -> Advice:
        """Make it of both."""
        made = super().__new__(cls, text)
        made.numbers = numbers
        return made


def advise(
    problem: Problem,
    delays: DelayModel,
    steps: int,
    *,
    beta: float | None = None,
    constants: Constants | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Advice:
    """Return the theorem's parameters, the influence of each delay, the bounds, and advice.

    Args:
        problem: The problem.
        delays: The delay model; its number of workers is M.
        steps: T.
        beta: The beta you want to use; the theorem's by default.
        constants: Estimates of the constants, if you have them.
        seed: Draws samples for the estimates, and the schedule.
        progress: Called with the passes over the samples so far and their total, while constants are estimated.

    Examples:
        >>> import latecomer as lc
        >>> text = advise(lc.problems.quadratic(), lc.delays.DataDependent(7, 0.1), steps=3750, beta=0.1)
        >>> "so slow samples have 0.28 of the influence of fast ones" in text
        True
    """
    if beta is not None:
        BETA.check("beta", beta)
    trace = delays.trace(steps, seed)
    found = estimate(problem, seed=seed, progress=progress) if constants is None else constants
    smooth, gap = max(found.L.value, 1e-30), max(found.delta.value, 1e-30)
    known: dict[str, Any] = {"L": smooth, "delta": gap, "sigma": found.sigma.value, "steps": steps}
    with_workers: dict[str, Any] = {**known, "workers": trace.header.workers}
    published = nonconvex(**with_workers, sup_noise=found.sup_noise)
    tuned = repaired_nonconvex(**with_workers, sup_noise=found.sup_noise)
    start = 2 * smooth * gap
    largest = found.sup_noise + start**0.5
    ours = catch_up(**with_workers, sup_gradient=largest)
    diameter = getattr(problem, "diameter", None)
    useful = largest_useful_workers(**known, G=largest, sup_noise=found.sup_noise, D=diameter)
    beta = published.beta if beta is None else beta
    before = prior_nonconvex(**with_workers, G=largest)
    sentences = _advice(trace, beta, published.bound, start, tuned.beta)
    lines = [
        f"{problem.name}, {trace.header.workers} workers, {steps:,} updates, {trace.header.model}",
        "",
        f"constants, largest over {found.points} points along a short descent, with 95 % intervals",
        f"  L        {found.L}",
        f"  sigma    {found.sigma}, largest noise seen {found.sup_noise:.4g}",
        f"  sigma_L  {found.sigma_L}",
        f"  delta    {found.delta}",
        "",
        f"{'parameters':<24}{'beta':>10}{'lr':>11}   bound on the mean squared gradient",
        f"  {'Theorem 1':<22}{published.beta:>10.4g}{published.lr:>11.4g}   "
        f"{published.bound:.4g} as published, {published.repaired:.4g} as proved",
        f"  {'Theorem 1, repaired':<22}{tuned.beta:>10.4g}{tuned.lr:>11.4g}   {tuned.repaired:.4g} as proved",
        f"  {'catch-up':<22}{ours.beta:>10.4g}{ours.lr:>11.4g}   {ours.bound:.4g} as proved",
        f"  {'earlier rate (Eq. 1)':<43}   {before:.4g} with constants 1",
        f"  {'at the start':<43}   {start:.4g} at most",
        "largest useful number of workers, by bound: " + ", ".join(f"{name} {m:,.0f}" for name, m in useful.items()),
        "",
        *_influence(trace, beta),
        "",
        "advice",
        *(f"  {sentence}" for sentence in sentences),
        *_convex(problem, found, with_workers),
    ]
    numbers = {
        "problem": problem.name,
        "workers": trace.header.workers,
        "steps": steps,
        "beta": beta,
        "constants": {
            **{name: asdict(getattr(found, name)) for name in ("L", "sigma", "sigma_L", "delta")},
            "sup_noise": found.sup_noise,
        },
        "rows": [
            {"rule": "Theorem 1", "beta": published.beta, "lr": published.lr, "bound": published.repaired},
            {"rule": "Theorem 1, repaired", "beta": tuned.beta, "lr": tuned.lr, "bound": tuned.repaired},
            {"rule": "catch-up", "beta": ours.beta, "lr": ours.lr, "bound": ours.bound},
        ],
        "published_bound": published.bound,
        "prior_bound": before,
        "start": start,
        "largest_useful_workers": dict(useful),
        "influence": _influence_by_group(trace, beta),
        "advice": " ".join(sentences),
    }
    return Advice("\n".join(lines), numbers)


def _kept(delay: NDArray[np.int64], beta: float) -> NDArray[np.float64]:
    table = [METHODS["ordered-momentum"].influence(delay=d, beta=beta) for d in range(int(delay.max()) + 1)]
    return np.array(table)[delay]


def _influence(trace: Trace, beta: float) -> list[str]:
    """Describe the influence that each delay and each group keeps."""
    shown = sorted({int(np.quantile(trace.delay, q)) for q in (0.0, 0.5, 0.9, 0.99, 1.0)})
    lines = [
        f"influence of a gradient under ordered-momentum at beta = {beta:.4g}",
        "  delay " + "".join(f"{d:>9}" for d in shown),
        "  weight" + "".join(f"{(1 - beta) ** d:>9.3f}" for d in shown),
    ]
    means = _influence_by_group(trace, beta)
    lines += [f"  {name} on average {mean:.3f}" for name, mean in means.items()]
    if len(means) > 1:
        first, *_, last = means.values()
        lines.append(f"  so slow samples have {last / first:.2f} of the influence of fast ones")
    return lines


def _influence_by_group(trace: Trace, beta: float) -> dict[str, float]:
    """Return the mean share of its influence that a gradient keeps, for every group that arrived."""
    kept = _kept(trace.delay, beta)
    names = trace.header.groups
    return {n: float(kept[trace.group == g].mean()) for g, n in enumerate(names) if (trace.group == g).any()}


def _advice(trace: Trace, beta: float, bound: float, start: float, proved: float) -> list[str]:
    sentences = []
    if bound >= start:
        sentences.append("The published bound is above the value at the start: for so few updates it has no content.")
    slow, fast = trace.delay[trace.group > 0], trace.delay[trace.group == 0]
    if len(slow) and len(fast) and slow.mean() > 1.5 * max(fast.mean(), 0.1):
        sentences.append(
            "Delays depend on the data, so Theorem 1 as published does not hold. The proved bound holds if"
        )
        sentences.append("samples are drawn independently when a job starts; in the paper's delay model they are not.")
        share = float(_kept(slow, beta).mean() / _kept(fast, beta).mean())
        if share < 0.8:
            lower = 0.1 / float(slow.mean() - fast.mean())
            sentences.append(f"At this beta ordering trains {share:.0%} as much on slow samples as on fast ones.")
            sentences.append(f"catch-up trains on both equally; or use a beta below about {lower:.2g}.")
    if beta > 3 * proved:
        sentences.append(f"beta = {beta:.3g} is {beta / proved:.0f} times the best beta of the proved bound.")
    return [
        *sentences,
        "The constants are local estimates, and so are the bounds: tune the learning rate.",
    ]


def _convex(problem: Problem, found: Constants, with_workers: dict[str, Any]) -> list[str]:
    """Return the bounds of Theorem 2, for a problem with a diameter."""
    diameter = getattr(problem, "diameter", None)
    if diameter is None:
        return []
    known = {key: value for key, value in with_workers.items() if key != "delta"}
    promised = convex(**known, D=diameter, sigma_L=found.sigma_L.value, G=getattr(problem, "gradient_at_minimum", 0.0))
    low, high = promised.lr_min, promised.lr_max
    return [
        "",
        f"Theorem 2 (convex, diameter {diameter:g}): lr from {low:.3g} to {high:.3g}, a factor of {high / low:.0f};",
        f"  excess loss at most {promised.bound(high):.3g} as published, {promised.repaired(high):.3g} as proved",
    ]
