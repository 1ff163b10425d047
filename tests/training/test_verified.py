"""Everything that is read is verified: a flipped bit changes no result without a word."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import latecomer as lc
from engine_tasks import Die, See, data, regression
from latecomer._util.files import UnwritableError, atomic
from latecomer.cli.main import main
from latecomer.core.checkpoint import Checkpoints, _digest_of_state
from latecomer.core.structure import structure
from latecomer.training import replay
from latecomer.training.journal import _SIZE, Journal, _entry, _packed

OPTIONS: dict[str, Any] = {"lr": 0.05, "workers": 2, "engine": "inline", "checkpoint_every": 10}


def bits(run: lc.Run) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in run.state.values()] + [run.trace.digest.encode()]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def same_or_refused(go: Callable[[], lc.Run], expected: list[bytes]) -> str:
    """Return what happened: the same result with or without a warning, or one sentence; all else fails."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = bits(go())
        except ValueError as error:
            return "refused" if "\n" not in str(error) else "raw"
    return "another" if found != expected else "warned" if caught else "same"


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_flipped_bit_in_a_checkpoint_of_simulate_is_found(kind: str, tmp_path: Path) -> None:
    trace = lc.delays.Constant(workers=2).trace(steps=20, seed=0)

    def go(folder: Path | None) -> lc.Run:
        return lc.simulate(
            lc.problems.quadratic(),
            "momentum",
            trace,
            lr=0.1,
            checkpoint=folder,
            checkpoint_every=None if folder is None else 5,
        )

    expected = bits(go(None))
    go(tmp_path / "made")
    *_, newest = sorted((tmp_path / "made").glob(f"*.{kind}"))
    rng, folder = random.Random(1), tmp_path / "copy"
    found = []
    for _ in range(40):
        shutil.copytree(tmp_path / "made", folder)
        flip(folder / newest.name, rng.randrange(8 * newest.stat().st_size))
        found.append(same_or_refused(lambda: go(folder), expected))
        shutil.rmtree(folder)
    assert found.count("warned") > 30
    assert set(found) <= {"warned", "same"}  # there is always an older one


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    outer = json.loads(path.read_text())
    changed = change(outer)
    path.write_text(json.dumps(outer if changed is None else changed))


def deep() -> str:
    return "[" * 100_000 + "]" * 100_000


def with_state(text: str) -> Callable[[dict[str, Any]], Any]:
    """Put another state into a checkpoint, with a digest that fits."""
    return lambda outer: outer | {"state": text, "sha256": outer["sha256"] | {"state": _digest_of_state(text)}}


CRAFTED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda outer: [outer],
    "no hash of the tensors": lambda outer: outer["sha256"].pop("tensors"),
    "no hash of the state": lambda outer: outer["sha256"].pop("state") and None,
    "no hashes": lambda outer: outer | {"sha256": {}},
    "hashes of another type": lambda outer: outer | {"sha256": [1, 2]},
    "a number for a hash": lambda outer: outer["sha256"].update(tensors=3),
    "a path for a hash": lambda outer: outer["sha256"].update(tensors="../" * 21 + "x"),
    "one more entry": lambda outer: outer | {"more": 1},
    "no state": lambda outer: {key: value for key, value in outer.items() if key != "state"},
    "a state of another type": lambda outer: outer | {"state": 5},
    "a format of another type": lambda outer: outer | {"format": [4]},
    "deep nesting": with_state(deep()),
    "a state that is no dict": with_state("[1, 2]"),
    "a tensor that is not there": with_state('{"dict": [["run", {"tensor": "99"}]]}'),
    "an unhashable key": with_state('{"dict": [[[1], 2]]}'),
    "something without a kind": with_state("{}"),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_crafted_checkpoint_falls_back_to_the_one_before(what: str, tmp_path: Path) -> None:
    task = regression()
    expected = bits(lc.fit(task, steps=30, **{**OPTIONS, "checkpoint_every": None}))
    lc.fit(task, steps=30, checkpoint=tmp_path, **OPTIONS)
    newest = sorted(tmp_path.glob("*.json"))[-1]
    change = CRAFTED[what]
    rewrite(newest, lambda outer: result if isinstance(result := change(outer), (dict, list)) else None)
    with pytest.warns(UserWarning, match=r"arrival-000000030\.json is damaged .*: trying the one before it"):
        assert bits(lc.fit(task, steps=30, checkpoint=tmp_path, **OPTIONS)) == expected


