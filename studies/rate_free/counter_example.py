"""The counter-example to Theorem 1, on which most of the noise in flight has one sign."""

from __future__ import annotations

from latecomer.theory import CounterExample
from latecomer.theory.measuring import mean_squared_gradient

from .plan import OURS

__all__ = ["measured_ratios"]

WORKERS = (11, 21, 51, 101)
SEED = 2103


def measured_ratios(workers: tuple[int, ...] = WORKERS) -> dict[str, dict[str, float]]:
    """Return the mean squared gradient over the theorem's bound, by number of workers and method.

    The tuned methods have the theorem's learning rate and beta.

    Args:
        workers: Numbers of workers.

    Examples:
        >>> measured_ratios((11,))["11"][OURS] < 1.0
        True
    """
    found: dict[str, dict[str, float]] = {}
    for each in workers:
        example = CounterExample(each)
        trace, bound, tuned = example.trace(seed=SEED), example.promised.bound, ("ordered-momentum", "catch-up")
        own = mean_squared_gradient(example.problem, OURS, trace, lr=1.0, beta=0.2)  # its defaults
        found[str(each)] = {OURS: own / bound}
        found[str(each)] |= {method: example.measure(method, seed=SEED) / bound for method in tuned}
    return found
