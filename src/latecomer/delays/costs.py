"""Costs on top of a delay model with a clock: speeds that change with time, the network, the server."""

from __future__ import annotations

from collections.abc import Callable

from .._util.checks import AT_LEAST_ZERO, POSITIVE
from .base import own_workers
from .clock import ClockModel
from .schedule import Jobs

__all__ = ["TimeVarying", "WithCosts"]


class _Around(ClockModel):
    """A model with the jobs of another one, whose durations change."""

    def __init__(self, model: ClockModel) -> None:
        if not isinstance(model, ClockModel):
            raise TypeError(
                f"Invalid model: {model!r} (expected a delay model with a clock: WorkerSpeeds, SampleCost or another "
                "ClockModel)"
            )
        self.model, self.workers, self.shares, self._ties = model, own_workers(model), model.shares, model._ties
        self.server_seconds = model.server_seconds

    @property
    def _group_names(self) -> tuple[str, ...]:
        """Names of the groups of the model inside."""
        return self.model._group_names

    def jobs(self, seed: int) -> Jobs:
        """Return the jobs of the model inside."""
        return self.model.jobs(seed)

    def seconds(self, duration: float, worker: int, start: float) -> float:
        """Return how long a job takes that starts at this time."""
        return self.model.seconds(duration, worker, start)


class TimeVarying(_Around):
    """Workers whose speed changes with time: the duration of a job is multiplied by a factor of when it starts.

    Args:
        model: The durations at factor 1.
        factor: A function of worker and time that returns the factor, a positive number.

    Examples:
        >>> import latecomer as lc
        >>> def at_night(worker, time):
        ...     return 3.0 if worker == 0 and time >= 2.0 else 1.0
        >>> TimeVarying(lc.delays.WorkerSpeeds([1.0, 2.5]), at_night).trace(steps=5).end.tolist()
        [1.0, 2.0, 2.5, 5.0, 5.0]
    """

    def __init__(self, model: ClockModel, factor: Callable[[int, float], float]) -> None:
        super().__init__(model)
        if not callable(factor) or isinstance(factor, type):
            raise TypeError(f"Invalid factor: {factor!r} (expected a function of worker and time)")
        self.factor = factor

    def __repr__(self) -> str:
        return f"TimeVarying({self.model!r}, {getattr(self.factor, '__name__', 'function')})"

    def seconds(self, duration: float, worker: int, start: float) -> float:
        """Return the duration times the factor at the start."""
        factor = POSITIVE.check("factor", self.factor(worker, start))
        return super().seconds(duration, worker, start) * factor


class WithCosts(_Around):
    """A delay model with the costs of the network and of the server.

    Args:
        model: How long workers compute.
        network: Seconds per job for sending parameters and contribution, both ways together: latency, and bytes over
            bandwidth.
        server: Seconds per arrival that the server is busy. It receives one arrival after the other, so with many
            workers they queue up.

    Examples:
        >>> import latecomer as lc
        >>> model = lc.delays.WorkerSpeeds([1.0, 1.0])
        >>> WithCosts(model, network=0.5, server=0.25).trace(steps=4).end.tolist()
        [1.75, 2.0, 3.5, 3.75]
    """

    def __init__(self, model: ClockModel, *, network: float = 0.0, server: float = 0.0) -> None:
        super().__init__(model)
        self.network = AT_LEAST_ZERO.check("network", network)
        self.server_seconds += AT_LEAST_ZERO.check("server", server)

    def __repr__(self) -> str:
        return f"WithCosts({self.model!r}, network={self.network:g}, server={self.server_seconds:g})"

    def seconds(self, duration: float, worker: int, start: float) -> float:
        """Return the duration and the time on the network."""
        return super().seconds(duration, worker, start) + self.network
