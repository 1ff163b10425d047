"""Datasets on disk: looked up, fetched once, checked, and opened without being read."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from .._util.warn import warn
from .known import KNOWN, DataError, check, known
from .sources import Progress, fetch

__all__ = ["DatasetStatus", "get", "listing", "load", "where"]

_STAMP = "stamp.json"
_FORMAT = 1
_LARGEST_STAMP = 1 << 16
_TOLD: set[tuple[Path, Path]] = set()  # warnings that were given: where a dataset is not, and where it is


@dataclass(frozen=True)
class DatasetStatus:
    """What is known of a dataset without reading it.

    Args:
        name: Which dataset.
        folder: Where it is, or where it would be put.
        state: Whether it can be loaded; ``"foreign"`` is a folder that somebody else filled.
        size: Bytes on disk, or what it will need.
        fault: What is wrong with it, if anything.

    Examples:
        >>> DatasetStatus("mnist", Path("data/mnist"), "missing", 55_000_000).fault
        ''
    """

    name: str
    folder: Path
    state: Literal["there", "missing", "broken", "foreign"]
    size: int
    fault: str = ""


def where(name: str, data_dir: Path | str | None = None) -> Path:
    """Return the folder of a dataset: where it is, or where ``get`` would put it.

    It is looked for in ``data_dir``, in the folder that ``LATECOMER_DATA`` names, and in the user's cache.

    Examples:
        >>> where("mnist").name
        'mnist'
    """
    known(name)
    places = folders(name, data_dir)
    return next((folder for folder in places if os.path.lexists(folder)), places[0])


def folders(name: str, data_dir: Path | str | None = None) -> list[Path]:
    """Return the folders where something of this name is looked for; the first is the one to write to."""
    return [root / name for root in _roots(data_dir)]


def listing(data_dir: Path | str | None = None) -> list[DatasetStatus]:
    """Return for every dataset whether it is there, and how large it is.

    Examples:
        >>> [entry.name for entry in listing()]
        ['mnist', 'cifar10']
    """
    return [_look(name, where(name, data_dir)) for name in KNOWN]


def load(name: str, data_dir: Path | str | None = None) -> dict[str, NDArray[Any]]:
    """Return a dataset's arrays, mapped into memory and read-only; it has to be there, see ``get``.

    Sizes and the stamp that ``get`` left are checked, and every byte if a file is newer than the stamp. A ``data_dir``
    that does not exist is an error. If the dataset is not in the folder that was named, but in a later one of `where`,
    a warning says so.

    Returns:
        ``train_images``, ``train_labels``, ``test_images`` and ``test_labels``. Images are bytes, (N, height, width)
        or (N, 3, height, width); labels are whole numbers of 64 bits.

    Examples:
        >>> load("imagenet")
        Traceback (most recent call last):
        latecomer.data.known.DataError: Invalid name value: 'imagenet' (expected 'mnist' or 'cifar10')
    """
    known(name)
    places = folders(name, data_dir)
    if data_dir is not None and not places[0].parent.is_dir():
        raise DataError(f"There is no folder {str(data_dir)!r} to read {name} from: pass another data_dir")
    entry = _look(name, where(name, data_dir))
    if entry.folder != places[0] and (places[0], entry.folder) not in _TOLD:
        _TOLD.add((places[0], entry.folder))  # once is enough: a sweep loads its data for every run
        warn(f"{name} is not in {places[0].parent}; it is read from {entry.folder}")
    if entry.state == "missing":
        raise DataError(f"{name} is not in {entry.folder}: run `latecomer data get {name}`")
    if entry.state == "foreign":
        raise DataError(f"{entry.folder} is not Latecomer's: {entry.fault}; move it away or pass another data_dir")
    if entry.state == "broken":
        raise DataError(f"{entry.folder} is broken: {entry.fault}; run `latecomer data get {name}` to renew it")
    arrays = _open(name, entry.folder)
    if _newer_than_stamp(name, entry.folder):
        try:
            check(name, arrays)
        except DataError as error:
            words = f"{entry.folder} is broken: {error}; run `latecomer data get {name}` to renew it"
            raise DataError(words) from error
        with suppress(OSError):
            (entry.folder / _STAMP).touch()  # looked at: the next start need not
    return arrays


def get(name: str, data_dir: Path | str | None = None, progress: Progress | None = None, offline: bool = False) -> Path:
    """Return the folder with a dataset in it, every byte checked; fetch it if it is not there or broken.

    A dataset that is elsewhere on the way from ``data_dir`` over ``LATECOMER_DATA`` to the user's cache is used from
    there, or copied if a ``data_dir`` is given. Several processes may ask at once: one fetches, the others wait.

    Args:
        name: Which dataset.
        data_dir: The folder around the dataset's own; ``LATECOMER_DATA`` or the user's cache if left out.
        progress: Called with the bytes so far and the total, if known, of the file being downloaded.
        offline: Never touch the network.

    Examples:
        >>> get("imagenet", offline=True)
        Traceback (most recent call last):
        latecomer.data.known.DataError: Invalid name value: 'imagenet' (expected 'mnist' or 'cifar10')
    """
    known(name)
    places = folders(name, data_dir)
    target = places[0]
    if target.parent.exists() and not target.parent.is_dir():
        raise DataError(f"{target.parent} is a file, not a folder to keep data in: pass another data_dir")
    _refuse_foreign(name, target)
    usable = next((folder for folder in places if _arrays(name, folder) is not None), None)
    if usable is not None and (usable == target or (data_dir is None and not os.path.lexists(target))):
        return usable
    if usable is None and offline:
        raise DataError(
            f"{name} is not whole in {target} and may not be fetched offline: leave offline out, or copy the folder "
            f"from a machine that has it"
        )
    need = sum(array.nbytes for array in known(name).values())
    with _sentence(target, need):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{name}.lock")):
            if _arrays(name, target) is not None:  # somebody else was faster
                return target
            _refuse_foreign(name, target)
            for leftover in target.parent.glob(f".{name}.*.part"):  # of a process that was killed: we hold the lock
                shutil.rmtree(leftover, ignore_errors=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".part", dir=target.parent))
            try:
                arrays = None if usable is None else _arrays(name, usable)
                _write(name, fetch(name, temporary, progress) if arrays is None else arrays, temporary / "new")
                if os.path.lexists(target):
                    target.replace(temporary / "old")
                (temporary / "new").replace(target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return target


def _roots(data_dir: Path | str | None) -> list[Path]:
    """Return the folders to look in, first the one to write to."""
    roots = [] if data_dir is None else [Path(data_dir)]
    if named := os.environ.get("LATECOMER_DATA"):
        roots.append(Path(named))
    cache = os.environ.get("XDG_CACHE_HOME", "")
    roots.append((Path(cache) if Path(cache).is_absolute() else Path("~/.cache")) / "latecomer")
    try:
        return [root.expanduser() for root in roots]
    except RuntimeError as error:
        raise DataError("There is no home folder to keep data in: pass data_dir or set LATECOMER_DATA") from error


def _look(name: str, folder: Path) -> DatasetStatus:
    """Say what a folder holds, as far as sizes and the stamp tell."""
    arrays = known(name)
    need = sum(array.nbytes for array in arrays.values())
    if not os.path.lexists(folder):
        return DatasetStatus(name, folder, "missing", need)
    try:
        if not folder.is_dir():
            return DatasetStatus(name, folder, "foreign", 0, "it is a file, not a folder")
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        unexpected = sorted({path.name for path in folder.iterdir()} - {f"{key}.npy" for key in arrays} - {_STAMP})
    except OSError as error:
        return DatasetStatus(name, folder, "broken", 0, f"it cannot be read ({error.strerror})")
    size = sum(sizes.values())
    fault = _fault(name, folder, sizes)
    if not fault:
        return DatasetStatus(name, folder, "there", size)
    if unexpected:
        return DatasetStatus(name, folder, "foreign", size, f"{fault}, and it holds {unexpected[0]!r}")
    return DatasetStatus(name, folder, "broken", size, fault)


def _fault(name: str, folder: Path, sizes: Mapping[str, int]) -> str:
    if _STAMP not in sizes:
        return f"{_STAMP} is missing"
    try:
        stamp = json.loads((folder / _STAMP).read_text("utf-8") if sizes[_STAMP] <= _LARGEST_STAMP else "null")
        if {**stamp, "bytes": None} != {**_stamp(name, {}), "bytes": None}:
            return f"its {_STAMP} is of other data or of another version"
        stated = dict(stamp["bytes"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return f"its {_STAMP} cannot be understood"
    except OSError as error:
        return f"its {_STAMP} cannot be read ({error.strerror})"
    for key in known(name):
        file = f"{key}.npy"
        if file not in sizes:
            return f"{file} is missing"
        if sizes[file] != stated.get(file):
            return f"{file} has {sizes[file]:,} bytes instead of {stated.get(file, 0):,}"
    return ""


def _stamp(name: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    sums = {key: array.sha256 for key, array in known(name).items()}
    return {"format": _FORMAT, "name": name, "sha256": sums, "bytes": dict(sizes)}


def _open(name: str, folder: Path) -> dict[str, NDArray[Any]]:
    """Map the arrays into memory; only their headers are read."""
    arrays: dict[str, NDArray[Any]] = {}
    for key, wanted in known(name).items():
        path = folder / f"{key}.npy"
        try:
            arrays[key] = np.load(path, mmap_mode="r", allow_pickle=False)
        except OSError as error:
            raise DataError(f"Cannot read {path}: {error.strerror or error}") from error
        except (ValueError, EOFError, TypeError, SyntaxError, RecursionError) as error:
            raise DataError(f"{path} is no array: run `latecomer data get {name}` to renew it") from error
        if arrays[key].dtype != np.dtype(wanted.dtype) or arrays[key].shape != wanted.shape:
            raise DataError(f"{path} is another array: run `latecomer data get {name}` to renew it")
    return arrays


def _newer_than_stamp(name: str, folder: Path) -> bool:
    """Whether somebody has written to an array after ``get`` had checked it."""
    stamped = (folder / _STAMP).stat().st_mtime_ns
    return any((folder / f"{key}.npy").stat().st_mtime_ns > stamped for key in known(name))


def _arrays(name: str, folder: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays if every byte is right."""
    if _look(name, folder).state != "there":
        return None
    try:
        arrays = _open(name, folder)
        check(name, arrays)
    except DataError:
        return None
    return arrays


def _refuse_foreign(name: str, folder: Path) -> None:
    entry = _look(name, folder)
    if entry.state == "foreign":
        raise DataError(f"{folder} is in the way: {entry.fault}; move it away or pass another data_dir")


def _write(name: str, arrays: Mapping[str, NDArray[Any]], folder: Path) -> None:
    folder.mkdir()
    sizes = {}
    for key in known(name):
        path = folder / f"{key}.npy"
        array = np.ascontiguousarray(arrays[key])
        with path.open("wb") as file:  # not np.save, which does not say that the disk is full
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            file.write(array.reshape(-1).view(np.uint8).data)
        sizes[path.name] = path.stat().st_size
    (folder / _STAMP).write_text(json.dumps(_stamp(name, sizes), indent=1) + "\n", "utf-8")


@contextmanager
def _sentence(folder: Path, need: int) -> Iterator[None]:
    """Let an error of the disk name the folder that was asked for and what would help."""
    try:
        yield
    except OSError as error:
        message = f"{error.strerror or error} (about {need / 1e6:,.0f} MB are needed; pass another data_dir?)"
        raise OSError(error.errno or 0, message, str(folder)) from error
