"""Datasets come whole or not at all, one process at a time, and a bad folder meets a sentence. No network."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from data_support import ARRAYS, Fake, left, same, tiny, use  # noqa: F401
from latecomer import data
from latecomer.cli import data as cli_data
from latecomer.cli import main
from latecomer.data import DataError, store


def fails(words: str) -> Callable[[Path], dict[str, Any]]:
    def give(folder: Path) -> dict[str, Any]:
        raise DataError(words)

    return give


def test_get_then_load_maps_the_arrays_and_asks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    use(monkeypatch, fake)
    calls: list[tuple[int, int | None]] = []
    folder = data.get("mnist", progress=lambda done, total: calls.append((done, total)))
    assert folder == tmp_path / "cache" / "latecomer" / "mnist" == data.where("mnist") == data.get("mnist")
    assert (fake.asked, calls) == (1, [(1, 2)])
    assert left(folder.parent) == ["mnist"]
    loaded = data.load("mnist")
    assert same(loaded)
    assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in loaded.values())
    assert {str(array.dtype) for array in loaded.values()} == {"uint8", "int64"}


def test_load_does_not_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Fake())
    data.get("mnist")
    monkeypatch.setattr(store, "check", lambda *_: pytest.fail("load reads every byte"))
    assert same(data.load("mnist"))


def test_a_file_that_was_written_to_after_the_check_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Fake())
    folder = data.get("mnist")
    path, stamp = folder / "train_images.npy", folder / "stamp.json"
    long_ago = stamp.stat().st_mtime_ns - 10**12
    os.utime(stamp, ns=(long_ago, long_ago))  # as if the arrays had been written to since
    assert same(data.load("mnist"))  # the same bytes ...
    assert stamp.stat().st_mtime_ns > long_ago  # ... which need not be looked at again
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(stamp, ns=(long_ago, long_ago))
    with pytest.raises(DataError, match=r"is broken: .*run `latecomer data get mnist` to renew it"):
        data.load("mnist")


def test_it_is_looked_for_in_the_argument_the_variable_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Fake())
    cached = data.get("mnist")
    use(monkeypatch)
    monkeypatch.setenv("LATECOMER_DATA", str(tmp_path / "shared"))
    assert data.get("mnist") == data.where("mnist") == cached
    assert data.where("cifar10") == tmp_path / "shared" / "cifar10"
    own = data.get("mnist", tmp_path / "own", offline=True)  # asked for there, so it is copied
    assert own == data.where("mnist", str(tmp_path / "own")) == tmp_path / "own" / "mnist"
    assert same(data.load("mnist", tmp_path / "own"))
    monkeypatch.setenv("LATECOMER_DATA", str(tmp_path / "own"))
    assert data.where("mnist") == own
    (own / "test_labels.npy").unlink()
    assert data.get("mnist") == own  # what load would find is mended, though the cache has it too
    assert same(data.load("mnist"))


def test_a_folder_that_is_named_is_not_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Fake())
    cached, wrong = data.get("mnist"), tmp_path / "wrong"
    with pytest.raises(DataError, match=r"There is no folder '.*wrong' to read mnist from: pass another data_dir"):
        data.load("mnist", wrong)
    monkeypatch.setenv("LATECOMER_DATA", "")  # the commands set it
    for words in (["data", "list"], ["run", "--problem", "mnist"], ["sweep", "smoke"], ["reproduce", "mnist"]):
        assert main([*words, "--data-dir", str(wrong)]) == 2
        assert f"Invalid --data-dir value: there is no folder '{wrong}'" in " ".join(capsys.readouterr().err.split())
    assert not wrong.exists()
    wrong.mkdir()
    with pytest.warns(UserWarning, match=r"mnist is not in .*wrong; it is read from .*cache.*mnist"):
        assert same(data.load("mnist", wrong))
    assert same(data.load("mnist", wrong))  # told once
    assert main(["data", "get", "mnist", "--data-dir", str(wrong)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"mnist was in {cached}, and has been copied mnist is in {wrong / 'mnist'}" in said
    assert main(["data", "get", "mnist", "--data-dir", str(wrong)]) == 0
    assert "copied" not in capsys.readouterr().out


def test_offline_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    use(monkeypatch, fake)
    with pytest.raises(DataError, match="may not be fetched offline"):
        data.get("mnist", tmp_path, offline=True)
    assert fake.asked == 0


@pytest.mark.parametrize("name", ["imagenet", "", "../mnist", None, 3])
def test_an_unknown_name_is_refused_by_everything(name: Any) -> None:
    for call in (data.get, data.load, data.where):
        with pytest.raises(DataError, match="Invalid name value"):
            call(name)


def got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use(monkeypatch, Fake())
    return data.get("mnist", tmp_path)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (lambda folder: (folder / "test_labels.npy").unlink(), "test_labels.npy is missing"),
    "short file": (lambda folder: os.truncate(folder / "train_images.npy", 150), "train_images.npy has 150 bytes"),
    "no stamp": (lambda folder: (folder / "stamp.json").unlink(), "stamp.json is missing"),
    "other stamp": (lambda folder: (folder / "stamp.json").write_text('{"format": 9}'), "another version"),
    "a list": (lambda folder: (folder / "stamp.json").write_text("[]"), "cannot be understood"),
    "rubbish": (lambda folder: (folder / "stamp.json").write_bytes(b"\xff\xfe{"), "cannot be understood"),
    "deep": (lambda folder: (folder / "stamp.json").write_text("[" * 60_000), "cannot be understood"),
    "huge": (lambda folder: (folder / "stamp.json").write_text(" " * 100_000), "cannot be understood"),
    "folder": (lambda folder: ((folder / "stamp.json").unlink(), (folder / "stamp.json").mkdir()), "is missing"),
    "header": (lambda folder: (folder / "test_labels.npy").write_bytes(b"\x93NUMPY" + bytes(138)), "no array"),
    "pickle": (
        lambda folder: (folder / "test_labels.npy").write_bytes(
            (folder / "test_labels.npy").read_bytes().replace(b"'<i8'", b"'|O' ")
        ),
        "no array",
    ),
    "type": (
        lambda folder: (folder / "test_labels.npy").write_bytes(
            (folder / "test_labels.npy").read_bytes().replace(b"'<i8'", b"'<f8'")
        ),
        "another array",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_broken_folder_is_a_sentence_for_load_and_mended_by_get(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, words = DAMAGE[name]
    folder = got(tmp_path, monkeypatch)
    damage(folder)
    with pytest.raises(DataError, match=words) as caught:
        data.load("mnist", tmp_path)
    assert "run `latecomer data get mnist`" in str(caught.value)
    use(monkeypatch, Fake(give=fails("no luck")))
    with pytest.raises(DataError, match="no luck"):
        data.get("mnist", tmp_path)
    use(monkeypatch, Fake())
    assert data.get("mnist", tmp_path) == folder
    assert same(data.load("mnist", tmp_path))
    assert left(tmp_path) == ["mnist"]


def test_a_flipped_bit_is_found_by_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = got(tmp_path, monkeypatch)
    flip(folder / "train_images.npy")
    assert data.listing(tmp_path)[0].state == "there"  # as far as sizes options
    fake = Fake()
    use(monkeypatch, fake)
    data.get("mnist", tmp_path)
    assert fake.asked == 1
    assert same(data.load("mnist", tmp_path))


def test_somebody_elses_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    use(monkeypatch, fake)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "thesis.txt").write_text("years")
    for call in (data.get, data.load):
        with pytest.raises(DataError, match=r"holds 'thesis.txt'; move it away or pass another data_dir"):
            call("mnist", tmp_path)
    assert (tmp_path / "mnist" / "thesis.txt").read_text() == "years"
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "mnist").write_text("a file")
    for call in (data.get, data.load):
        with pytest.raises(DataError, match="it is a file, not a folder"):
            call("mnist", tmp_path / "file")
    assert fake.asked == 0


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Fake())
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="needed; pass another data_dir") as caught:
        data.get("mnist", tmp_path / "file" / "deeper")
    assert caught.value.filename == str(tmp_path / "file" / "deeper" / "mnist")

    def locked(*_: Any, **__: Any) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", "somewhere")

    monkeypatch.setattr(store.tempfile, "mkdtemp", locked)
    with pytest.raises(PermissionError, match=r"Permission denied .about 0 MB are needed"):
        data.get("mnist", tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_locked_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Fake())
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="pass another data_dir"):
        data.get("mnist", tmp_path)
    tmp_path.chmod(0o700)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = got(tmp_path, monkeypatch)
    flip(folder / "train_images.npy")
    before = (folder / "train_images.npy").read_bytes()

    def full(name: str, made: Any, where: Path) -> None:
        where.mkdir()
        (where / "train_images.npy").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", str(where))

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write", full)
        with pytest.raises(OSError, match="No space left on device") as caught:
            data.get("mnist", tmp_path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(folder))
    assert (folder / "train_images.npy").read_bytes() == before
    assert left(tmp_path) == ["mnist"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(folder: Path) -> dict[str, Any]:
        raise KeyboardInterrupt

    use(monkeypatch, Fake(give=interrupted))
    with pytest.raises(KeyboardInterrupt):
        data.get("mnist", tmp_path)
    assert left(tmp_path) == []


CHILD = """
import sys, time
from pathlib import Path
import numpy as np
from latecomer import data
root, pause = Path(sys.argv[1]), float(sys.argv[2])
made = {name: np.arange(3) for name in ("train_images", "train_labels", "test_images", "test_labels")}
class Slow:
    def arrays(self, folder, progress):
        (folder / "half").write_text("...")
        with open(root / "asked", "a") as log:
            log.write("x")
        time.sleep(pause)
        return made