def test_an_intact_checkpoint_with_something_else_inside_gets_one_sentence(tmp_path: Path) -> None:
    lc.fit(regression(), steps=30, checkpoint=tmp_path, **OPTIONS)
    newest = sorted(tmp_path.glob("*.json"))[-1]
    intact = newest.read_text()
    state = json.loads(json.loads(intact)["state"])
    inner = dict(state["dict"])
    for changed in (
        {"dict": [["run", 3]]},
        {"dict": [["run", inner["run"]], ["entries", "x"], ["gap", False], ["arrivals", 30], ["state", {"dict": []}]]},
        {"dict": [["run", inner["run"]], ["entries", 0], ["gap", False], ["arrivals", 30], ["state", {"dict": []}]]},
    ):
        newest.write_text(intact)
        rewrite(newest, with_state(json.dumps(changed)))
        with pytest.raises(ValueError, match=r"newest checkpoint cannot be loaded .*: remove it to resume"):
            lc.fit(regression(), steps=40, checkpoint=tmp_path, **OPTIONS)


@pytest.mark.parametrize("driver", ["fit", "simulate"])
def test_a_smaller_keep_never_removes_the_last_good_checkpoint(driver: str, tmp_path: Path) -> None:
    trace = lc.delays.Constant(workers=2).trace(steps=60, seed=0)

    def go(keep: int, *callbacks: Any) -> lc.Run:
        if driver == "fit":
            return lc.fit(regression(), steps=60, checkpoint=tmp_path, keep=keep, callbacks=callbacks, **OPTIONS)
        return lc.simulate(
            lc.problems.quadratic(), "momentum", trace, lr=0.1, checkpoint=tmp_path, checkpoint_every=10, keep=keep,
            callbacks=callbacks,
        )  # fmt: skip

    with pytest.raises(RuntimeError, match="died"):
        go(9, Die(47))
    for newest in sorted(tmp_path.glob("*.json"))[-2:]:  # 40 and 47 of fit, 30 and 40 of simulate
        newest.write_text("{")
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(RuntimeError, match="died"):
        go(1, Die(52 if driver == "fit" else 35))  # fit has its journal
    kept = Checkpoints(tmp_path)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert kept.newest() is not None
        assert go(1).server.arrivals == 60
    assert [path.name for path in kept.paths()] == ["arrival-000000060.json"]


# ---- the journal ----------------------------------------------------------------------------------------------------


def killed(folder: Path) -> Journal:
    """Leave what a server leaves that was killed at arrival 37: a checkpoint of the start, and a journal."""
    options = {**OPTIONS, "checkpoint_every": 100}
    with pytest.raises(RuntimeError, match="died"):
        lc.fit(regression(), steps=60, checkpoint=folder, callbacks=[Die(37)], **options)
    (folder / "arrival-000000037.json").unlink()
    return Journal(folder / "journal")


def resumed(folder: Path) -> tuple[int, list[bytes]]:
    """Resume, and return the arrival at which and the result."""
    seen: list[int] = []
    options = {**OPTIONS, "checkpoint_every": 100}
    run = lc.fit(regression(), steps=60, checkpoint=folder, callbacks=[See(seen)], **options)
    return seen[0] - 1, bits(run)


