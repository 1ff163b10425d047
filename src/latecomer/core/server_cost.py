"""What the server does per contribution, timed: count it, apply it, write the next point."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch

from ..optim import Method, known_method
from ..server import Server
from .gradient import one_thread

__all__ = ["update_seconds"]


def update_seconds(size: int, updates: int = 30, method: Method | None = None, **options: Any) -> float:
    """Return the seconds of the server per contribution, the median of some.

    Args:
        size: Number of parameters.
        updates: Contributions to time.
        method: The method; ordered momentum by default.
        **options: Its hyper-parameters; lr and others without a default need no value.

    Examples:
        >>> update_seconds(1000, updates=3) > 0
        True
    """
    found = method or known_method("ordered-momentum")
    needed = {name for name, argument in found.arguments.items() if argument.default is argument.empty}
    given = {name: 1e-3 if name == "lr" else 1.0 for name in needed} | options
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a method says of its options matters to a run only
        x, gradient = torch.nn.Parameter(torch.zeros(size)), torch.ones(size)
        server = Server(found(iter([x]), **given), workers=2)
        server.receive(server.issue(0), gradient, finite=True)
        ticket = server.issue(0)
        times = []
        for _ in range(updates):
            start = time.perf_counter()
            server.receive(ticket, gradient, finite=True)
            ticket = server.issue(0)
            times.append(time.perf_counter() - start)
    return float(np.median(times))
