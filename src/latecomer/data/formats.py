"""Published files as arrays: IDX, CIFAR-10's binary batches, and its images as rows of a PNG; nothing is trusted."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.extras import needs
from .known import DataError

__all__ = ["cifar_batch", "cifar_binary", "cifar_labels", "cifar_png", "cifar_rows", "idx", "import_pillow", "mnist"]

_LARGEST = 1 << 28  # bytes of one file once it is unpacked; the largest real one has 47 million
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE
_MOST_ROWS = 10_000


def idx(raw: bytes, what: str = "the file") -> NDArray[np.uint8]:
    """Return the array in an IDX file of bytes, gzipped or not.

    Args:
        raw: The file.
        what: Its name, for the sentence if it is no such file.
    """
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(_LARGEST + 1)
        except (OSError, EOFError, zlib.error, struct.error) as error:
            raise DataError(f"{what} is damaged: it cannot be unpacked ({error})") from error
        if len(raw) > _LARGEST:
            raise DataError(f"{what} unpacks to more than {_LARGEST:,} bytes")
    if len(raw) < 8 or raw[:3] != b"\0\0\x08" or not 1 <= raw[3] <= 4:
        raise DataError(f"{what} is no IDX file of bytes: it begins with {raw[:4].hex() or 'nothing'}")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise DataError(f"{what} is cut off in its header")
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    size = 1
    for length in shape:
        size *= length
    if len(raw) - start != size:
        raise DataError(f"{what} has {len(raw) - start:,} bytes of data instead of the {size:,} it promises")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def mnist(files: Mapping[str, bytes]) -> dict[str, NDArray[Any]]:
    """Return MNIST's arrays from its four IDX files, gzipped or not."""
    arrays: dict[str, NDArray[Any]] = {}
    for part, stem in (("train", "train"), ("test", "t10k")):
        arrays[f"{part}_images"] = idx(*_file(files, f"{stem}-images-idx3-ubyte"))
        arrays[f"{part}_labels"] = idx(*_file(files, f"{stem}-labels-idx1-ubyte")).astype("<i8")
    return arrays


def cifar_batch(raw: bytes, what: str = "the file") -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images and labels of a binary CIFAR-10 batch: a byte of label, then 3,072 of red, green and blue."""
    if not raw or len(raw) % _RECORD:
        raise DataError(f"{what} is no CIFAR-10 batch: its {len(raw):,} bytes are no multiple of {_RECORD:,}")
    records = np.frombuffer(raw, np.uint8).reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, _SIDE, _SIDE), _labels(records[:, 0], what)


def cifar_binary(files: Mapping[str, bytes]) -> dict[str, NDArray[Any]]:
    """Return CIFAR-10's arrays from the six files of its binary version."""
    train = [cifar_batch(*_file(files, f"data_batch_{i}.bin")) for i in range(1, 6)]
    test = cifar_batch(*_file(files, "test_batch.bin"))
    return {
        "train_images": np.concatenate([images for images, _ in train]),
        "train_labels": np.concatenate([labels for _, labels in train]),
        "test_images": np.ascontiguousarray(test[0]),
        "test_labels": test[1],
    }


def import_pillow() -> Any:
    """Import what reads PNG files, or say how to get it."""
    with needs("report", "pillow", "Reading images from PNG files"):
        from PIL import Image
    return Image


def cifar_rows(raw: bytes, what: str = "the file") -> NDArray[np.uint8]:
    """Return the images in an RGB PNG of 1,024 columns; each row is one image of 32x32, from left to right and down."""
    Image = import_pillow()
    # The header is read before Pillow allocates anything.
    if len(raw) < 33 or raw[:8] != b"\x89PNG\r\n\x1a\n" or raw[12:16] != b"IHDR":
        raise DataError(f"{what} is no PNG file")
    width, height, depth, color = struct.unpack(">IIBB", raw[16:26])
    if (width, depth, color) != (_SIDE * _SIDE, 8, 2) or not 1 <= height <= _MOST_ROWS:
        raise DataError(f"{what} is a PNG of {width}x{height}, not rows of {_SIDE * _SIDE} pixels in 24-bit color")
    try:
        with Image.open(io.BytesIO(raw), formats=("PNG",)) as image:
            if image.size != (width, height) or image.mode != "RGB":
                raise ValueError("it has two headers")
            pixels = np.asarray(image)
    except (
        OSError,
        EOFError,
        ValueError,
        SyntaxError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise DataError(f"{what} is damaged: its pixels cannot be read ({error})") from error
    return np.ascontiguousarray(pixels.reshape(-1, _SIDE, _SIDE, 3).transpose(0, 3, 1, 2))


def cifar_labels(raw: bytes, what: str = "the file") -> NDArray[np.int64]:
    """Return the labels in a JSON list of numbers from 0 to 9."""
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is no JSON file") from error
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value <= 9 for value in values):
        raise DataError(f"{what} is no list of labels from 0 to 9")
    return np.array(values, dtype="<i8")


def cifar_png(files: Mapping[str, bytes]) -> dict[str, NDArray[Any]]:
    """Return CIFAR-10's arrays from the six PNG and two JSON files of the npm package."""
    return {
        "train_images": np.concatenate([cifar_rows(*_file(files, f"data_batch_{i}.png")) for i in range(1, 6)]),
        "train_labels": cifar_labels(*_file(files, "train_lables.json")),  # the package's spelling
        "test_images": cifar_rows(*_file(files, "test_batch.png")),
        "test_labels": cifar_labels(*_file(files, "test_lables.json")),
    }


def _file(files: Mapping[str, bytes], name: str) -> tuple[bytes, str]:
    for spelled in (name, f"{name}.gz"):
        if spelled in files:
            return files[spelled], spelled
    raise DataError(f"{name} is missing")


def _labels(values: NDArray[np.uint8], what: str) -> NDArray[np.int64]:
    if values.max() > 9:
        raise DataError(f"{what} is no CIFAR-10 batch: it has a label {values.max()}, and labels are 0 to 9")
    return values.astype("<i8")
