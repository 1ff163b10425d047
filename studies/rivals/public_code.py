"""The same experiment with the public code of Ringmaster's authors, where a copy of it is at hand.

It needs four files of the repository vectozavr/ringmaster-lmo in one folder: ``function.py``, ``signature.py``,
``asynchronous/algorithm.py`` and ``asynchronous/asynchronous_transport.py``, and what they import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .ringmaster import DIMENSIONS, METHODS, NOISE, POINTS, SECONDS, WORKERS, Tridiagonal

__all__ = ["FOUND", "curves_of_public_code"]

FOUND = {
    "ringmaster-stop": ("RingmasterASGD", {"lr": "gamma", "R": "max_delay"}, {}),
    "rennala-stop": ("RennalaSGD", {"lr": "gamma", "S": "batch_size"}, {}),
    "delay-adaptive": ("AsynchronousSGD", {"lr": "gamma"}, {"delay_adaptive": True}),
}
"""Class of each method there, what its arguments are called, and arguments that are fixed."""
_NOISE_SEED, _TIMES_SEED = 26, 5
"""The seeds of the public script; further runs add 1, 2, ... to both."""


def curves_of_public_code(
    folder: Path, seed: int, seconds: float = SECONDS, workers: int = WORKERS
) -> Iterator[dict[str, Any]]:
    """Run every method for so many seconds of its clock, and yield the rows of its curve."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    names = ("function", "signature", "asynchronous.algorithm", "asynchronous.asynchronous_transport")
    function, signature, algorithm, transport = (importlib.import_module(name) for name in names)
    for method, (kind, arguments, fixed) in FOUND.items():
        diagonals = function.create_worst_case(DIMENSIONS, 1)
        noisy = function.StochasticTridiagonalQuadraticFunction(*diagonals, _NOISE_SEED + seed, NOISE, "add")
        drawn = np.random.default_rng(_TIMES_SEED + seed)
        nodes = [signature.Signature(algorithm.StochasticGradientNodeAlgorithm, noisy) for _ in range(workers)]
        network = transport.RandomDelayedAsynchronousTransport(
            nodes,
            1.0 + np.sqrt(np.arange(workers)),
            lambda i, drawn=drawn: abs(drawn.normal(scale=np.sqrt(i + 1))),
        )
        start = np.zeros(DIMENSIONS)
        start[0] = np.sqrt(DIMENSIONS)
        options = {arguments[name]: value for name, value in METHODS[method].items()}
        rule = getattr(algorithm, kind)(network, start, **options, **fixed)
        update, shown = 0, 0.0
        while True:
            if rule.get_time() >= shown:
                shown += seconds / POINTS
                point, time = rule.get_point(), float(rule.get_time())
                value = float(noisy._tridiagonal_quadratic.value(point)) - Tridiagonal().least
                norm = float(np.linalg.norm(noisy.gradient(point)) ** 2)
                yield {
                    "method": method, "seed": seed, "time": time, "update": update, "loss": value,
                    "squared_gradient": norm,
                }  # fmt: skip
            if rule.get_time() >= seconds:
                break
            rule.step()
            update += 1
