"""Running averages of batch normalisation: what a job adds to them, and how that is counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["RunningAverages"]


class RunningAverages:
    """The running averages of a module, kept by whoever counts arrivals, fed by whoever computes them.

    A job starts with empty averages and leaves what it saw in `from_last_job`; `merge` then does in order of arrival
    what the layers would have done: ``average = (1 - momentum)·average + momentum·seen``. So it does not matter who
    computed a job, nor how old the averages were when it started. Layers in evaluation mode are left as they are. Any
    other buffer must not change during a job: there is no telling how to average it.

    Args:
        module: The module.

    Attributes:
        from_last_job: What the last job saw, in one flat tensor; empty where there is nothing to average.
        size: How many numbers that is.
        has_buffers: Whether the module has any buffers, averages or others.

    Examples:
        >>> layer = nn.BatchNorm1d(1)
        >>> statistics = RunningAverages(layer)
        >>> with statistics.fresh():
        ...     _ = layer(torch.tensor([[9.0], [11.0]]))
        >>> layer.running_mean, statistics.from_last_job.round(decimals=3).tolist()    # mean, variance, calls
        (tensor([0.]), [1.0, 0.2, 1.0])
        >>> statistics.merge()
        >>> layer.running_mean, layer.num_batches_tracked
        (tensor([1.]), tensor(1))
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = [
            layer
            for layer in module.modules()
            if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.running_mean is not None
        ]
        self._averaged = [(_of(layer, "running_mean"), _of(layer, "running_var")) for layer in self._layers]
        self._counts = [_of(layer, "num_batches_tracked") for layer in self._layers]
        mine = {id(buffer) for pair in self._averaged for buffer in pair} | {id(count) for count in self._counts}
        self._others = [(name, buffer) for name, buffer in module.named_buffers() if id(buffer) not in mine]
        self.size = sum(2 * mean.numel() + 1 for mean, _ in self._averaged)
        self.from_last_job = torch.zeros(self.size, dtype=torch.float64)
        self.has_buffers = bool(self._layers or self._others)

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Run a job on empty averages, note what it saw, and put the averages back."""
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
        """Run something and put all buffers back; refuse what has changed another one."""
        if not self.has_buffers:
            yield
            return
        kept = [buffer.clone() for pair in self._averaged for buffer in pair] + [c.clone() for c in self._counts]
        others = [buffer.clone() for _, buffer in self._others]
        try:
            yield
            for (name, buffer), before in zip(self._others, others, strict=True):
                if not torch.equal(buffer, before):
                    raise ValueError(
                        f"The buffer {name!r} changed during a job: only running averages of batch normalisation can "
                        "be put together from many workers; make it constant, or a parameter"
                    )
        finally:
            now = [buffer for pair in self._averaged for buffer in pair] + self._counts
            now += [buffer for _, buffer in self._others]
            for buffer, before in zip(now, kept + others, strict=True):
                buffer.copy_(before)

    def store(self, out: Tensor) -> None:
        """Write the averages themselves, for somebody who evaluates the module elsewhere."""
        start = 0
        for (mean, var), count in zip(self._averaged, self._counts, strict=True):
            n = mean.numel()
            out[start : start + n], out[start + n : start + 2 * n] = mean, var
            out[start + 2 * n] = count
            start += 2 * n + 1

    def load(self, averages: Tensor) -> None:
        """Take over what `store` wrote."""
        start = 0
        for (mean, var), count in zip(self._averaged, self._counts, strict=True):
            n = mean.numel()
            mean.copy_(averages[start : start + n])
            var.copy_(averages[start + n : start + 2 * n])
            count.fill_(int(averages[start + 2 * n]))
            start += 2 * n + 1

    def merge(self) -> None:
        """Count what `from_last_job` holds: one more arrival has been applied."""
        start = 0
        for layer, (mean, var), count in zip(self._layers, self._averaged, self._counts, strict=True):
            n = mean.numel()
            calls = int(self.from_last_job[start + 2 * n])
            if calls:
                count += calls
                if layer.momentum is None:  # the mean over all calls so far
                    share = calls / int(count)
                    keep, add = 1.0 - share, share
                else:
                    keep, add = (1.0 - layer.momentum) ** calls, 1.0
                for average, seen in (
                    (mean, self.from_last_job[start : start + n]),
                    (var, self.from_last_job[start + n : start + 2 * n]),
                ):
                    average.mul_(keep).add_(seen.to(average.dtype), alpha=add)
            start += 2 * n + 1


def _of(layer: nn.Module, name: str) -> Tensor:
    return layer.get_buffer(name)
