"""Going on after the server ended: at its worst moments, with what it left on the disk."""

from __future__ import annotations

import errno
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import latecomer as lc
from engine_tasks import Die, Numpy, See, Trouble, data, network, regression, score
from latecomer.core import checkpoint as module
from latecomer.core.checkpoint import Checkpoints
from latecomer.engines import Evaluated, Event
from latecomer.engines.inline import InlineEngine
from latecomer.training import replay
from latecomer.training.journal import Entry, Journal

OPTIONS: dict[str, Any] = {"lr": 0.05, "workers": 2, "engine": "inline", "checkpoint_every": 10}
FULL = OSError(errno.ENOSPC, "No space left on device")


def without_last_checkpoint(folder: Path, arrival: int) -> None:
    """Remove the checkpoint of the end: a server that is killed does not write one."""
    (folder / f"arrival-{arrival:09d}.json").unlink()


def test_nothing_is_counted_before_the_first_checkpoint_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Checkpoints.write

    def only_the_first(self: Checkpoints, arrivals: int, state: dict[str, Any]) -> Path:
        if arrivals:
            raise FULL
        return real(self, arrivals, state)

    monkeypatch.setattr(Checkpoints, "write", only_the_first)
    with pytest.warns(UserWarning, match="could not be written"), pytest.raises(RuntimeError, match="died"):
        lc.fit(regression(), steps=60, checkpoint=tmp_path, callbacks=[Die(9)], **OPTIONS)
    monkeypatch.undo()
    seen: list[int] = []
    lc.fit(regression(), steps=60, checkpoint=tmp_path, callbacks=[See(seen)], **OPTIONS)
    assert seen == list(range(10, 61))


