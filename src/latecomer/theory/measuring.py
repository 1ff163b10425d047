"""The quantity that Theorem 1 bounds, measured on a quadratic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..core.callbacks import OnArrival
from ..problems import Quadratic
from ..server import Server
from ..simulation import simulate
from ..trace import Trace

__all__ = ["mean_squared_gradient"]


def mean_squared_gradient(
    problem: Quadratic,
    method: str,
    trace: Trace,
    *,
    lr: float,
    beta: float,
    on_iterate: Callable[[Tensor], None] | None = None,
) -> float:
    """Run a method and return the mean squared gradient at x_1..x_T.

    Args:
        problem: The quadratic.
        method: A method with a momentum, or ``"async-sgd"``, which needs no beta.
        trace: The schedule.
        lr: Learning rate.
        beta: Momentum parameter.
        on_iterate: Called with every iterate after the first.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.Constant(workers=2).trace(steps=50, seed=0)
        >>> 0 < mean_squared_gradient(lc.problems.quadratic(), "momentum", trace, lr=0.1, beta=0.5)
        True
    """
    total, current = 0.0, problem.squared_gradient(problem.model(0).x.detach())  # type: ignore[operator]

    def watch(server: Server) -> None:
        nonlocal total, current
        total += current
        x = server.optimizer.param_groups[0]["params"][0].detach()
        current = problem.squared_gradient(x)
        if on_iterate is not None:
            on_iterate(x)

    options: dict[str, Any] = {} if method == "async-sgd" else {"beta": beta}
    simulate(problem, method, trace, lr=lr, evaluate_every=len(trace), callbacks=[OnArrival(watch)], **options)
    return total / len(trace)
