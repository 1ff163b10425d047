"""Workers that join during a run: counted, recorded, resumed and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import latecomer as lc
from engine_tasks import regression, score
from latecomer.engines import Event, Ready, Slot, WorkerSpec
from latecomer.engines.inline import InlineEngine
from latecomer.testing import KillAt
from latecomer.training import faults, replay


class Late(InlineEngine):
    """Some workers start only when a test says so."""

    def __init__(self, late: set[int]) -> None:
        self.late, self.kept = late, dict[int, Ready]()

    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        made = super().start(spec, seats, slots)
        self.kept = {
            event.seat: event for event in self._events if isinstance(event, Ready) and event.seat in self.late
        }
        self._events = type(self._events)(event for event in self._events if event.seat not in self.late)
        return made

    def come(self, seat: int) -> None:
        self._events.append(self.kept.pop(seat))


class OneByOne(Late):
    """Late workers start one after the other, each when there are no other events."""

    def __init__(self, late: set[int]) -> None:
        super().__init__(late)
        self.seen: list[int] = []

    def events(self, timeout: float | None = None) -> list[Event]:
        found = super().events(timeout)
        if not found and self.kept:
            self.seen.append(len(self._waiting))
            self.come(min(self.kept))
        return found


class Come(lc.training.Callback):
    """Starts late workers at given arrivals."""

    def __init__(self, *when: tuple[int, int], stop: int | None = None) -> None:
        self.when, self.stop = when, stop

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        for seat, arrival in self.when:
            if arrival == outcome.arrival:
                run.engine.come(seat)
        if outcome.arrival == self.stop:
            run.stop()


OPTIONS: dict[str, Any] = {"method": "ordered-momentum", "lr": 0.05, "beta": 0.2, "workers": 2, "max_workers": 4}


def test_workers_join_out_of_order_and_the_run_replays(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    with pytest.warns(UserWarning, match="A worker has joined: there are [34], more than the 2 that"):
        result = lc.fit(
            regression(), steps=60, engine=Late({2, 3}), record=path, callbacks=[Come((3, 10), (2, 25))], **OPTIONS
        )
    header = result.trace.header
    assert [worker for _, worker in header.joined] == [2, 3]
    assert header.joined[0][0] < header.joined[1][0]
    assert set(result.trace.worker.tolist()) == {0, 1, 2, 3}
    firsts = [int((result.trace.worker == worker).argmax()) for worker in (2, 3)]
    assert [result.trace.status[row] for row in firsts] == ["zero", "zero"]
    assert replay(path, regression()).difference == 0.0


def test_a_worker_that_joined_out_of_order_can_be_killed_and_evaluations_stay_correct(tmp_path: Path) -> None:
    """The server's worker 2 is in the engine's seat 3 here, and snapshots come after the slots of all seats."""
    path, kills = tmp_path / "run.parquet", KillAt((2, 35), (3, 45), (2, 60))
    with pytest.warns(UserWarning, match="A worker has joined"):
        result = lc.fit(
            regression(evaluate=score), steps=60, engine=Late({2, 3}), record=path, evaluate_every=5,
            callbacks=[Come((3, 10), (2, 25)), kills], **OPTIONS,
        )  # fmt: skip
    assert result.deaths == 3
    assert kills.fail_at == []
    again = replay(path, regression(evaluate=score), evaluate_every=5)
    assert again.difference == 0.0
    assert result.history["loss"].to_list() == again.run.history["loss"].to_list()


def test_joined_workers_are_there_after_a_restart(tmp_path: Path) -> None:
    options = {**OPTIONS, "checkpoint": tmp_path / "ckpt", "checkpoint_every": 100, "steps": 60}
    with pytest.warns(UserWarning, match="A worker has joined"):
        lc.fit(regression(), engine=Late({2, 3}), callbacks=[Come((3, 10), stop=30)], **options)
    for path in sorted((tmp_path / "ckpt").glob("arrival-*"))[2:]:  # as if killed: the start and the journal are left
        path.unlink()
    path = tmp_path / "run.parquet"
    result = lc.fit(regression(), engine=Late({3}), record=path, **options)
    assert result.server.workers == 3
    assert (result.trace.worker[30:] == 2).any()
    assert replay(path, regression()).difference == 0.0
    with pytest.raises(ValueError, match="pass max_workers=3"):
        lc.fit(regression(), engine="inline", **{**options, "max_workers": 2, "steps": 70})


def twice(trace: lc.Trace) -> list[int]:
    applied = trace.version[trace.status == "applied"]
    versions, times = np.unique(applied, return_counts=True)
    return [int(version) for version in versions[times > 1]]


@pytest.mark.parametrize(
    ("late", "come", "options"),
    [
        ({2}, [(2, 20)], {"workers": 3, "min_workers": 2, "max_workers": 3}),
        ({2}, [(2, 20)], {"workers": 2, "max_workers": 3}),
        ({0, 1}, [(0, 20), (1, 30)], {"workers": 2, "max_workers": 4}),
        ({0, 2}, [(2, 20), (0, 30)], {"workers": 3, "min_workers": 1, "max_workers": 4}),
    ],
)
@pytest.mark.filterwarnings("ignore:A worker has joined")
def test_no_version_counts_twice_when_workers_join_late(
    late: set[int], come: list[tuple[int, int]], options: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "run.parquet"
    result = lc.fit(
        regression(), steps=60, engine=Late(late), callbacks=[Come(*come)], record=path, **{**OPTIONS, **options}
    )
    assert twice(result.trace) == []
    assert len(set(result.trace.worker.tolist())) == max(options.values())
    assert replay(path, regression()).difference == 0.0


@pytest.mark.parametrize("more", [{"workers": 3, "min_workers": 1, "max_workers": 3}, {"workers": 2, "max_workers": 3}])
@pytest.mark.filterwarnings("ignore:A worker has joined")
def test_tickets_of_absent_workers_go_to_others(more: dict[str, int], tmp_path: Path) -> None:
    options = {**OPTIONS, **more, "checkpoint": tmp_path / "ckpt", "checkpoint_every": 10}
    lc.fit(regression(), engine="inline", callbacks=[Come(stop=31)], steps=100, **options)
    path = tmp_path / "run.parquet"
    result = lc.fit(regression(), engine=Late({2}), steps=100, record=path, **options)
    tickets = np.sort(result.trace.ticket[result.trace.status != "lost"])
    assert (np.diff(tickets) == 1).sum() >= 97  # but for what is in flight in the end, all have been counted
    assert result.reissued == 3 - more.get("min_workers", more["workers"])
    assert result.trace.header.given_up == ()
    assert replay(path, regression()).difference == 0.0


def test_the_run_begins_with_enough_workers() -> None:
    engine = OneByOne({0, 1})
    result = lc.fit(
        regression(), lr=0.05, workers=3, min_workers=2, engine=engine, steps=20, callbacks=[lc.training.Callback()]
    )
    assert engine.seen[0] == 0  # one was ready, and had nothing to do
    assert result.server.arrivals == 20


def test_a_run_that_waits_for_workers_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "WAIT_WARNING", 0.0)
    with pytest.warns(UserWarning, match=r"1 of 3 workers are ready; the run begins with 3.*min_workers="):
        result = lc.fit(regression(), lr=0.05, workers=3, engine=OneByOne({0, 1}), steps=20)
    assert result.server.arrivals == 20
    assert not np.diff(result.trace.version[:3]).any()  # all of them began at once


def test_workers_that_are_ready_at_the_start_are_ordinary(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    result = lc.fit(regression(), steps=40, engine="inline", record=path, **OPTIONS)
    assert result.server.workers == 4
    assert replay(path, regression()).difference == 0.0
    assert all(torch.isfinite(value).all() for value in result.state.values())


@pytest.mark.parametrize("change", [{"max_workers": 1}, {"min_workers": 5}, {"min_workers": 0}, {"sync": True}])
def test_numbers_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"min_workers|max_workers"):
        lc.fit(regression(), steps=5, engine="inline", **{**OPTIONS, **change})