def test_without_a_first_checkpoint_there_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Checkpoints, arrivals: int, state: dict[str, Any]) -> Path:
        raise FULL

    monkeypatch.setattr(Checkpoints, "write", never)
    seen: list[int] = []
    with pytest.raises(OSError, match="No space left"):
        lc.fit(regression(), steps=60, checkpoint=tmp_path, callbacks=[See(seen)], **OPTIONS)
    assert not seen


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("write", [1, 2])
def test_a_checkpoint_of_the_same_arrival_is_replaced_atomically(
    write: int, killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Checkpoints(tmp_path, keep=1)
    kept.write(20, {"x": torch.zeros(3)})
    real, calls = module.atomic_flushed, []

    def ends(path: Path, data: bytes) -> None:
        calls.append(path)
        if len(calls) == write:
            raise FULL
        real(path, data)

    monkeypatch.setattr(module, "atomic_flushed", ends)
    if killed:  # no cleanup
        monkeypatch.setattr(Checkpoints, "_remove_old", lambda self: None)
    with pytest.raises(OSError, match="No space"):
        kept.write(20, {"x": torch.ones(3)})
    monkeypatch.undo()
    assert torch.equal((kept.newest() or {})["x"], torch.zeros(3))
    kept.write(30, {"x": torch.ones(3)})
    assert len(list(tmp_path.glob("arrival-*"))) == 2  # what was left over is gone


class Failing:
    """A file whose writes fail, by their number."""

    def __init__(self, file: Any, counted: list[int], bad: range) -> None:
        self.file, self.counted, self.bad = file, counted, bad

    def write(self, data: bytes) -> int:
        self.counted.append(len(data))
        if len(self.counted) in self.bad:
            raise FULL
        return int(self.file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_gap_in_the_journal_is_remembered_over_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark itself could not be written; the run died, went on, died again, and then its checkpoints broke."""
    written: list[int] = []
    real = Journal.open

    def opened(self: Journal, entries: int) -> None:
        real(self, entries)
        self._file = Failing(self._file, written, range(25, 28))  # type: ignore[assignment]

    folder = tmp_path / "ckpt"
    monkeypatch.setattr(Journal, "open", opened)
    with pytest.warns(UserWarning, match="journal cannot be written"), pytest.raises(RuntimeError, match="died"):
        lc.fit(regression(), steps=80, checkpoint=folder, callbacks=[Die(26)], keep=9, **OPTIONS)
    monkeypatch.undo()
    without_last_checkpoint(folder, 26)
    seen: list[int] = []
    with pytest.raises(RuntimeError, match="died"):
        lc.fit(regression(), steps=80, checkpoint=folder, callbacks=[See(seen), Die(47)], keep=9, **OPTIONS)
    assert seen[0] == 21  # from the checkpoint at 20, which has no journal behind it
    for path in sorted(folder.glob("arrival-*.json"))[2:]:
        path.unlink()
    seen.clear()
    record = tmp_path / "run.parquet"
    result = lc.fit(regression(), steps=80, checkpoint=folder, callbacks=[See(seen)], record=record, **OPTIONS)
    assert seen[0] == 12  # from the checkpoint at 10, as far as the journal had got
    assert sorted(result.trace.ticket.tolist()) == list(range(80))
    assert replay(record, regression()).difference == 0.0


@pytest.mark.parametrize("what", [(b"A", 1, 70), (b"I", 0, 70), (b"L", 0, 3)])
def test_a_journal_that_does_not_fit_is_followed_as_far_as_it_does(
    what: tuple[bytes, int, int], tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="died"):
        lc.fit(regression(), steps=60, checkpoint=tmp_path, callbacks=[Die(17)], **OPTIONS)
    without_last_checkpoint(tmp_path, 17)
    journal = Journal(tmp_path / "journal")
    journal.open(len(journal.read(0)))
    journal.append(Entry(*what, 0, 99.0))
    journal.close()
    seen: list[int] = []
    with pytest.warns(UserWarning, match="does not match its checkpoint"):
        lc.fit(regression(), steps=60, checkpoint=tmp_path, callbacks=[See(seen)], **OPTIONS)
    assert seen == list(range(18, 61))


def test_a_ticket_that_killed_its_worker_before_does_not_kill_the_server_when_it_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    problem = Trouble(tmp_path / "tried", "kill", tickets=(12,), times=2)
    options: dict[str, Any] = {**OPTIONS, "engine": "local", "workers": 1, "checkpoint": tmp_path / "ckpt"}
    with pytest.raises(RuntimeError, match="died"):
        lc.fit(problem, steps=30, callbacks=[Die(17)], **options)
    without_last_checkpoint(tmp_path / "ckpt", 17)
    for path in (tmp_path / "tried").iterdir():  # it kills again, twice
        path.unlink()
    seen: list[int] = []
    result = lc.fit(problem, steps=30, callbacks=[See(seen)], record=tmp_path / "run.parquet", **options)
    assert seen == list(range(18, 31))
    assert (result.deaths, result.reissued) == (4, 2)  # two before the server ended, two as it was done again
    assert replay(tmp_path / "run.parquet", problem).difference == 0.0


def test_attempts_are_remembered(tmp_path: Path) -> None:
    """A ticket that has failed twice when the server ends has one attempt left."""
    (tmp_path / "tried").mkdir()
    problem = Trouble(tmp_path / "tried", "raise", tickets=(12,), times=50)
    options: dict[str, Any] = {**OPTIONS, "workers": 1, "checkpoint": tmp_path / "ckpt", "steps": 30}

    class Dying(InlineEngine):
        failures = 0

        def events(self, timeout: float | None = None) -> list[Event]:
            found = super().events(timeout)
            self.failures += sum(type(event).__name__ == "Failed" for event in found)
            if self.failures == 3:
                raise RuntimeError("died")
            return found

    with pytest.raises(RuntimeError, match="died"):
        lc.fit(problem, **{**options, "engine": Dying()})
    without_last_checkpoint(tmp_path / "ckpt", 12)
    with pytest.warns(UserWarning, match="Ticket 12 .* failed 3 times"):
        result = lc.fit(problem, **options)
    assert result.failures == 3
    assert list(result.given_up or ()) == [12]


class Stuck(InlineEngine):
    """Never reports an evaluation; when the server waits for one, it is interrupted."""

    def events(self, timeout: float | None = None) -> list[Event]:
        found = [event for event in super().events(timeout) if not isinstance(event, Evaluated)]
        if timeout == 1.0:
            signal.raise_signal(signal.SIGINT)
        return found


def test_an_interrupt_while_the_server_waits_for_an_evaluation_leaves_a_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {**OPTIONS, "workers": 1, "steps": 60, "evaluate_every": 10, "checkpoint": tmp_path}
    straight = lc.fit(regression(evaluate=score), **{**options, "checkpoint": None, "checkpoint_every": None})
    with pytest.raises(KeyboardInterrupt):
        lc.fit(regression(evaluate=score), **{**options, "engine": Stuck()})
    assert sorted(tmp_path.glob("*.json"))[-1].stem == "arrival-000000030"
    resumed = lc.fit(regression(evaluate=score), **options)
    columns = ["update", "arrival", "train_loss", "delay", "loss"]
    assert resumed.history.select(columns).equals(straight.history.select(columns))


def test_an_evaluation_may_be_left_out_or_added_when_a_run_goes_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {**OPTIONS, "checkpoint": tmp_path, "evaluate_every": 10}
    with pytest.raises(RuntimeError, match="died"):
        lc.fit(regression(evaluate=score), steps=60, callbacks=[Die(17)], **{**options, "engine": NeverEvaluates()})
    without = lc.fit(regression(), steps=40, **options)
    assert without.history["arrival"].to_list() == [0, 10, 20, 30, 40]
    added = lc.fit(regression(evaluate=score), steps=60, **options)
    assert added.history["loss"].is_null().to_list() == [True] * 5 + [False] * 2


class NeverEvaluates(InlineEngine):
    """Keeps the results of evaluations to itself."""

    def events(self, timeout: float | None = None) -> list[Event]:
        return [event for event in super().events(timeout) if not isinstance(event, Evaluated)]


def decay(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def test_another_scheduler_is_another_run_and_replay_needs_the_same(tmp_path: Path) -> None:
    folder, record = tmp_path / "ckpt", tmp_path / "run.parquet"
    problem = lc.problems.quadratic()
    lc.fit(problem, steps=30, checkpoint=folder, scheduler=decay, record=record, **OPTIONS)
    with pytest.raises(ValueError, match=r"another run.*scheduler"):
        lc.fit(problem, steps=60, checkpoint=folder, **OPTIONS)
    assert replay(record, problem, scheduler=decay).difference == 0.0
    without = replay(record, problem)
    assert without.difference is not None
    assert without.difference > 0
    assert "test_resuming.decay, and replayed with None" in without.verdict


def test_a_refused_call_does_not_keep_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lr") as kept:
        lc.fit(regression(), steps=20, checkpoint=tmp_path, **{**OPTIONS, "lr": -1.0})
    assert lc.fit(regression(), steps=20, checkpoint=tmp_path, **OPTIONS).server.arrivals == 20
    assert kept.value


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    others = [tmp_path / "dataset.part1.rar", tmp_path / "notes.partial"]
    for path in others:
        path.write_text("mine")
    lc.fit(regression(), steps=20, checkpoint=tmp_path, **OPTIONS)
    assert all(path.exists() for path in others)


class Counting(torch.utils.data.Sampler[int]):
    """Another order every time, whatever is seeded."""

    def __init__(self) -> None:
        self.times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return iter([(i + self.times) % 128 for i in range(128)])


@pytest.mark.parametrize("make", ["torch", "inside", "numpy"])
def test_a_sampler_with_a_generator_of_its_own_follows_the_ticket(make: str, tmp_path: Path) -> None:
    own = torch.utils.data.RandomSampler(data(), generator=torch.Generator().manual_seed(3))
    made: dict[str, Any] = {"torch": own, "inside": torch.utils.data.BatchSampler(own, 16, True), "numpy": Numpy()}
    size = None if make == "inside" else 16  # a sampler of batches has its own
    task = lc.Task(network, nn.functional.mse_loss, data(), batch_size=size, sampler=made[make])
    lc.fit(task, steps=40, record=tmp_path / "run.parquet", lr=0.05, workers=2)
    assert replay(tmp_path / "run.parquet", task).difference == 0.0
    assert replay(tmp_path / "run.parquet", task).difference == 0.0  # though it has been gone through before


def test_a_sampler_that_cannot_be_repeated_is_refused() -> None:
    task = lc.Task(network, nn.functional.mse_loss, data(), batch_size=16, sampler=Counting())
    with pytest.raises(ValueError, match="gives another order every time"):
        lc.fit(task, steps=10, lr=0.05, engine="inline")
