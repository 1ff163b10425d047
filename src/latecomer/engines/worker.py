"""Computes one job, in the same way for every engine."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence

from ..core.flat import FlatModule
from ..core.gradient import Contributor, evaluated
from ..optim._kernels import is_finite
from .base import Done, Evaluated, Failed, Job, Slot, WorkerSpec

__all__ = ["Worker", "failure"]


class Worker:
    """Computes jobs; backward writes directly into the slot's gradient.

    Args:
        spec: What every worker gets once.
        slots: The slots, in this worker's memory.
        seat: Seat of this worker.
    """

    def __init__(self, spec: WorkerSpec, slots: Sequence[Slot], seat: int = 0) -> None:
        self.problem, self.slots, self.seat = spec.problem, slots, seat
        self.flat = FlatModule(spec.problem.model(spec.seed))
        if self.flat.x.numel() != spec.size:
            raise ValueError(
                f"The worker's model has {self.flat.x.numel()} parameters, the server's {spec.size}: a problem's "
                "model must always be the same"
            )
        self.contribute = Contributor(spec.problem, self.flat, spec.points, spec.bf16)

    def __call__(self, job: Job) -> Done | Evaluated | Failed:
        """Compute a job; an exception of the user's code becomes a `Failed`."""
        try:
            return self._evaluate(job) if job.evaluate else self._compute(job)
        except (Exception, SystemExit) as error:
            return failure(self.seat, job.number, error)

    def _compute(self, job: Job) -> Done:
        start = time.perf_counter()
        slot = self.slots[job.slot]
        group = self.problem.group_of(job.number, job.sample)
        arguments = (job.number, job.sample, group, job.version, job.here, job.before)
        loss = self.contribute(slot.points, slot.gradient, *arguments)
        averages = self.contribute.averages
        if averages.size:
            slot.statistics.copy_(averages.from_last_job)
        finite = is_finite(slot.gradient)
        return Done(self.seat, job.number, finite, loss, group, time.perf_counter() - start)

    def _evaluate(self, job: Job) -> Evaluated:
        slot = self.slots[job.slot]
        self.contribute.averages.load(slot.statistics)
        return Evaluated(self.seat, job.number, evaluated(self.problem, self.flat, slot.points[0]))


def failure(seat: int, number: int, error: BaseException) -> Failed:
    """Return an exception as a `Failed`, with its message and its place."""
    reason = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    return Failed(seat, number, reason[:2000], where)