def test_a_flipped_bit_in_the_journal_is_repaired_and_told(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    journal = killed(folder)
    shutil.copytree(folder, tmp_path / "intact")
    expected = resumed(tmp_path / "intact")
    entries = journal.read(0)
    flip(journal.path, 8 * 20 * _SIZE + 77)
    damaged = journal.path.read_bytes()
    assert journal.read(0) == entries
    with pytest.warns(UserWarning, match="has a flipped bit in entry 20: it is repaired, .*; a copy is in"):
        assert resumed(folder) == expected
    assert (folder / "journal.damaged").read_bytes() == damaged
    assert not journal.look(0).repaired


def test_damage_in_the_journal_is_told_and_a_copy_is_kept(tmp_path: Path) -> None:
    journal = killed(tmp_path)
    (tmp_path / "journal.damaged").write_text("an earlier one")
    for bit in range(3):
        flip(journal.path, 8 * 20 * _SIZE + 9 * bit)
    damaged = journal.path.read_bytes()
    before, behind = journal.look(0).entries, journal.look(0).behind
    assert len(before) == 20
    assert len(before) + 1 + len(behind) == len(damaged) // _SIZE
    counted = sum(entry.kind == b"A" for entry in before)
    match = rf"damaged at entry 20: the {len(behind)} good entries .* resumes at arrival {counted} instead of 3[67] or"
    with pytest.warns(UserWarning, match=match):
        assert resumed(tmp_path)[0] == counted
    assert (tmp_path / "journal.damaged").read_text() == "an earlier one"
    assert (tmp_path / "journal.damaged-2").read_bytes() == damaged


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("missing", [1, 7, _SIZE - 1, _SIZE])
def test_an_incomplete_last_entry_is_normal(missing: int, tmp_path: Path) -> None:
    journal = killed(tmp_path)
    journal.path.write_bytes(journal.path.read_bytes()[:-missing])
    assert resumed(tmp_path)[0] in (36, 37)
    assert not list(tmp_path.glob("journal.damaged*"))


def without(content: bytes, at: int) -> bytes:
    return content[:at] + content[at + 1 :]


def flipped(content: bytes, *bits: int) -> bytes:
    number = int.from_bytes(content, "little")
    for bit in bits:
        number ^= 1 << bit
    return number.to_bytes(len(content), "little")


DAMAGED_ENDS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "two bits in the last entry": ("entry", lambda c: flipped(c, 8 * (len(c) - _SIZE) + 3, 8 * len(c) - 60)),
    "zeros in the last three": ("3 entries", lambda c: c[: -3 * _SIZE] + bytes(3 * _SIZE)),
    "zeros behind the last": ("entry", lambda c: c + bytes(_SIZE)),
    "random bytes in the last 20": ("20 entries", lambda c: c[: -20 * _SIZE] + random.Random(1).randbytes(20 * _SIZE)),
    "a byte less, 20 before the end": ("19 entries", lambda c: without(c, len(c) - 20 * _SIZE + 5)),
    "a byte more, 20 before the end": ("20 entries", lambda c: c[: -20 * _SIZE + 5] + b"z" + c[-20 * _SIZE + 5 :]),
    "a byte less in the last": ("entry", lambda c: without(c, len(c) - 20)),
}


@pytest.mark.parametrize("what", DAMAGED_ENDS)
def test_a_damaged_end_is_told_and_a_copy_is_kept(what: str, tmp_path: Path) -> None:
    journal = killed(tmp_path)
    said, change = DAMAGED_ENDS[what]
    damaged = change(journal.path.read_bytes())
    journal.path.write_bytes(damaged)
    counted = sum(entry.kind == b"A" for entry in journal.read(0))
    match = rf"The last {said} of .* cannot be read: the run resumes at arrival {counted}, .*; a copy is in journal\.da"
    with pytest.warns(UserWarning, match=match):
        assert resumed(tmp_path)[0] == counted
    assert (tmp_path / "journal.damaged").read_bytes() == damaged


def doubled(content: bytes) -> bytes:
    return content[: -10 * _SIZE] + content[-10 * _SIZE : -9 * _SIZE] + content[-10 * _SIZE :]


def swapped(content: bytes) -> bytes:
    a, b = content[-10 * _SIZE : -9 * _SIZE], content[-9 * _SIZE : -8 * _SIZE]
    return content[: -10 * _SIZE] + b + a + content[-8 * _SIZE :]


def changed(**values: Any) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        entry = _entry(content[-10 * _SIZE : -9 * _SIZE])
        assert entry is not None
        return content[: -10 * _SIZE] + _packed(entry._replace(**values)) + content[-9 * _SIZE :]

    return change