data.KNOWN["mnist"] = {k: data.Known(a.dtype.str, a.shape, data.sha256(a)) for k, a in made.items()}
data.SOURCES["mnist"] = (Slow(),)
data.get("mnist", root / "own")
print(data.load("mnist", root / "own")["test_labels"].sum())
"""


def child(root: Path, pause: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(root), str(pause)], stdout=subprocess.PIPE, text=True)


def test_of_several_processes_one_fetches_and_all_load(tmp_path: Path) -> None:
    running = [child(tmp_path, 1.0) for _ in range(3)]
    assert [process.communicate(timeout=120)[0].strip() for process in running] == ["3"] * 3
    assert (tmp_path / "asked").read_text() == "x"
    assert left(tmp_path / "own") == ["mnist"]


def test_what_a_killed_process_left_is_swept_up(tmp_path: Path) -> None:
    process = child(tmp_path, 60)
    end = time.monotonic() + 30
    while not (tmp_path / "asked").exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [name for name in left(tmp_path / "own") if name.endswith(".part")]
    assert child(tmp_path, 0).communicate(timeout=120)[0].strip() == "3"
    assert left(tmp_path / "own") == ["mnist"]


def test_threads_may_ask_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(give=lambda folder: (time.sleep(0.2), ARRAYS)[1])
    use(monkeypatch, fake)
    threads = [threading.Thread(target=data.get, args=("mnist", tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake.asked == 1
    assert same(data.load("mnist", tmp_path))


def said(command: cli_data.Get | cli_data.List) -> str:
    console = Console(file=io.StringIO(), width=200)
    command.run(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_commands_say_where_everything_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Fake())
    assert f"mnist is in {tmp_path / 'mnist'}: 0 MB, every byte checked" in said(cli_data.Get("mnist", tmp_path))
    (tmp_path / "cifar10").mkdir()
    listed = said(cli_data.List(tmp_path))
    assert "there" in listed
    assert "broken" in listed
    assert f"{tmp_path / 'cifar10'}: stamp.json is missing" in listed
    (tmp_path / "cifar10").rmdir()
    assert "missing" in said(cli_data.List(tmp_path))
