"""A user's model, loss and data as a problem to train on; the ticket fixes what a worker computes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence, Sized
from typing import Any

from torch import Tensor, nn
from torch.utils.data import IterableDataset, default_collate

from .._util.checks import POSITIVE, several, whole_number
from .._util.naming import type_and_length
from .._util.seeds import picks, stream
from ..core.flat import uncompiled
from ..core.rng import seeded, seeded_order
from ..problems.base import Problem

__all__ = ["NOT_GIVEN", "Task"]

NOT_GIVEN: Any = type("NotGiven", (), {"__repr__": lambda self: "not given"})()
"""Default of the arguments of `fit` that belong to the task."""


class Task(Problem):
    """Model, loss and data. The ticket seeds everything random in a job, so any run can be replayed.

    Args:
        model: The module to train, or a function that returns it. Layers keep their training or evaluation mode, so
            frozen ones stay frozen. A compiled model is trained uncompiled.
        loss_fn: A torch loss (``nn.CrossEntropyLoss()``, ``nn.functional.mse_loss``), called with the model's output
            and the last part of the batch; or your own function ``loss_fn(model, batch)``.
        dataset: Map-style: ``dataset[i]`` and ``len(dataset)``.
        batch_size: Samples per batch.
        collate_fn: Combines a list of samples into a batch; torch's default.
        sampler: None for epochs, each a new permutation; ``"independent"`` for sampling with replacement, as in theory;
            or a torch `Sampler` or `BatchSampler`, iterated once per epoch, its generators seeded by the epoch.
        batch_fn: Instead of a dataset: ``batch_fn(sample)`` returns the batch for a ticket's sample seed.
        group_fn: ``group_fn(batch)`` returns the group of a batch, for the trace: 0, 1, ...
        groups: Names of the groups.
        evaluate: ``evaluate(model)`` returns metrics by name; it is called in evaluation mode, without gradients.
        clip_norm: Scale every gradient down to this norm, on the worker.
        clip_value: Clamp every entry of a gradient to ``[-clip_value, clip_value]``.
        scheduler: Function of the optimizer that returns a learning-rate scheduler.
        seed: Draws the epochs; set by `fit` and `replay`.
        name: Name shown to people.

    Examples:
        >>> import torch
        >>> data = torch.utils.data.TensorDataset(torch.arange(6.0).view(6, 1), torch.zeros(6, 1))
        >>> task = Task(nn.Linear(1, 1), nn.functional.mse_loss, data, batch_size=3)
        >>> sorted(task.batch_of(0, 7, 0)[0].flatten().tolist() + task.batch_of(1, 8, 0)[0].flatten().tolist())
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss_fn: Callable[..., Tensor],
        dataset: Any = None,
        *,
        batch_size: int = 32,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sampler: Any = None,
        batch_fn: Callable[[int], Any] | None = None,
        group_fn: Callable[[Any], int] | None = None,
        groups: Sequence[str] = ("all",),
        evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        seed: int = 0,
        name: str = "task",
    ) -> None:
        if not callable(model):
            raise TypeError(
                f"Invalid model: {type(model).__name__} (expected a torch.nn.Module, or a function that makes one)"
            )
        if not callable(loss_fn):
            raise TypeError(f"Invalid loss_fn: {loss_fn!r} (expected loss_fn(model, batch), or a torch loss)")
        if (dataset is None) == (batch_fn is None):
            raise ValueError("A task needs either a dataset or a batch_fn")
        functions = {"collate_fn": collate_fn, "batch_fn": batch_fn, "group_fn": group_fn, "evaluate": evaluate}
        for what, function in functions.items():
            if function is not None and not callable(function):
                raise TypeError(f"Invalid {what}: {function!r} (expected a function)")
        self.name, self.seed = name, whole_number("seed", seed)
        self.group_names = tuple(several("groups", groups, "names"))
        self.groups = len(self.group_names)
        if not self.groups or (group_fn is None and self.groups > 1):
            raise ValueError(f"Invalid groups value: {list(groups)} (expected one name per group of group_fn)")
        if not all(isinstance(group, str) for group in self.group_names):
            raise TypeError(f"Invalid groups value: {list(groups)} (expected names)")
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.clip_norm = None if clip_norm is None else POSITIVE.check("clip_norm", clip_norm)
        self.clip_value = None if clip_value is None else POSITIVE.check("clip_value", clip_value)
        self.scheduler = scheduler
        self._model, self._loss, self._dataset = uncompiled(model), loss_fn, dataset
        if self._model is not model:
            warnings.warn(
                "A compiled model cannot be sent to another process: the model is trained as it was before "
                "torch.compile, and holds the result afterwards",
                stacklevel=2,
            )
        self._collate, self._sampler = collate_fn or default_collate, sampler
        self._batch_fn, self._group_fn, self._evaluate = batch_fn, group_fn, evaluate
        self._supervised = isinstance(loss_fn, nn.Module) or getattr(loss_fn, "__module__", "") == "torch.nn.functional"
        self._epochs: dict[int, Any] = {}
        self._drawn: tuple[int, Any] | None = None
        if dataset is not None:
            self._check_data()

    def _described(self) -> dict[str, str]:
        """Identify the task by names, types and lengths; neither the contents of the data nor the seed count."""
        parts = {"model": self._model, "loss_fn": self._loss, "dataset": self._dataset, "collate_fn": self._collate}
        parts |= {"sampler": self._sampler, "batch_fn": self._batch_fn, "group_fn": self._group_fn}
        simple = {name: value for name, value in super()._described().items() if name != "seed"}
        return simple | {name: type_and_length(part) for name, part in parts.items() if part is not None}

    def _check_data(self) -> None:
        data, sampler = self._dataset, self._sampler
        usable = (
            hasattr(data, "__getitem__") and isinstance(data, Sized) and not isinstance(data, IterableDataset | type)
        )
        if not usable or (isinstance(data, Tensor) and not data.dim()):
            raise TypeError(
                f"Invalid dataset: {type(data).__name__} has no dataset[i] or no len(dataset), so a ticket cannot fix "
                "its samples; pass batch_fn=, a function of the ticket's seed, instead"
            )
        if not len(data):
            raise ValueError("The dataset is empty")
        if sampler is None or (isinstance(sampler, str) and sampler == "independent"):
            if sampler is None and len(data) < self.batch_size:
                raise ValueError(f"Invalid batch_size value: {self.batch_size} (the dataset has {len(data)} samples)")
        elif isinstance(sampler, str | type | Tensor) or not hasattr(sampler, "__iter__"):
            raise TypeError(f"Invalid sampler: {sampler!r} (expected None, 'independent' or a torch Sampler)")

    def model(self, seed: int) -> nn.Module:
        """Return a copy of the user's model."""
        if isinstance(self._model, nn.Module):
            made = copy.deepcopy(self._model)
        else:  # seeded: the same model in every process, frozen layers included
            with seeded(seed):
                made = self._model()
        if not isinstance(made, nn.Module):
            raise TypeError(f"Invalid model: the function returned {type(made).__name__}, not a torch.nn.Module")
        return made

    def batch(self, sample: int, group: int) -> Any:
        """Return a batch by its sample seed only; a dataset in epochs needs `batch_of`."""
        return self.batch_of(0, sample, group)

    def batch_of(self, number: int, sample: int, group: int) -> Any:
        """Return the batch of a ticket."""
        drawn, self._drawn = self._drawn, None
        return drawn[1] if drawn is not None and drawn[0] == number else self._draw(number, sample)

    def _draw(self, number: int, sample: int) -> Any:
        with seeded(sample):
            if self._batch_fn is not None:
                return self._batch_fn(sample)
            return self._collate([self._dataset[i] for i in self._indices(number, sample)])

    def _indices(self, number: int, sample: int) -> list[int]:
        n, size = len(self._dataset), self.batch_size
        if isinstance(self._sampler, str):
            return [int(i) for i in picks(sample, size, n)]
        if self._sampler is None:
            epoch, place = divmod(number, n // size)
            order = self._epoch(epoch, lambda: stream(self.seed, "epoch", epoch).permutation(n))
            return [int(i) for i in order[place * size : (place + 1) * size]]
        first = self._epoch(0, lambda: self._batches(0))
        epoch, place = divmod(number, len(first))
        batches: list[list[int]] = first if not epoch else self._epoch(epoch, lambda: self._batches(epoch))
        return batches[place % len(batches)]

    def describe_samples(self, number: int, sample: int) -> str:
        """Return the indices of a ticket's samples in the dataset, for messages."""
        if self._batch_fn is not None:
            return super().describe_samples(number, sample)
        indices = self._indices(number, sample)
        shown = ", ".join(map(str, indices[:16])) + (", ..." if len(indices) > 16 else "")
        return f"dataset[i] for i = {shown}"

    def _batches(self, epoch: int) -> list[list[int]]:
        """Return the batches of one epoch of the sampler, as a data loader would."""
        seed = int(stream(self.seed, "epoch", epoch).integers(2**63))
        order = seeded_order(self._sampler, epoch, seed)
        if not epoch and seeded_order(self._sampler, epoch, seed) != order:
            raise ValueError(
                f"The sampler {type_and_length(self._sampler)} gives another order every time although it is seeded, "
                "so workers cannot agree on a ticket's samples; let it use torch's generator, or pass batch_fn="
            )
        if order and isinstance(order[0], (list, tuple)):
            return [list(batch) for batch in order]
        starts = range(0, len(order) - self.batch_size + 1, self.batch_size)
        batches = [[int(i) for i in order[start : start + self.batch_size]] for start in starts]
        if not batches:
            raise ValueError(
                f"The sampler gives {len(order)} samples per epoch, fewer than one batch of {self.batch_size}"
            )
        return batches

    def _epoch(self, epoch: int, make: Callable[[], Any]) -> Any:
        if epoch not in self._epochs:
            if len(self._epochs) > 3:  # a late ticket may belong to an earlier epoch
                del self._epochs[min(self._epochs.keys() - {0})]  # epoch 0 gives the number of batches
            self._epochs[epoch] = make()
        return self._epochs[epoch]

    def group_of(self, number: int, sample: int) -> int:
        """Draw the batch and return its group; the batch is kept for the job that follows."""
        if self._group_fn is None:
            return 0
        self._drawn = number, self._draw(number, sample)
        return whole_number("group", self._group_fn(self._drawn[1]), most=self.groups - 1)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        if not self._supervised:
            return self._loss(model, batch)
        if not isinstance(batch, (list, tuple)) or len(batch) < 2:
            raise TypeError(
                f"A torch loss needs batches (inputs, targets), got {type(batch).__name__}: write "
                "loss_fn(model, batch) yourself"
            )
        return self._loss(model(*batch[:-1]), batch[-1])

    def clip(self, gradient: Tensor) -> None:
        """Clip in place, by value and then by norm."""
        if self.clip_value is not None:
            gradient.clamp_(-self.clip_value, self.clip_value)
        if self.clip_norm is not None:
            norm = float(gradient.norm())
            if norm > self.clip_norm:
                gradient.mul_(self.clip_norm / norm)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics; none without an ``evaluate`` function."""
        return {} if self._evaluate is None else self._evaluate(model)

    @property
    def evaluates(self) -> bool:
        """Whether there is an ``evaluate`` function."""
        return self._evaluate is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_epochs": {}, "_drawn": None, "scheduler": None}
