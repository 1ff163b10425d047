"""Tiny datasets, and sources of our own."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from latecomer import data
from latecomer.data import Known
from latecomer.data import formats as arrays

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


IDX = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def idx(array: np.ndarray[Any, Any]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def tgz(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def small(seed: int = 0) -> dict[str, bytes]:
    """MNIST's four files with five images."""
    draw = np.random.default_rng(seed)
    shapes = ((3, 4, 4), (3,), (2, 4, 4), (2,))
    return {name: idx(draw.integers(0, 10, shape)) for name, shape in zip(IDX, shapes, strict=True)}


def knowns(made: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Known]:
    return {name: Known(array.dtype.str, array.shape, data.sha256(array)) for name, array in made.items()}


FILES = small()


ARRAYS = arrays.mnist(FILES)


@dataclass
class Fake:
    """A source of our own."""

    name: str = "a fake"
    give: Callable[[Path], dict[str, Any]] = lambda folder: ARRAYS
    asked: int = 0

    def __str__(self) -> str:
        return self.name

    def arrays(self, folder: Path, progress: data.Progress) -> dict[str, Any]:
        self.asked += 1
        (folder / "half a download").write_text("...")
        progress(1, 2)
        return self.give(folder)


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tiny datasets, a cache of our own, and no source unless a test has one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LATECOMER_DATA", raising=False)
    monkeypatch.setitem(data.KNOWN, "mnist", knowns(ARRAYS))
    for name in data.SOURCES:
        monkeypatch.setitem(data.SOURCES, name, ())


def use(monkeypatch: pytest.MonkeyPatch, *given_sources: Any, name: str = "mnist") -> None:
    monkeypatch.setitem(data.SOURCES, name, given_sources)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def same(loaded: Mapping[str, np.ndarray[Any, Any]], wanted: Mapping[str, np.ndarray[Any, Any]] = ARRAYS) -> bool:
    return loaded.keys() == wanted.keys() and all(np.array_equal(loaded[name], wanted[name]) for name in wanted)
