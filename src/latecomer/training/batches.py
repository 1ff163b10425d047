"""Which samples a batch consists of: fixed by the batch's number and seed, in whichever process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, default_collate

from .._util.checks import whole_number
from .._util.naming import type_and_length
from .._util.seeds import picks, stream
from .._util.warn import warn
from ..core.rng import seeded_order

__all__ = ["Batches"]

_COLUMNS = ": if its tensors have one row per sample, pass torch.utils.data.TensorDataset(inputs, targets) instead"


class Batches:
    """The batches of a map-style dataset, by number and seed.

    Args:
        dataset: The dataset, or a `DataLoader`, of which dataset, sampler and collate function are taken.
        batch_size: Samples per batch, 32 by default.
        collate_fn: Combines a list of samples into a batch; torch's default.
        sampler: None for epochs, each a new permutation; ``"independent"``; or a torch sampler.

    Attributes:
        drop_last: Whether an epoch leaves out the samples that do not fill a batch.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sampler: Any = None,
    ) -> None:
        self.drop_last, self._single, self._by_loader = True, False, isinstance(dataset, DataLoader)
        self._epochs: dict[tuple[int, int], Any] = {}
        self._size_given = batch_size is not None
        if isinstance(dataset, DataLoader):
            given = {"batch_size": batch_size, "collate_fn": collate_fn, "sampler": sampler}
            self._take(dataset, [name for name, value in given.items() if value is not None])
        else:
            self.dataset, self.sampler, self.collate = dataset, sampler, collate_fn or default_collate
            self.batch_size = 32 if batch_size is None else whole_number("batch_size", batch_size, least=1)
        self._check()

    def _take(self, loader: DataLoader[Any], given: list[str]) -> None:
        """Take over what decides the batches of a data loader."""
        if given:
            raise ValueError(f"The DataLoader has its own {given[0]}: leave out {given[0]}=, or pass loader.dataset")
        if type(loader).__iter__ is not DataLoader.__iter__:
            raise TypeError(
                f"Invalid dataset: {type(loader).__name__} changes how a DataLoader draws batches, so a ticket cannot "
                "fix its samples; pass loader.dataset with batch_size= and collate_fn=, or batch_fn="
            )
        for name in ("num_workers", "worker_init_fn"):
            if getattr(loader, name):
                warn(
                    f"The DataLoader's {name} is not used: each worker process loads the batches of its own tickets",
                )
        self.dataset, self.collate, self.drop_last = loader.dataset, loader.collate_fn, loader.drop_last
        self.batch_size = loader.batch_size or 1
        order: Any = loader.sampler
        whole = type(order) is RandomSampler and not order.replacement and order._num_samples is None
        if loader.batch_sampler is None:  # batch_size=None: an index of the sampler is a batch
            self.sampler, self._single = order, True
        elif type(loader.batch_sampler) is BatchSampler and whole:  # shuffle=True, drawn by the seed of the run
            self.sampler = None
        else:
            self.sampler = loader.batch_sampler

    def _check(self) -> None:
        data, sampler = self.dataset, self.sampler
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
        if isinstance(data, str | bytes) or (isinstance(data, Mapping) and 0 not in data):
            shown = (
                f"a dict with the keys {', '.join(map(repr, list(data)[:5]))}" if isinstance(data, Mapping) else data
            )
            raise TypeError(
                f"Invalid dataset: {shown!s:.200} (expected an object whose dataset[i] is a sample; for tensors with "
                "one row per sample, torch.utils.data.TensorDataset(inputs, targets))"
            )
        if sampler is None or (isinstance(sampler, str) and sampler == "independent"):
            if sampler is None and len(data) < self.batch_size and self.drop_last:
                few = f"Invalid batch_size value: {self.batch_size} (the dataset has {len(data)} samples)"
                raise ValueError(few + (_COLUMNS if _are_columns(data) else ""))
        elif isinstance(sampler, str | type | Tensor) or not hasattr(sampler, "__iter__"):
            raise TypeError(f"Invalid sampler: {sampler!r} (expected None, 'independent' or a torch Sampler)")
        elif isinstance(sampler, BatchSampler):
            self._refuse_size()

    def _refuse_size(self) -> None:
        if self._size_given:
            raise ValueError("The sampler gives whole batches, of its own size: leave out batch_size=")

    def per_epoch(self, seed: int) -> float:
        """Return how many batches an epoch has; for a dataset without sampler or loader, how often it is filled."""
        n, size = len(self.dataset), self.batch_size
        if self.sampler is None or isinstance(self.sampler, str):
            return float(self._shuffled_batches()) if self._by_loader else n / size
        return float(len(self._epoch(seed, 0, lambda: self._sampled(seed, 0))))

    def draw(self, seed: int, number: int, sample: int) -> Any:
        """Return a batch; what is random in loading it must be seeded by the caller.

        Args:
            seed: Draws the epochs.
            number: Number of the batch.
            sample: Its seed, for ``"independent"``.
        """
        indices = self.indices(seed, number, sample)
        if self._single:
            return self.collate(self.dataset[indices[0]])
        return self.collate([self.dataset[i] for i in indices])

    def indices(self, seed: int, number: int, sample: int) -> list[Any]:
        """Return the indices of a batch in the dataset."""
        n, size = len(self.dataset), self.batch_size
        if isinstance(self.sampler, str):
            return [int(i) for i in picks(sample, size, n)]
        if self.sampler is None:
            epoch, place = divmod(number, self._shuffled_batches())
            order = self._epoch(seed, epoch, lambda: stream(seed, "epoch", epoch).permutation(n))
            return [int(i) for i in order[place * size : (place + 1) * size]]
        first = self._epoch(seed, 0, lambda: self._sampled(seed, 0))
        epoch, place = divmod(number, len(first))
        batches: list[list[Any]] = first if not epoch else self._epoch(seed, epoch, lambda: self._sampled(seed, epoch))
        return batches[place % len(batches)]

    def _shuffled_batches(self) -> int:
        n, size = len(self.dataset), self.batch_size
        return n // size if self.drop_last else -(-n // size)

    def _sampled(self, seed: int, epoch: int) -> list[list[Any]]:
        """Return the batches of one epoch of the sampler, as a data loader would."""
        drawn = int(stream(seed, "epoch", epoch).integers(2**63))
        order = seeded_order(self.sampler, epoch, drawn)
        if not epoch and seeded_order(self.sampler, epoch, drawn) != order:
            raise ValueError(
                f"The sampler {type_and_length(self.sampler)} gives another order every time although it is seeded, "
                "so workers cannot agree on a ticket's samples; let it use torch's generator, or pass batch_fn="
            )
        if self._single:
            batches = [[index] for index in order]
        elif order and isinstance(order[0], (list, tuple)):
            self._refuse_size()
            return [list(batch) for batch in order]
        else:
            starts = range(0, len(order) - self.batch_size + 1, self.batch_size)
            batches = [[int(i) for i in order[start : start + self.batch_size]] for start in starts]
        if not batches:
            raise ValueError(
                f"The sampler gives {len(order)} samples per epoch, fewer than one batch of {self.batch_size}"
            )
        return batches

    def _epoch(self, seed: int, epoch: int, make: Callable[[], Any]) -> Any:
        if (seed, epoch) not in self._epochs:
            self._epochs = {key: order for key, order in self._epochs.items() if key[0] == seed}
            if len(self._epochs) > 3:  # a late ticket may belong to an earlier epoch
                del self._epochs[min(self._epochs.keys() - {(seed, 0)})]  # epoch 0 gives the number of batches
            self._epochs[seed, epoch] = make()
        return self._epochs[seed, epoch]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_epochs": {}}


def _are_columns(data: Any) -> bool:
    """Whether this is several tensors or arrays of the same number of rows, and not a list of samples."""
    if not isinstance(data, tuple | list) or len(data) < 2:
        return False
    rows = [part.shape[:1] if isinstance(part, Tensor | np.ndarray) else () for part in data]
    return len(rows[0]) == 1 and all(row == rows[0] for row in rows)
