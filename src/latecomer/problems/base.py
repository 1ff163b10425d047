"""The problem interface: a model, samples by seed and group, a loss, and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .._util.seeds import uniforms
from ..delays.base import groups_from

__all__ = ["Problem", "device_of", "scores"]


class Problem(ABC):
    """Something to train on.

    To define your own, write a subclass. A ticket's seed and a group (how slow the sample is) fix the sample: the same
    seed and group always give the same batch.

    Attributes:
        name: Name for people and tables.
        groups: Number of groups; group 0 is the fast one.
        shares: Share of each group in the data, if known.

    Examples:
        >>> import torch, latecomer as lc
        >>> class Mean(Problem):
        ...     name, groups = "mean", 1
        ...     def model(self, seed):
        ...         return nn.Linear(1, 1, bias=False)
        ...     def batch(self, sample, group):
        ...         return torch.randn(8, 1, generator=torch.Generator().manual_seed(sample % 2**63)) + 3.0
        ...     def loss(self, model, batch):
        ...         return ((model.weight - batch) ** 2).mean()
        ...     def evaluate(self, model):
        ...         return {"weight": model.weight.item()}
        >>> trace = lc.delays.Constant(workers=2).trace(steps=200, seed=0)
        >>> run = lc.simulate(Mean(), "momentum", trace, lr=0.05)
        >>> abs(run.final["weight"] - 3.0) < 0.3
        True
    """

    name: str
    groups: int = 1
    shares: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{k}={v}' for k, v in self._described().items())})"

    def _described(self) -> dict[str, str]:
        """Return what distinguishes it from others of its type."""
        simple = (bool, int, float, str, tuple)
        options = {k: v for k, v in vars(self).items() if not k.startswith("_") and isinstance(v, simple)}
        return {k: repr(v) for k, v in sorted(options.items())}

    @abstractmethod
    def model(self, seed: int) -> nn.Module:
        """Return a freshly initialised model; the same seed gives the same one."""

    @abstractmethod
    def batch(self, sample: int, group: int) -> Any:
        """Return the batch that belongs to this seed and group."""

    def batch_of(self, number: int, sample: int, group: int) -> Any:
        """Return the batch of a ticket; by default `batch` of its seed and group.

        For data drawn without replacement: the ticket's number gives the position in its epoch.
        """
        return self.batch(sample, group)

    def micro_batches(self, number: int, sample: int, group: int) -> list[tuple[int, Any]]:
        """Return what a ticket consists of, as seeds and batches; its gradient is the mean of theirs.

        By default one batch, that of `batch_of`.
        """
        return [(sample, self.batch_of(number, sample, group))]

    def group_of(self, number: int, sample: int) -> int:
        """Return the group of a ticket if no schedule has one: drawn by the shares, as the delay models do."""
        if self.groups == 1:
            return 0
        u = uniforms(np.array([sample], dtype=np.uint64))
        return int(groups_from(u, self.shares or (1.0 / self.groups,) * self.groups)[0])

    def with_seed(self, seed: int) -> Problem:
        """Return the problem for a run whose samples this seed draws; by default tickets have all that it decides.

        For data drawn without replacement: the seed gives the order of its epochs.
        """
        return self

    @property
    def own_groups(self) -> bool:
        """Whether the batch of a ticket has a group of its own, so that a schedule cannot choose it; False here."""
        return False

    def clip(self, gradient: Tensor) -> None:  # noqa: B027 - optional
        """Change a gradient in place before it is sent; does nothing by default."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of the model on a batch, ready for backward; the batch is on the model's device."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return metrics on held-out data; it is called without gradients, and moves its data to the model's device."""

    def losses_by_group(self, model: nn.Module) -> tuple[float, ...]:
        """Return the loss on held-out data of each group, fastest first; empty by default, if it is not known.

        It is called like `evaluate`.
        """
        return ()

    def describe_samples(self, number: int, sample: int) -> str:
        """Describe the samples of a ticket for messages; by default by the seed of its batch."""
        return f"sample {sample}"

    def gradient(self, x: Tensor, batch: Any, out: Tensor) -> bool:
        """Write the gradient at the flat parameters ``x`` into ``out`` and return True, if there is a formula.

        The default returns False; then `loss` and backward are used.
        """
        return False

    def expected_gradient(self, x: Tensor, out: Tensor) -> bool:
        """Write the gradient of the whole objective at ``x`` into ``out`` and return True, if it can be computed.

        The default returns False; then `latecomer.theory` averages over samples.
        """
        return False


def device_of(model: nn.Module) -> torch.device:
    """Return where a model's parameters are, so that `Problem.evaluate` can move its data there."""
    return next(model.parameters()).device


def scores(labels: NDArray[np.int64], predictions: NDArray[np.int64], classes: int, slow: set[int]) -> dict[str, float]:
    """Return accuracy, mean F1 and the F1 of slow classes, of fast classes and of every class.

    A class that neither occurs nor is guessed has F1 0, as in scikit-learn with ``zero_division=0``.
    """
    confusion = np.bincount(labels * classes + predictions, minlength=classes * classes).reshape(classes, classes)
    right = np.diag(confusion).astype(np.float64)
    total = confusion.sum(0) + confusion.sum(1)
    f1 = np.divide(2 * right, total, out=np.zeros(classes), where=total > 0)
    is_slow = np.isin(np.arange(classes), sorted(slow))
    return {
        "accuracy": float(right.sum() / len(labels)),
        "f1": float(f1.mean()),
        "f1_slow": float(f1[is_slow].mean()) if is_slow.any() else float("nan"),
        "f1_fast": float(f1[~is_slow].mean()) if (~is_slow).any() else float("nan"),
        **{f"f1_{c}": float(value) for c, value in enumerate(f1)},
    }
