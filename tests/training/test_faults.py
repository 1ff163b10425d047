"""Nothing is lost: every fault is injected by ticket or by arrival, and the record replays to the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import latecomer as lc
from engine_tasks import Trouble, regression
from latecomer.bench import soak
from latecomer.engines import Done, Event
from latecomer.engines.inline import InlineEngine
from latecomer.testing import KillAt
from latecomer.testing.engine import _ended, _shared_memory
from latecomer.training import replay

ROOT = Path(__file__).parent.parent.parent
OPTIONS: dict[str, Any] = {"method": "ordered-momentum", "lr": 0.01, "beta": 0.2, "workers": 2}


NOBODY_RUNS_AHEAD = pytest.mark.parametrize(
    "setting", [{"workers": 1}, {"workers": 2, "sync": True}], ids=["one", "sync"]
)
"""A ticket that fails holds up the run until it is settled, so that no other worker can end the run before that."""


def exactly_once(result: lc.Run, steps: int, updates: int | None = None) -> None:
    """Every ticket that came back was counted once, none is missing, and the server's count fits the optimizer's."""
    trace = result.trace
    assert len(trace) == result.server.arrivals == steps
    assert result.server.optimizer.t == (updates or steps)
    tickets = np.sort(trace.ticket)
    assert len(np.unique(tickets)) == steps
    out = {t.number for t in result.server.in_flight}
    assert set(range(int(trace.columns["ticket"].max()) + 1)) == set(tickets.tolist()) | out
    assert len(out) <= result.server.workers


def replays(result: lc.Run, problem: Any) -> None:
    assert result.record is not None
    assert replay(result.record, problem).difference == 0.0


@NOBODY_RUNS_AHEAD
@pytest.mark.parametrize("what", ["kill", "exit", "hang", "memory", "allocate", "raise", "shape", "sys.exit"])
def test_a_ticket_that_fails_once_is_computed_again(what: str, setting: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    problem = Trouble(tmp_path / "tried", what, tickets=(3, 11))
    timeout = 1.0 if what == "hang" else None
    options = OPTIONS | setting
    result = lc.fit(problem, steps=30, record=tmp_path / "run.parquet", timeout=timeout, **options)
    exactly_once(result, 30, updates=30 // setting["workers"])
    dies = what in ("kill", "exit", "hang")
    assert (result.deaths, result.failures) == ((2, 0) if dies else (0, 2))
    assert result.reissued == 2
    assert result.given_up == {}
    assert (result.trace.columns["status"] == 5).sum() == 2
    replays(result, problem)


@NOBODY_RUNS_AHEAD
@pytest.mark.parametrize("what", ["kill", "raise"])
def test_a_ticket_that_always_fails_counts_with_weight_zero(what: str, setting: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    problem = Trouble(tmp_path / "tried", what, tickets=(5,), times=50)
    with pytest.warns(UserWarning, match=r"Ticket 5 \(sample \d+\) failed 3 times"):
        result = lc.fit(problem, steps=24, record=tmp_path / "run.parquet", **(OPTIONS | setting))
    exactly_once(result, 24, updates=24 // setting["workers"])
    assert list(result.given_up or ()) == [5]
    assert result.trace.header.given_up == (5,)
    row = int(np.flatnonzero(result.trace.ticket == 5)[0])
    # In a round the last to come, mostly this one, is the one with which the mean of the others is applied.
    last = row % setting["workers"] == setting["workers"] - 1
    assert result.trace.status[row] == (("applied" if last else "held") if setting.get("sync") else "zero")
    replays(result, problem)  # though the sample would kill the process that replays it


@NOBODY_RUNS_AHEAD
def test_nan_counts_as_an_arrival_of_weight_zero(setting: dict[str, Any], tmp_path: Path) -> None:
    problem = Trouble(tmp_path, "nan", tickets=(4, 9), times=0)
    result = lc.fit(problem, steps=20, record=tmp_path / "run.parquet", **(OPTIONS | setting))
    exactly_once(result, 20, updates=20 // setting["workers"])
    assert result.non_finite == 2
    replays(result, problem)


def test_a_task_that_raises_from_the_start_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    problem = Trouble(tmp_path, "raise", tickets=tuple(range(100)), times=100)
    with pytest.raises(
        ValueError, match=r"The task raised on its first tickets: KeyError: 'no such sample' \(.*py, line"
    ):
        lc.fit(problem, steps=20, **OPTIONS)


def test_2000_updates_with_20_kills_replay_to_the_bit(tmp_path: Path) -> None:
    kills = KillAt(*((i % 2, 95 * (i + 1)) for i in range(20)))
    problem = lc.problems.quadratic()
    options = {**OPTIONS, "method": "catch-up"}
    result = lc.fit(problem, steps=2000, record=tmp_path / "run.parquet", callbacks=[kills], **options)
    exactly_once(result, 2000)
    assert result.deaths == 20
    replays(result, problem)


SCRIPT = """
import os, sys
import latecomer as lc
from engine_tasks import KillServer, regression