MISMATCHES: dict[str, Callable[[bytes], bytes]] = {
    "doubled": doubled,
    "swapped": swapped,
    "another time": changed(at=-1.0),
    "no time": changed(at=float("nan")),
    "another worker": changed(worker=7),
    "another ticket": changed(number=3),
    "another group": changed(kind=b"A", group=9),
    "another kind": changed(kind=b"?"),
}


@pytest.mark.parametrize("what", MISMATCHES)
def test_a_journal_that_does_not_follow_is_told_and_a_copy_is_kept(what: str, tmp_path: Path) -> None:
    journal = killed(tmp_path)
    damaged = MISMATCHES[what](journal.path.read_bytes())
    journal.path.write_bytes(damaged)
    match = (
        r"does not match its checkpoint \(.*\): its last (9|10|11) entries .* at arrival 3\d instead of 3\d; a copy is"
    )
    with pytest.warns(UserWarning, match=match):
        assert 30 <= resumed(tmp_path)[0] <= 33
    assert (tmp_path / "journal.damaged").read_bytes() == damaged


def test_a_journal_of_another_run_is_told(tmp_path: Path) -> None:
    journal, other = killed(tmp_path / "one"), tmp_path / "other"
    lc.fit(regression(), steps=60, checkpoint=other, **{**OPTIONS, "workers": 3})
    foreign = (other / "journal").read_bytes()
    journal.path.write_bytes(foreign)
    with pytest.warns(UserWarning, match=r"does not match its checkpoint .*; a copy is in journal\.damaged"):
        resumed(tmp_path / "one")
    assert (tmp_path / "one" / "journal.damaged").read_bytes() == foreign


def test_a_journal_that_ends_before_its_checkpoint_is_told(tmp_path: Path) -> None:
    lc.fit(regression(), steps=30, checkpoint=tmp_path, **OPTIONS)
    (tmp_path / "journal").write_bytes(b"")
    with pytest.warns(UserWarning, match="ends before the checkpoint of arrival 30"):
        lc.fit(regression(), steps=40, checkpoint=tmp_path, **OPTIONS)


# ---- another model --------------------------------------------------------------------------------------------------


def activated(layer: type[nn.Module]) -> lc.Task:
    torch.manual_seed(0)
    return lc.Task(nn.Sequential(nn.Linear(3, 4), layer(), nn.Linear(4, 1)), nn.functional.mse_loss, data())


class Activated(lc.problems.Problem):
    name = "activated"

    def __init__(self, layer: type[nn.Module]) -> None:
        self._task = activated(layer)

    def model(self, seed: int) -> nn.Module:
        return self._task.model(seed)

    def batch(self, sample: int, group: int) -> Any:
        return self._task.batch(sample, group)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return self._task.loss(model, batch)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("kind", [activated, Activated])
def test_another_model_of_the_same_size_is_not_taken_for_it(kind: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"lr": 0.1, "workers": 2, "engine": "inline", "steps": 20}
    run = lc.fit(kind(nn.ReLU), checkpoint=tmp_path / "ckpt", record=tmp_path / "run.parquet", **options)
    with pytest.raises(ValueError, match=r"checkpoints of another run \(with another model\)"):
        lc.fit(kind(nn.GELU), checkpoint=tmp_path / "ckpt", **options)
    assert lc.fit(kind(nn.ReLU), checkpoint=tmp_path / "ckpt", **options).resumed_at == 20
    verdict = replay(tmp_path / "run.parquet", kind(nn.GELU)).verdict
    assert "the recorded model has (1): ReLU() where this one has (1): GELU(approximate='none')" in verdict
    lc.simulate(kind(nn.ReLU), "momentum", run.trace, lr=0.1, checkpoint=tmp_path / "s")
    with pytest.raises(ValueError, match="another model"):
        lc.simulate(kind(nn.Tanh), "momentum", run.trace, lr=0.1, checkpoint=tmp_path / "s")


def test_a_structure_has_no_addresses() -> None:
    class Layer(nn.Module):
        def extra_repr(self) -> str:
            return f"function={(lambda: 0)}"

    assert "<lambda> at 0x>" in structure(Layer())
    assert structure(Layer()) == structure(Layer())


