"""Checkpoints: atomic and verified; a full disk costs a warning."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import latecomer as lc
from engine_tasks import Die, See, data, network, regression, score
from latecomer.core import checkpoint as module
from latecomer.engines import Evaluated, Event
from latecomer.engines.inline import InlineEngine
from latecomer.training import replay
from latecomer.training.journal import Journal
from latecomer.training.run import JournaledRun
from latecomer.training.saver import Saver

OPTIONS: dict[str, Any] = {"lr": 0.05, "workers": 2, "engine": "inline", "checkpoint_every": 10}


class Stop(lc.training.Callback):
    def __init__(self, arrival: int) -> None:
        self.arrival = arrival

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == self.arrival:
            run.stop()


@pytest.mark.parametrize("harm", ["cut", "flipped", "gone", "json"])
def test_a_damaged_newest_checkpoint_falls_back_and_nothing_is_lost(harm: str, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    straight = lc.fit(regression(), steps=60, **{**OPTIONS, "checkpoint_every": None})
    lc.fit(regression(), steps=60, checkpoint=folder, callbacks=[Stop(40)], **OPTIONS)
    newest = sorted(folder.glob("*.json"))[-1]
    (tensors,) = folder.glob(f"{newest.stem}-*.safetensors")
    if harm == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-7])
    elif harm == "flipped":
        data = bytearray(tensors.read_bytes())
        data[-9] ^= 1
        tensors.write_bytes(data)
    elif harm == "gone":
        tensors.unlink()
    else:
        newest.write_text(newest.read_text()[:100])
    with pytest.warns(UserWarning, match="is damaged .*: trying the one before it"):
        resumed = lc.fit(regression(), steps=60, checkpoint=folder, record=tmp_path / "run.parquet", **OPTIONS)
    assert replay(tmp_path / "run.parquet", regression()).difference == 0.0
    # In one process the schedule is fixed, so the journal must lead back to the run that never stopped.
    assert all(torch.equal(straight.state[key], resumed.state[key]) for key in straight.state)


def test_only_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    lc.fit(regression(), steps=10, checkpoint=tmp_path, **OPTIONS)
    for path in tmp_path.glob("*.json"):
        path.write_text("{}")
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(ValueError, match="remove them to start"):
        lc.fit(regression(), steps=20, checkpoint=tmp_path, **OPTIONS)


def test_the_last_k_are_kept_and_another_run_is_refused(tmp_path: Path) -> None:
    lc.fit(regression(), steps=60, checkpoint=tmp_path, keep=2, **OPTIONS)
    for kind in ("json", "safetensors"):
        names = sorted(path.name[:17] for path in tmp_path.glob(f"*.{kind}"))
        assert names == ["arrival-000000050", "arrival-000000060"]
    with pytest.raises(ValueError, match=r"checkpoints of another run \(with another options\)"):
        lc.fit(regression(), steps=60, checkpoint=tmp_path, **{**OPTIONS, "lr": 0.06})
    assert lc.fit(regression(), steps=60, checkpoint=tmp_path, **OPTIONS).server.arrivals == 60


def test_a_full_disk_costs_a_warning_and_leaves_the_ones_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.os.fsync
    calls = []

    def full(fd: int) -> None:
        calls.append(fd)
        if 12 < len(calls) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.warns(UserWarning, match="could not be written .*No space left on device"):
        result = lc.fit(regression(), steps=100, checkpoint=tmp_path, keep=50, **OPTIONS)
    assert result.server.arrivals == 100
    monkeypatch.undo()
    kept = module.Checkpoints(tmp_path)
    assert not list(tmp_path.glob("*.part"))
    for path in kept.paths():
        assert kept._read(path)["state"]
    assert 2 < len(kept.paths()) < 11


class FullFor:
    """A file that takes half of what is written, as a full disk does, for some of the writes."""

    def __init__(self, file: Any, counted: list[int]) -> None:
        self.file, self.counted = file, counted

    def write(self, data: bytes) -> int:
        self.counted.append(len(data))
        full = 25 < len(self.counted) < 28  # the second try is the mark behind the gap
        return int(self.file.write(data[: len(data) // 2] if full else data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_journal_on_a_full_disk_costs_a_warning_and_goes_on_after_a_later_checkpoint(
    lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are missing between 12 arrivals and 30; the run dies at 37, and ``lost`` checkpoints are damaged."""
    written: list[int] = []
    real = Journal.open

    def opened(self: Journal, entries: int) -> None:
        real(self, entries)
        self._file = FullFor(self._file, written)  # type: ignore[assignment]

    monkeypatch.setattr(Journal, "open", opened)
    folder = tmp_path / "ckpt"
    with pytest.warns(UserWarning, match="journal cannot be written"), pytest.raises(RuntimeError, match="died"):
        lc.fit(regression(), steps=60, checkpoint=folder, callbacks=[Die(37)], keep=9, **OPTIONS)
    monkeypatch.undo()
    newest = [path for path in sorted(folder.glob("*.json")) if "37" not in path.name]
    for path in [folder / "arrival-000000037.json", *newest[len(newest) - lost :]]:  # the first: it was killed
        path.unlink()
    seen: list[int] = []
    options = {**OPTIONS, "record": tmp_path / "run.parquet"}
    result = lc.fit(regression(), steps=60, checkpoint=folder, callbacks=[See(seen)], **options)
    assert seen[0] == {0: 38, 1: 21, 2: 13}[lost]
    assert sorted(set(result.trace.ticket.tolist())) == list(range(60))
    assert replay(result.record or "", regression()).difference == 0.0


