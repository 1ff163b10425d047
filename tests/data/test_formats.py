"""Published data files are read right, and what is none of them meets a sentence."""

from __future__ import annotations

import gzip
import struct
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_support import FILES, IDX, idx, png, tgz
from latecomer.data import DataError, sources
from latecomer.data import formats as arrays


def test_idx_files_are_read_plain_and_gzipped() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    for raw in (idx(array), gzip.compress(idx(array))):
        assert np.array_equal(arrays.idx(raw), array)


GOOD = idx(np.arange(6).reshape(2, 3))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no IDX file of bytes: it begins with nothing"),
        (b"<html>not found</html>", "it begins with 3c68746d"),
        (GOOD[:-1], "5 bytes of data instead of the 6"),
        (GOOD + b"x", "7 bytes of data instead of the 6"),
        (b"\0\0\x08\x04" + bytes(5), "cut off in its header"),
        (b"\0\0\x0d\x01" + bytes(8), "no IDX file of bytes"),
        (b"\0\0\x08\x04" + b"\xff" * 16, "0 bytes of data instead of"),
        (gzip.compress(GOOD, mtime=0)[:-9], "cannot be unpacked"),
        (b"\x1f\x8b", "cannot be unpacked"),
        (b"\x1f\x8brubbish", "cannot be unpacked"),
    ],
)
def test_what_is_no_idx_file_gets_a_sentence(raw: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        arrays.idx(raw, "labels")
    assert str(caught.value).startswith("labels ")


def test_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_LARGEST", 10_000)
    monkeypatch.setattr(sources, "_LARGEST", 50_000)
    with pytest.raises(DataError, match="more than 10,000 bytes"):
        arrays.idx(gzip.compress(bytes(1_000_000)))
    (tmp_path / "a.tgz").write_bytes(tgz({"big": bytes(1_000_000), "a": b""}))
    with pytest.raises(DataError, match=r"a.tgz unpacks to more than 50,000 bytes"):
        sources.unpack(tmp_path / "a.tgz", ["a"])


def test_archives_give_regular_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("package/a")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match=r"a.tgz lacks package/a"):
        sources.unpack(path, ["package/a"])
    whole = tgz({"package/a": np.random.default_rng(0).bytes(50_000)})
    for cut in (10, 1000, 40_000):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"a.tgz (is damaged|lacks)"):
            sources.unpack(path, ["package/a"])


def header(width: int, height: int, depth: int = 8, color: int = 2) -> bytes:
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


ROWS = png(np.random.default_rng(0).integers(0, 256, (3, 1024, 3)).astype(np.uint8))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no PNG file"),
        (b"GIF89a" + bytes(40), "no PNG file"),
        (header(2**31 - 1, 2**31 - 1), "PNG of 2147483647x2147483647"),
        (header(1024, 10_001), "PNG of 1024x10001"),
        (header(1024, 0), "PNG of 1024x0"),
        (header(1024, 3, 16), "not rows of 1024 pixels in 24-bit color"),
        (header(1024, 3, 8, 6), "not rows of 1024 pixels in 24-bit color"),
        (header(1024, 3), "its pixels cannot be read"),
        (ROWS[:2000], "its pixels cannot be read"),
        (ROWS[:33] + header(1024, 2)[8:] + ROWS[33:], "its pixels cannot be read"),
    ],
)
def test_what_is_no_row_of_images_gets_a_sentence(raw: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        arrays.cifar_rows(raw)


@given(data=st.data())
def test_a_damaged_file_is_an_array_or_a_sentence(data: st.DataObject) -> None:
    """Nothing else may come out, whatever the bytes."""
    parse, raw = data.draw(
        st.sampled_from(
            [
                (arrays.idx, GOOD),
                (arrays.idx, gzip.compress(GOOD, mtime=0)),
                (arrays.cifar_rows, ROWS),
                (arrays.cifar_labels, b"[1, 2, 3]"),
                (arrays.cifar_batch, bytes(3073)),
            ]
        )
    )
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, min(len(changed), 80) - 1))] = data.draw(st.integers(0, 255))
    with suppress(DataError):
        parse(bytes(changed))


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[1, 2.0]", b"[true]", b"[10]", b"[-1]", b"[[1]]", b"[" * 100_000, b"\xff"]
)
def test_what_is_no_list_of_labels_gets_a_sentence(raw: bytes) -> None:
    with pytest.raises(DataError, match=r"no JSON file|no list of labels"):
        arrays.cifar_labels(raw)


@pytest.mark.parametrize("raw", [b"", bytes(3072), bytes(3074), b"\x0a" + bytes(3072)])
def test_what_is_no_batch_gets_a_sentence(raw: bytes) -> None:
    with pytest.raises(DataError, match="no CIFAR-10 batch"):
        arrays.cifar_batch(raw)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is missing"):
        arrays.mnist({name: FILES[name] for name in IDX[:3]})
