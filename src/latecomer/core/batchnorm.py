"""Running statistics of batch normalisation under asynchronous training: per job, merged in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["RunningAverages"]


class RunningAverages:
    """The batch-normalisation statistics of a module, merged by the server in order of arrival.

    A job starts from zeroed statistics and leaves its own in `from_last_job`. `merge` then does what the layers would
    have done: ``average = (1 - momentum)·average + momentum·seen``. So the result does not depend on which worker
    computed a job, nor on how old its statistics were. Layers in evaluation mode are not touched. No other buffer may
    change during a job, because there is no general rule to combine it.

    Args:
        module: The module.

    Attributes:
        from_last_job: Statistics of the last job as one flat tensor; empty if the module has none.
        size: Number of elements of that tensor.
        has_buffers: Whether the module has any buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = [
            layer
            for layer in module.modules()
            if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.running_mean is not None
        ]
        self._averaged = [(layer.get_buffer("running_mean"), layer.get_buffer("running_var")) for layer in self._layers]
        self._counts = [layer.get_buffer("num_batches_tracked") for layer in self._layers]
        tracked = {id(buffer) for pair in self._averaged for buffer in pair} | {id(count) for count in self._counts}
        self._others = [(name, buffer) for name, buffer in module.named_buffers() if id(buffer) not in tracked]
        self.size = sum(2 * mean.numel() + 1 for mean, _ in self._averaged)
        self.from_last_job = torch.zeros(self.size, dtype=torch.float64)
        self.has_buffers = bool(self._layers or self._others)

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Zero the statistics, run a job, keep its statistics in `from_last_job`, and restore the module's own."""
        with self.unchanged():
            for layer, (mean, var), count in zip(self._layers, self._averaged, self._counts, strict=True):
                if layer.training:
                    mean.zero_()
                    var.zero_()
                    count.zero_()
            yield
            start = 0
            for layer, (mean, var), count in zip(self._layers, self._averaged, self._counts, strict=True):
                n = mean.numel()
                self.from_last_job[start : start + n], self.from_last_job[start + n : start + 2 * n] = mean, var
                self.from_last_job[start + 2 * n] = count if layer.training else 0
                start += 2 * n + 1

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore all buffers afterwards; raise if a buffer that is not a running statistic has changed."""
        if not self.has_buffers:
            yield
            return
        saved = [buffer.clone() for pair in self._averaged for buffer in pair] + [c.clone() for c in self._counts]
        others = [buffer.clone() for _, buffer in self._others]
        try:
            yield
            for (name, buffer), before in zip(self._others, others, strict=True):
                if not torch.equal(buffer, before):
                    raise ValueError(
                        f"The buffer {name!r} changed during a job: only batch-normalisation statistics can be "
                        "combined from many workers; make it constant, or a parameter"
                    )
        finally:
            current = [buffer for pair in self._averaged for buffer in pair] + self._counts
            current += [buffer for _, buffer in self._others]
            for buffer, before in zip(current, saved + others, strict=True):
                buffer.copy_(before)

    def store(self, out: Tensor) -> None:
        """Write the statistics into ``out``, to evaluate the module in another process."""
        start = 0
        for (mean, var), count in zip(self._averaged, self._counts, strict=True):
            n = mean.numel()
            out[start : start + n], out[start + n : start + 2 * n] = mean, var
            out[start + 2 * n] = count
            start += 2 * n + 1

    def load(self, averages: Tensor) -> None:
        """Load what `store` wrote."""
        start = 0
        for (mean, var), count in zip(self._averaged, self._counts, strict=True):
            n = mean.numel()
            mean.copy_(averages[start : start + n])
            var.copy_(averages[start + n : start + 2 * n])
            count.fill_(int(averages[start + 2 * n]))
            start += 2 * n + 1

    def merge(self) -> None:
        """Merge `from_last_job` into the module's statistics."""
        start = 0
        for layer, (mean, var), count in zip(self._layers, self._averaged, self._counts, strict=True):
            n = mean.numel()
            calls = int(self.from_last_job[start + 2 * n])
            if calls:
                count += calls
                if layer.momentum is None:  # a cumulative mean, as torch does it
                    share = calls / int(count)
                    keep, add = 1.0 - share, share
                else:
                    keep, add = (1.0 - layer.momentum) ** calls, 1.0
                for average, seen in (
                    (mean, self.from_last_job[start : start + n]),
                    (var, self.from_last_job[start + n : start + 2 * n]),
                ):
                    average.mul_(keep).add_(seen.to(average), alpha=add)
            start += 2 * n + 1