def test_a_truncated_journal_is_cut_at_its_last_complete_entry(tmp_path: Path) -> None:
    lc.fit(regression(), steps=60, checkpoint=tmp_path, callbacks=[Stop(17)], **{**OPTIONS, "checkpoint_every": 100})
    for path in sorted(tmp_path.glob("arrival-*"))[2:]:  # as if it had been killed: only the start and the journal
        path.unlink()
    journal = tmp_path / "journal"
    journal.write_bytes(journal.read_bytes()[:-5])
    seen: list[int] = []

    lc.fit(regression(), steps=60, checkpoint=tmp_path, callbacks=[See(seen)], **{**OPTIONS, "checkpoint_every": 100})
    assert seen == list(range(seen[0], 61))
    assert 16 <= seen[0] <= 18


@pytest.mark.parametrize("other", [{"loss": nn.functional.l1_loss}, {"data": data(64)}], ids=["loss", "data"])
def test_a_folder_of_another_task_of_the_same_shape_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    lc.fit(regression(), steps=10, checkpoint=tmp_path, **OPTIONS)
    task = lc.Task(network, other.get("loss", nn.functional.mse_loss), other.get("data", data()), batch_size=16)
    with pytest.raises(ValueError, match=r"checkpoints of another run \(with another problem\)"):
        lc.fit(task, steps=20, checkpoint=tmp_path, **OPTIONS)


class NeverEvaluates(InlineEngine):
    """Keeps the results of evaluations to itself."""

    def events(self, timeout: float | None = None) -> list[Event]:
        return [event for event in super().events(timeout) if not isinstance(event, Evaluated)]


def test_a_row_that_still_waited_for_its_metrics_is_in_the_history_of_the_resumed_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {**OPTIONS, "workers": 1, "steps": 60, "evaluate_every": 10}
    straight = lc.fit(regression(evaluate=score), **{**options, "checkpoint_every": None})
    with pytest.raises(RuntimeError, match="died"):
        lc.fit(
            regression(evaluate=score), checkpoint=tmp_path, callbacks=[Die(27)],
            **{**options, "engine": NeverEvaluates(), "checkpoint_every": 15},
        )  # fmt: skip
    resumed = lc.fit(regression(evaluate=score), checkpoint=tmp_path, **{**options, "checkpoint_every": 15})
    columns = ["update", "arrival", "train_loss", "delay", "loss"]
    assert resumed.history.select(columns).equals(straight.history.select(columns))
    assert resumed.history["loss"].null_count() == 0


class Photograph(lc.training.Callback):
    """Copies the folder at an arrival: what a server that is killed there leaves on the disk."""

    def __init__(self, folder: Path, copy: Path, arrival: int) -> None:
        self.folder, self.copy, self.arrival = folder, copy, arrival

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == self.arrival:
            self.copy.mkdir()
            for path in sorted(self.folder.glob("[aj]*")):  # arrivals and the journal
                with contextlib.suppress(FileNotFoundError):  # an old checkpoint that is just being removed
                    shutil.copy(path, self.copy)


