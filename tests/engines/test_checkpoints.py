"""Checkpoints: whole or not there, verified, and a full disk costs a warning."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import latecomer as lc
from engine_tasks import regression
from latecomer.training import checkpoint as module
from latecomer.training import replay

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
    straight = lc.fit(regression(), steps=60, **OPTIONS)
    lc.fit(regression(), steps=60, checkpoint=folder, callbacks=[Stop(40)], **OPTIONS)
    newest = sorted(folder.glob("*.json"))[-1]
    tensors = newest.with_suffix(".safetensors")
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
    with pytest.warns(UserWarning, match="is damaged .*: going back to the one before"):
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
    assert sorted(path.name for path in tmp_path.glob("arrival-*")) == [
        f"arrival-{n:09d}.{kind}" for n in (50, 60) for kind in ("json", "safetensors")
    ]
    with pytest.raises(ValueError, match=r"checkpoints of another run \(options"):
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
        assert module._read(path)["state"]
    assert 2 < len(kept.paths()) < 11


def test_a_journal_that_cannot_be_written_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from latecomer.training.journal import Entry, Journal

    real = Journal.append

    def full(self: Journal, entry: Entry) -> None:
        if self.entries == 25:
            self.close()
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        real(self, entry)

    monkeypatch.setattr(Journal, "append", full)
    with pytest.warns(UserWarning, match="journal cannot be written"):
        result = lc.fit(regression(), steps=40, checkpoint=tmp_path, **OPTIONS)
    assert result.server.arrivals == 40


def test_a_torn_journal_is_cut_at_its_last_whole_entry(tmp_path: Path) -> None:
    lc.fit(regression(), steps=60, checkpoint=tmp_path, callbacks=[Stop(17)], **{**OPTIONS, "checkpoint_every": 100})
    for path in sorted(tmp_path.glob("arrival-*"))[2:]:  # as if it had been killed: only the start and the journal
        path.unlink()
    journal = tmp_path / "journal"
    journal.write_bytes(journal.read_bytes()[:-5])
    seen: list[int] = []

    class See(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            seen.append(outcome.arrival)

    lc.fit(regression(), steps=60, checkpoint=tmp_path, callbacks=[See()], **{**OPTIONS, "checkpoint_every": 100})
    assert seen == list(range(seen[0], 61))
    assert 16 <= seen[0] <= 18
