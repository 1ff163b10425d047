"""Computes one job, in the same way for every engine."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence

import torch

from .._util.places import place_of
from ..core.devices import device_kind, resolved, use_device
from ..core.flat import FlatModule
from ..core.gradient import Contributor, evaluated
from ..optim._kernels import is_finite
from .base import Done, Evaluated, Failed, Job, Ready, Slot, WorkerSpec
from .prefetch import Prefetcher

__all__ = ["Worker", "failure"]


class Worker:
    """Computes jobs; backward writes directly into the slot's gradient.

    Args:
        spec: What every worker gets once.
        slots: The slots, in this worker's memory.
        seat: Seat of this worker.
        device: Where it computes; by default what the spec says for this seat of this machine.
    """

    def __init__(
        self, spec: WorkerSpec, slots: Sequence[Slot], seat: int = 0, device: torch.device | None = None
    ) -> None:
        self.problem, self.slots, self.seat = spec.problem, slots, seat
        # Before the device is used: what a process has done with an accelerator does not survive a fork.
        self.prefetcher = Prefetcher(spec.problem, spec.seed, spec.prefetch) if spec.prefetch else None
        device = resolved(spec.device, seat) if device is None else device
        use_device(device)
        self.flat = FlatModule(spec.problem.model(spec.seed), device)
        if self.flat.x.numel() != spec.size:
            raise ValueError(
                f"The worker's model has {self.flat.x.numel()} parameters, the server's {spec.size}: a problem's "
                "model must always be the same"
            )
        self.contribute = Contributor(spec.problem, self.flat, spec.points, spec.bf16)

    @property
    def ready(self) -> Ready:
        """The event by which it reports that it can take a job."""
        return Ready(self.seat, os.getpid(), device_kind(self.flat.device))

    def __call__(self, job: Job) -> Done | Evaluated | Failed:
        """Compute a job; an exception of the user's code becomes a `Failed`."""
        try:
            return self._evaluate(job) if job.evaluate else self._compute(job)
        except (Exception, SystemExit) as error:
            return failure(self.seat, job.number, error)

    def _compute(self, job: Job) -> Done:
        start = time.perf_counter()
        slot = self.slots[job.slot]
        drawn = None
        if self.prefetcher is not None:
            drawn = self.prefetcher.take(job.number, job.sample)
            self.prefetcher.guess(job.upcoming, job.workers)
        group, batches = drawn or (self.problem.group_of(job.number, job.sample), None)
        arguments = (job.number, job.sample, group, job.version, job.here, job.before, batches)
        loss = self.contribute(slot.points, slot.gradient, *arguments)
        averages = self.contribute.averages
        if averages.size:
            slot.statistics.copy_(averages.from_last_job)
        finite = is_finite(self.contribute.result)
        return Done(self.seat, job.number, finite, loss, group, time.perf_counter() - start)

    def close(self) -> None:
        """End the process that draws batches ahead, if there is one."""
        if self.prefetcher is not None:
            self.prefetcher.close()

    def _evaluate(self, job: Job) -> Evaluated:
        slot = self.slots[job.slot]
        self.contribute.averages.load(slot.statistics)
        point = self.contribute.here(slot.points[:1])[0]
        return Evaluated(self.seat, job.number, evaluated(self.problem, self.flat, point))


def failure(seat: int, number: int, error: BaseException) -> Failed:
    """Return an exception as a `Failed`, with its message and its place."""
    reason = traceback.format_exception_only(error)[-1].strip()
    return Failed(seat, number, reason[:2000], place_of(error))