def photographed(folder: Path, copy: Path, arrival: int) -> Path:
    shot = Photograph(folder, copy, arrival)
    lc.fit(regression(), steps=60, checkpoint=folder, callbacks=[shot], **OPTIONS)
    return copy


def goes_on(folder: Path, record: Path, arrival: int) -> None:
    """It resumes with this arrival, counts every ticket once, and replays to the bit from its very start."""
    seen: list[int] = []

    class See(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            seen.append(outcome.arrival)

    result = lc.fit(regression(), steps=60, checkpoint=folder, record=record, callbacks=[See()], **OPTIONS)
    assert seen == list(range(arrival, 61))
    assert len(set(result.trace.ticket.tolist())) == len(result.trace) == 60
    assert replay(record, regression()).difference == 0.0


def test_killed_killed_again_and_the_newest_checkpoint_damaged(tmp_path: Path) -> None:
    once = photographed(tmp_path / "a", tmp_path / "b", 33)
    entries = (once / "journal").stat().st_size
    twice = photographed(once, tmp_path / "c", 36)
    assert (twice / "journal").stat().st_size < 1.2 * entries  # what was done again is not written again
    sorted(twice.glob("*.json"))[-1].write_text("{")
    with pytest.warns(UserWarning, match="is damaged"):
        goes_on(twice, tmp_path / "run.parquet", 37)


def test_killed_while_the_journal_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = photographed(tmp_path / "a", tmp_path / "b", 37)
    done, redo = [], JournaledRun.redo

    def dying(self: JournaledRun, entry: Any, compute: Any) -> Any:
        if len(done) == 3:
            raise RuntimeError("killed")
        done.append(entry)
        return redo(self, entry, compute)

    monkeypatch.setattr(JournaledRun, "redo", dying)
    with pytest.raises(RuntimeError, match="killed"):
        lc.fit(regression(), steps=60, checkpoint=left, **OPTIONS)
    monkeypatch.undo()
    goes_on(left, tmp_path / "run.parquet", 38)


def test_a_folder_has_one_run_at_a_time(tmp_path: Path) -> None:
    saver = Saver(tmp_path, every=1, keep=1, run={})
    with pytest.raises(ValueError, match="is in use by another run"):
        Saver(tmp_path, every=1, keep=1, run={})
    saver.close()
    Saver(tmp_path, every=1, keep=1, run={}).close()


def noisy(model: Any, batch: Any) -> torch.Tensor:
    scale = float(np.random.rand() + random.random() + torch.rand(1))
    return scale * torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def unseeded() -> torch.nn.Module:
    frozen = torch.nn.Linear(3, 4).requires_grad_(False)
    return torch.nn.Sequential(frozen, torch.nn.Linear(4, 1))


@pytest.mark.parametrize("method", ["momentum", "mu2"])
def test_every_generator_is_the_tickets(method: str, tmp_path: Path) -> None:
    task = lc.Task(unseeded, noisy, data(), batch_size=16)
    first, second = (task.model(5).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    lc.fit(task, method=method, lr=0.01, workers=2, steps=30, engine="inline", record=tmp_path / "run.parquet")
    assert replay(tmp_path / "run.parquet", task).difference == 0.0
    with pytest.raises(ValueError, match="catch-up has no option 'lrr'"):
        replay(tmp_path / "run.parquet", task, method="catch-up", lrr=3)
    with pytest.raises(ValueError, match="clip_norm belongs to the task"):
        lc.fit(task, clip_norm=1.0, lr=0.01, workers=2, steps=30, engine="inline")


@pytest.mark.parametrize("option", ["checkpoint_every", "keep"])
def test_what_belongs_to_checkpoints_needs_a_folder(option: str) -> None:
    words, trace = (
        f"{option}=5 needs a folder for the checkpoints: pass checkpoint= too",
        lc.delays.Constant(3).trace(5),
    )
    with pytest.raises(ValueError, match=words):
        lc.simulate(lc.problems.quadratic(), "momentum", trace, lr=0.1, **{option: 5})
    with pytest.raises(ValueError, match=words):
        lc.fit(lc.problems.quadratic(), lr=0.1, steps=5, **{option: 5})
