"""A user's model, loss and data as a problem to train on; the ticket fixes what a worker computes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._util.checks import POSITIVE, several, whole_number
from .._util.naming import type_and_length
from .._util.seeds import part_seed
from .._util.warn import warn
from ..core.flat import uncompiled
from ..core.groups import ParamGroups
from ..core.rng import seeded
from ..problems.base import Problem
from .batches import Batches
from .losses import loss_of_model, own_loss, supervised_loss

__all__ = ["NOT_GIVEN", "Task"]

_MOST_PARTS = 100_000
"""Most micro-batches per ticket: more take so long that the run would seem to hang."""
NOT_GIVEN: Any = type("NotGiven", (), {"__repr__": lambda self: "not given"})()
"""Default of the arguments of `fit` that belong to the task."""


class Task(Problem):
    """Model, loss and data. The ticket seeds everything random in a job, so any run can be replayed.

    Args:
        model: The module to train, or a function that returns it. Layers keep their training or evaluation mode, so
            frozen ones stay frozen. A compiled model is trained uncompiled.
        loss_fn: A torch loss (``nn.CrossEntropyLoss()``, ``nn.functional.mse_loss``), called with the model's output
            and the last part of the batch; or your own function ``loss_fn(model, batch)``. None if the model returns
            its loss, as those of Hugging Face do: it is called as ``model(**batch)`` with a dict, ``model(*batch)``
            with a tuple, and returns an object with ``.loss``, a dict with ``"loss"``, or the loss itself.
        dataset: Map-style: ``dataset[i]`` and ``len(dataset)``. Or a `DataLoader`: its dataset, batch size, samplers,
            ``collate_fn`` and ``drop_last`` are used; the seed of the run draws the order.
        batch_size: Samples per batch, 32 by default.
        collate_fn: Combines a list of samples into a batch; torch's default.
        sampler: None for epochs, each a new permutation; ``"independent"`` for sampling with replacement, as in theory;
            or a torch `Sampler` or `BatchSampler`, iterated once per epoch, its generators seeded by the epoch.
        batch_fn: Instead of a dataset: ``batch_fn(sample)`` returns the batch for a ticket's sample seed.
        group_fn: ``group_fn(batch)`` returns the group of a batch, for the trace: 0, 1, ...
        groups: Names of the groups.
        evaluate: ``evaluate(model)`` returns metrics by name; it is called in evaluation mode, without gradients.
        accumulate: Micro-batches of ``batch_size`` per ticket. The worker computes one after the other and sends the
            mean of their gradients, so a large batch needs the memory of a small one.
        autocast: ``"bfloat16"`` to compute the loss under ``torch.autocast``; parameters and gradients keep their
            dtype. The evaluation is not affected.
        clip_norm: Scale every gradient down to this norm, on the worker.
        clip_value: Clamp every entry of a gradient to ``[-clip_value, clip_value]``.
        scheduler: Function of the optimizer that returns a learning-rate scheduler.
        param_groups: Function of the model that returns torch's param groups, or a mapping from name patterns to
            options; see `fit`.
        seed: Draws the epochs where a task is used by itself. In a run they follow the seed of `fit`, or of the trace
            in `simulate` and `replay`.
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
        loss_fn: Callable[..., Tensor] | None = None,
        dataset: Any = None,
        *,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sampler: Any = None,
        batch_fn: Callable[[int], Any] | None = None,
        group_fn: Callable[[Any], int] | None = None,
        groups: Sequence[str] = ("all",),
        evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
        accumulate: int = 1,
        autocast: str | torch.dtype | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        param_groups: ParamGroups | None = None,
        seed: int = 0,
        name: str = "task",
    ) -> None:
        if not callable(model):
            raise TypeError(
                f"Invalid model: {type(model).__name__} (expected a torch.nn.Module, or a function that makes one)"
            )
        if isinstance(loss_fn, type) and issubclass(loss_fn, nn.Module):
            name = f"nn.{loss_fn.__name__}" if loss_fn.__module__.startswith("torch.nn.") else loss_fn.__name__
            raise TypeError(f"Invalid loss_fn: the class {name} (pass {name}(), an instance)")
        if loss_fn is not None and not callable(loss_fn):
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
        self.accumulate = whole_number("accumulate", accumulate, least=1, most=_MOST_PARTS)
        self.autocast = _checked_autocast(autocast)
        if not all(isinstance(group, str) for group in self.group_names):
            raise TypeError(f"Invalid groups value: {list(groups)} (expected names)")
        self.clip_norm = None if clip_norm is None else POSITIVE.check("clip_norm", clip_norm)
        self.clip_value = None if clip_value is None else POSITIVE.check("clip_value", clip_value)
        self.scheduler, self.param_groups = scheduler, param_groups
        self._model = uncompiled(model)
        self._loss: Callable[..., Any] | None = loss_fn
        if self._model is not model:
            warn(
                "A compiled model cannot be sent to another process: the model is trained as it was before "
                "torch.compile, and holds the result afterwards",
            )
        self._batch_fn, self._group_fn, self._evaluate = batch_fn, group_fn, evaluate
        self._supervised = isinstance(loss_fn, nn.Module) or getattr(loss_fn, "__module__", "") == "torch.nn.functional"
        self._batches: Any = None
        if batch_fn is None:
            self._batches = Batches(dataset, batch_size=batch_size, collate_fn=collate_fn, sampler=sampler)
        elif any(given is not None for given in (batch_size, collate_fn, sampler)):
            raise ValueError("batch_size, collate_fn and sampler belong to a dataset: with batch_fn leave them out")
        self.batch_size = 32 if self._batches is None else self._batches.batch_size
        self._drawn: tuple[int, list[tuple[int, Any]]] | None = None

    def _described(self) -> dict[str, str]:
        """Identify the task by names, types and lengths; neither the contents of the data nor the seed count."""
        parts = {"model": self._model, "loss_fn": self._loss, "batch_fn": self._batch_fn, "group_fn": self._group_fn}
        if self._batches is not None:
            own = self._batches
            parts |= {"dataset": own.dataset, "collate_fn": own.collate, "sampler": own.sampler}
        simple = {name: value for name, value in super()._described().items() if name != "seed"}
        if self.accumulate == 1:
            del simple["accumulate"]
        if self._batches is not None and not self._batches.drop_last:
            simple["drop_last"] = "False"
        return simple | {name: type_and_length(part) for name, part in parts.items() if part is not None}

    def with_seed(self, seed: int) -> Task:
        """Return the same task, whose epochs this seed draws."""
        other = object.__new__(type(self))  # not copy.copy, which leaves out what is not sent to other processes
        vars(other).update(vars(self) | {"seed": seed, "_drawn": None})
        return other

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

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are; the CPU for a function that makes it."""
        params = self._model.parameters() if isinstance(self._model, nn.Module) else iter(())
        return next((p.device for p in params), torch.device("cpu"))

    def batch(self, sample: int, group: int) -> Any:
        """Return a batch by its sample seed only; a dataset in epochs needs `batch_of`."""
        return self.batch_of(0, sample, group)

    def batch_of(self, number: int, sample: int, group: int) -> Any:
        """Return the batch of a ticket, the first of its micro-batches."""
        return self._draw(number * self.accumulate, sample)

    def micro_batches(self, number: int, sample: int, group: int) -> list[tuple[int, Any]]:
        """Return the seeds and the micro-batches of a ticket; one without ``accumulate``."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None and drawn[0] == number:
            return drawn[1]
        return [(seed, self._draw(place, seed)) for place, seed in self._places(number, sample)]

    def _places(self, number: int, sample: int) -> list[tuple[int, int]]:
        """Return the numbers and the seeds of a ticket's micro-batches."""
        first = number * self.accumulate
        return [(first + index, part_seed(sample, index)) for index in range(self.accumulate)]

    def _draw(self, place: int, sample: int) -> Any:
        with seeded(sample):
            if self._batch_fn is not None:
                return self._batch_fn(sample)
            return self._batches.draw(self.seed, place, sample)

    def describe_samples(self, number: int, sample: int) -> str:
        """Return the indices of a ticket's samples in the dataset, for messages."""
        if self._batch_fn is not None:
            return super().describe_samples(number, sample)
        places = self._places(number, sample)
        indices = [i for place, seed in places for i in self._batches.indices(self.seed, place, seed)]
        shown = ", ".join(map(str, indices[:16])) + (", ..." if len(indices) > 16 else "")
        return f"dataset[i] for i = {shown}"

    def steps_of(self, epochs: float) -> int:
        """Return the number of tickets that visit the dataset this often, rounded up to whole tickets."""
        if self._batch_fn is not None:
            raise ValueError(
                "epochs= needs a dataset, whose length says how long an epoch is: with batch_fn pass steps="
            )
        wanted: float = POSITIVE.check("epochs", epochs) * self._batches.per_epoch(self.seed) / self.accumulate
        return max(1, math.ceil(wanted - 1e-9))  # 0.1 epochs of 30 batches are 3, not 4

    def group_of(self, number: int, sample: int) -> int:
        """Draw the batch and return its group; the batch is kept for the job that follows.

        A ticket of several micro-batches has the largest of their groups, that of the slowest.
        """
        if self._group_fn is None:
            return 0
        parts = self.micro_batches(number, sample, 0)
        self._drawn = number, parts
        found = [self._group_fn(batch) for _, batch in parts]
        try:
            return max(
                whole_number("group", int(group) if isinstance(group, bool) else group, most=self.groups - 1)
                for group in found
            )
        except (TypeError, ValueError) as error:
            names = ", ".join(self.group_names)
            raise type(error)(f"group_fn of ticket {number}: {error}; groups= has the names {names}") from None

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch, computed under ``torch.autocast`` if the task says so."""
        if self.autocast is None:
            return self._loss_of(model, batch)
        device = next(model.parameters()).device.type
        with torch.autocast(device, dtype=getattr(torch, self.autocast)):
            return self._loss_of(model, batch)

    def _loss_of(self, model: nn.Module, batch: Any) -> Tensor:
        if self._loss is None:
            return loss_of_model(model, batch)
        return (supervised_loss if self._supervised else own_loss)(self._loss, model, batch)

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
    def own_groups(self) -> bool:
        """Whether ``group_fn`` says of which group a batch is."""
        return self._group_fn is not None

    @property
    def evaluates(self) -> bool:
        """Whether there is an ``evaluate`` function."""
        return self._evaluate is not None

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_drawn": None, "scheduler": None, "param_groups": None}
        if self.device.type != "cpu":  # it may not be there where it is unpickled
            state["_model"] = copy.deepcopy(self._model).cpu()
        return state


def _checked_autocast(autocast: Any) -> str | None:
    """Return the name of the dtype; a string, so that it is part of what identifies a task."""
    name = str(autocast).removeprefix("torch.")
    if autocast is None or name == "bfloat16":
        return None if autocast is None else name
    if name in ("float16", "half"):
        raise ValueError(
            f"Invalid autocast value: {autocast!r} (float16 needs loss scaling, and workers that do not wait for "
            "each other cannot share a scale; use 'bfloat16')"
        )
    raise ValueError(f"Invalid autocast value: {autocast!r} (expected None or 'bfloat16')")