# ---- outputs that collide -------------------------------------------------------------------------------------------


def test_outputs_that_overwrite_each_other_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    seen: list[int] = []
    for outputs, match in (
        ({"record": "r.safetensors"}, "call it r.parquet"),
        ({"record": "r.txt"}, r"Invalid record: 'r.txt' \(it is a Parquet file.*: call it r.parquet"),
        ({"record": "r"}, "call it r.parquet"),
        ({"record": "a.parquet", "checkpoint": "./a.parquet"}, "record and checkpoint would both write"),
        ({"record": "a.parquet", "tensorboard": "link/a.parquet"}, "record and tensorboard would both write"),
        (
            {"record": "a.parquet", "checkpoint": "a.parquet/b"},
            "record would write .*a.parquet, and checkpoint needs a folder",
        ),
        ({"record": "c/journal.parquet", "checkpoint": "c"}, "belongs to the checkpoints"),
        ({"record": "link/c/arrival-1.parquet", "checkpoint": "c"}, "belongs to the checkpoints"),
        ({"tensorboard": ""}, "expected the name of a folder"),
        ({"record": ""}, "expected the name of a file"),
    ):
        with pytest.raises(ValueError, match=match):
            lc.fit(regression(), lr=0.1, workers=1, engine="inline", steps=5, callbacks=[See(seen)], **outputs)
    assert not seen
    script = tmp_path / "verified_outputs.py"
    script.write_text("import latecomer as lc\n\n\ndef task():\n    return lc.problems.quadratic()\n")
    for record, save in (
        ("m.parquet", "m.safetensors"),
        ("m.parquet", "link/m.safetensors"),
        ("m.parquet", "./m.parquet"),
    ):
        words = ["train", f"{script}:task", "--engine", "inline", "--steps", "5", "--record", record, "--save", save]
        assert main(words) == 2
        assert "would both write" in capsys.readouterr().err
    assert not list(tmp_path.glob("m*"))


def test_a_record_is_verified(tmp_path: Path) -> None:
    task = regression()
    lc.fit(task, lr=0.1, workers=2, engine="inline", steps=20, record=tmp_path / "run.parquet")
    beside = tmp_path / "run.safetensors"
    intact = beside.read_bytes()
    assert replay(tmp_path / "run.parquet", task).difference == 0.0
    flip(beside, 8 * len(intact) - 9)
    with pytest.raises(ValueError, match=r"run\.safetensors is damaged: it does not match its SHA-256"):
        replay(tmp_path / "run.parquet", task)
    beside.write_bytes(intact)
    lc.fit(task, lr=0.1, workers=3, engine="inline", steps=20, record=tmp_path / "other.parquet")
    shutil.copy(tmp_path / "other.safetensors", beside)
    with pytest.raises(ValueError, match=r"run\.safetensors belongs to another run than run\.parquet"):
        replay(tmp_path / "run.parquet", task)


# ---- temporary files ------------------------------------------------------------------------------------------------


def test_temporary_files_cannot_be_foreseen_and_keep_permissions(tmp_path: Path) -> None:
    target, names = tmp_path / "file", []
    umask = os.umask(0o027)
    try:
        for _ in range(2):
            with atomic(target) as temporary:
                assert temporary.is_file()
                names.append(temporary.name)
                temporary.write_text("new")
        assert stat.S_IMODE(target.stat().st_mode) == 0o640
        target.chmod(0o604)
        with atomic(target) as temporary:
            temporary.write_text("newer")
        assert stat.S_IMODE(target.stat().st_mode) == 0o604
    finally:
        os.umask(umask)
    assert names[0] != names[1]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(UnwritableError, match="name too long"), atomic(tmp_path / ("x" * 250)):
        pass


def test_leftovers_of_a_killed_process_are_removed_by_the_next_run(tmp_path: Path) -> None:
    with atomic(tmp_path / "arrival-000000010.json") as temporary:
        name = temporary.name
    (tmp_path / "arrival-000000010.json").unlink()
    (tmp_path / name).write_text("half")
    lc.fit(regression(), steps=10, checkpoint=tmp_path, **OPTIONS)
    assert not (tmp_path / name).exists()
