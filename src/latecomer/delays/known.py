"""The delay models by name, and one of them from plain values: how a spec and the command line have it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .._util.checks import AT_LEAST_ZERO
from .._util.imports import named_in_file
from .._util.places import user_code
from ..trace import Trace
from .arrivals import Constant, DataDependent, Uniform
from .base import DelayModel
from .clock import ClockModel, SampleCost, WorkerSpeeds
from .costs import TimeVarying, WithCosts
from .measured import MeasuredDelays, MeasuredDurations

__all__ = ["COSTS", "DELAYS", "WITH_CLOCK", "model_of"]


def _measured_durations(file: str | os.PathLike[str]) -> MeasuredDurations:
    """Read measured durations: a recorded trace, or a CSV file."""
    recorded = isinstance(file, (str, os.PathLike)) and Path(file).suffix == ".parquet"
    return MeasuredDurations.of(Trace.load(file)) if recorded else MeasuredDurations.read(file)


DELAYS: Mapping[str, Callable[..., DelayModel]] = MappingProxyType(
    {
        "data-dependent": DataDependent,
        "uniform": Uniform,
        "constant": Constant,
        "worker-speeds": WorkerSpeeds,
        "sample-cost": SampleCost,
        "measured-delays": MeasuredDelays,
        "measured-durations": _measured_durations,
    }
)
"""Delay models by their names in a spec."""
WITH_CLOCK = ("worker-speeds", "sample-cost", "measured-durations")
"""Those whose jobs have durations, on which costs can come."""
COSTS = ("factor", "network", "server")
"""Options that every model with a clock has besides its own: see `model_of`."""


def model_of(name: str, options: Mapping[str, Any]) -> DelayModel:
    """Return the delay model of a name, with the costs around it that its options have.

    Args:
        name: A name in `DELAYS`.
        options: Its arguments, and for a model with a clock also ``factor``, a function of worker and time as
            ``path/to/script.py:function`` by which durations are multiplied (`TimeVarying`), and ``network`` and
            ``server``, in seconds (`WithCosts`).

    Examples:
        >>> model_of("worker-speeds", {"durations": [1.0, 2.0], "network": 0.5})
        WithCosts(WorkerSpeeds([1.0, 2.0], noise=fixed, shares=[1.0]), network=0.5, server=0)
    """
    model = DELAYS[name](**{option: value for option, value in options.items() if option not in COSTS})
    costs = {option: options[option] for option in COSTS if option in options}
    if not isinstance(model, ClockModel):
        if costs:
            raise ValueError(
                f"{name} delays have no clock, which {next(iter(costs))!r} needs: use {', '.join(WITH_CLOCK[:-1])} or "
                f"{WITH_CLOCK[-1]}"
            )
        return model
    if "factor" in costs:
        model = TimeVarying(model, _factor(costs.pop("factor")))
    costs = {option: AT_LEAST_ZERO.check(option, value) for option, value in costs.items()}
    return WithCosts(model, **costs) if any(costs.values()) else model


def _factor(words: str) -> Callable[[int, float], float]:
    """Return the function of the user's; what it raises becomes a sentence."""
    found = named_in_file(words, "factor")
    if not callable(found):
        raise TypeError(f"{words} is of type {type(found).__name__} (expected a function of worker and time)")

    @functools.wraps(found)
    def factor(worker: int, time: float) -> float:
        with user_code(words):
            return found(worker, time)  # type: ignore[no-any-return]  # TimeVarying checks it

    return factor