class Tell(lc.training.Callback):
    def arrived(self, run, ticket, outcome, loss):
        if outcome.arrival == 3:
            print(*[place.process.pid for place in run.engine._seats.values()], flush=True)

if __name__ == "__main__":
    lc.fit(regression(), method="catch-up", lr=0.02, workers=2, steps=60, checkpoint=sys.argv[1],
           checkpoint_every=20, callbacks=[Tell(), KillServer(int(sys.argv[2]))])
"""


def test_a_server_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    arrival = 33  # a checkpoint at 20, and a journal behind it
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    shared = _shared_memory()
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "ckpt"), str(arrival)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert run.returncode == -9, run.stderr
    pids = [int(word) for word in run.stdout.split()]
    assert len(pids) == 2
    assert all(_ended(pid) for pid in pids)
    assert _shared_memory() <= shared
    task = regression()
    seen = []

    class See(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            seen.append(outcome.arrival)

    result = lc.fit(
        task, method="catch-up", lr=0.02, workers=2, steps=60, checkpoint=tmp_path / "ckpt", checkpoint_every=20,
        record=tmp_path / "run.parquet", callbacks=[See()],
    )  # fmt: skip
    assert seen[0] == arrival + 1  # what had been applied is not applied again, nor lost
    exactly_once(result, 60)
    replays(result, task)


def test_one_worker_killed_and_resumed_equals_a_run_that_never_stopped(tmp_path: Path) -> None:
    """With one worker the schedule is fixed, so resuming must give the bits of a straight run."""

    class Stop(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            if outcome.arrival == 13:
                raise RuntimeError("stopped")

    options: dict[str, Any] = {"method": "ordered-mu2", "lr": 0.02, "workers": 1, "steps": 30, "engine": "inline"}
    straight = lc.fit(regression(), **options)
    with pytest.raises(RuntimeError, match="stopped"):
        lc.fit(regression(), checkpoint=tmp_path, checkpoint_every=5, callbacks=[Stop()], **options)
    resumed = lc.fit(regression(), checkpoint=tmp_path, checkpoint_every=5, **options)
    assert all(torch.equal(straight.state[key], resumed.state[key]) for key in straight.state)
    assert resumed.trace.digest == straight.trace.digest


class Twice(InlineEngine):
    """Reports everything two times, and the first answer of all once more at the end."""

    def events(self, timeout: float | None = None) -> list[Event]:
        found = [event for event in super().events(timeout) for _ in range(2 if isinstance(event, Done) else 1)]
        self.first = getattr(self, "first", None) or next((event for event in found if isinstance(event, Done)), None)
        return found if self.first is None else [*found, self.first]


def test_a_contribution_that_comes_twice_counts_once(tmp_path: Path) -> None:
    problem = lc.problems.quadratic()
    result = lc.fit(problem, steps=30, engine=Twice(), record=tmp_path / "run.parquet", **OPTIONS)
    exactly_once(result, 30)
    assert result.ignored >= 29
    replays(result, problem)


def test_a_script_without_a_main_guard_raises_with_the_remedy(tmp_path: Path) -> None:
    script = tmp_path / "careless.py"
    script.write_text("import latecomer as lc\nlc.fit(lc.problems.quadratic(), lr=0.1, workers=1, steps=5)\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=env)
    assert run.returncode == 1
    assert "needs `if __name__ == '__main__':`" in run.stderr.splitlines()[-1]


def test_a_soak_of_kills_loses_nothing() -> None:
    found = soak(12, every=5)
    assert found.good
    assert found.kills == 12
