"""Nothing is lost: every fault is injected by ticket or by arrival, and the record replays to the same bits."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import warnings
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import latecomer as lc
from engine_tasks import Trouble, regression, score
from latecomer.bench import soak
from latecomer.cli.main import main
from latecomer.engines import Died, Done, Event, local
from latecomer.engines.inline import InlineEngine
from latecomer.engines.local import LocalEngine
from latecomer.testing import KillAt
from latecomer.testing.engine import _ended, _shared_memory
from latecomer.training import replay
from latecomer.training.startup import StartupFailures
from processes import ended

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
    assert " (18 applied), " in result.summary()["contributions"]
    replays(result, problem)


def test_a_task_that_raises_from_the_start_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    problem = Trouble(tmp_path, "raise", tickets=tuple(range(100)), times=100)
    with pytest.raises(ValueError, match=r"The task raised on its first jobs: KeyError: 'no such sample' \(.*py, line"):
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


def test_a_soak_of_kills_loses_nothing() -> None:
    found = soak(12, every=5)
    assert found.good
    assert found.kills == 12


def test_a_run_in_which_most_tickets_fail_ends_with_one_sentence(tmp_path: Path) -> None:
    """58 of 60 tickets fail; checkpoint and record are kept, and the same call continues when the task is right."""
    (tmp_path / "tried").mkdir()
    bad = tuple(number for number in range(60) if number not in (2, 30))
    problem = Trouble(tmp_path / "tried", "raise", tickets=bad, times=3)
    options = OPTIONS | {"workers": 1, "checkpoint": tmp_path / "ckpt", "record": tmp_path / "run.parquet"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(
            ValueError, match=r"^19 of 20 tickets were given up \(KeyError: 'no such sample'\), more than"
        ):
            lc.fit(problem, steps=60, **options)
    assert not caught
    assert len(lc.Trace.load(tmp_path / "run.parquet")) == 20
    problem.times = 99  # some attempts at the next ticket may have been made already
    with pytest.raises(ValueError, match=r"^20 of 21 tickets were given up"):  # also where the call is repeated
        lc.fit(problem, steps=60, **options)
    problem.times = 0  # corrected
    result = lc.fit(problem, steps=60, **options)
    exactly_once(result, 60)
    assert result.resumed_at == 21
    assert len(result.given_up) == 20


@pytest.mark.parametrize("limit", [0.5, 1.0])
def test_a_few_given_up_tickets_are_reported_one_by_one_and_the_rest_at_the_end(limit: float, tmp_path: Path) -> None:
    bad = tuple(range(1, 20, 2)) if limit == 0.5 else tuple(range(1, 24))
    problem = Trouble(tmp_path, "raise", tickets=bad, times=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = lc.fit(problem, steps=24, give_up_limit=limit, **(OPTIONS | {"workers": 1}))
    told = [str(each.message) for each in caught]
    assert [message[:8] for message in told[:5]] == [f"Ticket {number}" for number in bad[:5]]
    assert told[5:] == [
        f"{len(bad)} of 24 tickets were given up (KeyError: 'no such sample') and count with weight zero"
    ]
    assert len(result.given_up) == len(bad)


def test_a_summary_of_many_reasons_counts_the_rest() -> None:
    def collate(samples: list[int]) -> Any:
        if samples[0] % 3:
            raise ValueError(f"bad {samples[0]}")
        return torch.ones(1, 2)

    options = {"batch_size": 1, "sampler": range(60), "collate_fn": collate}
    task = lc.Task(torch.nn.Linear(2, 1), lambda model, batch: model(batch).sum(), list(range(60)), **options)
    with pytest.warns(), pytest.raises(ValueError, match=r"bad 1; ValueError: bad 2; .*; and 10 other reasons\), more"):
        lc.fit(task, lr=0.1, steps=60, workers=1, engine="inline")


@pytest.mark.parametrize("limit", [-0.1, 1.5, "half", None])
def test_an_invalid_limit_is_refused(limit: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="Invalid give_up_limit value"):
        lc.fit(lc.problems.quadratic(), lr=0.1, steps=5, engine="inline", give_up_limit=limit)


def test_most_tickets_failing_is_one_sentence_and_exit_code_2_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mostly_broken.py").write_text(MOSTLY_BROKEN)
    command = ["train", f"{tmp_path}/mostly_broken.py:task", "--steps", "60", "--engine", "inline", "--workers", "1"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "latecomer: 17 of 20 tickets were given up (IndexError: broken), more than give_up_limit=0.5"
    )
    assert error.count("\n") == 1


MOSTLY_BROKEN = """
import torch
import latecomer as lc

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index not in (2, 5, 6):
            raise IndexError("broken")
        return torch.ones(2), torch.ones(1)

order = torch.utils.data.SequentialSampler(Data())
task = lc.Task(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss, Data(), batch_size=1, sampler=order)
"""


def test_only_a_worker_that_ends_by_itself_is_told_about_imports() -> None:
    """Before any was ready its end will happen again; a kill says nothing about the next worker."""
    with pytest.raises(ValueError, match=r"could not start: ImportError.*must be importable"):
        StartupFailures(2).died(Died(0, "could not start: ImportError: no"))
    failures = StartupFailures(2, attempts=12)
    failures.ready()
    for _ in range(2 * 13):
        failures.died(Died(0, "killed by SIGKILL"))
    with pytest.raises(ValueError, match=r"27 workers in a row were killed by SIGKILL .* is memory running out"):
        failures.died(Died(0, "killed by SIGKILL"))
    failures.ready()
    for _ in range(2 * 2):
        failures.died(Died(0, "ended with exit code 1"))
    with pytest.raises(ValueError, match=r"exit code 1.*must be importable"):
        failures.died(Died(0, "ended with exit code 1"))


class KillForkServer(lc.training.Callback):
    """Kills the process from which all workers are forked; they end with it, the evaluating one too."""

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == 10:
            workers = {place.process.pid for place in run.engine._seats.values()}
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
            assert ended(workers)  # before they can finish the run


def test_a_killed_fork_server_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    task = regression(evaluate=score)
    options = {**OPTIONS, "evaluate_every": 10, "callbacks": [KillForkServer()], "record": tmp_path / "run.parquet"}
    result = lc.fit(task, steps=30, **options)
    exactly_once(result, 30)
    assert result.deaths == 2
    assert result.history["loss"].null_count() == 0
    replays(result, task)


class WithoutForkServer(LocalEngine):
    """Kills the fork server twice before any worker is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.kills = 0

    def events(self, timeout: float | None = None) -> list[Event]:
        if self.kills < 2 and self._seats:
            self.kills += 1
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
        return super().events(timeout)


@pytest.mark.filterwarnings("ignore:After 30 s")  # on a busy machine
def test_a_fork_server_killed_at_the_start_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    is_gone, seen = local._is_gone, set()

    def late(server: int) -> bool:  # its files are closed some time before the system says that it has ended
        first = server not in seen
        seen.add(server)
        return not first and is_gone(server)

    monkeypatch.setattr(local, "_is_gone", late)
    engine = WithoutForkServer()
    result = lc.fit(regression(), steps=10, engine=engine, **OPTIONS)
    exactly_once(result, 10)
    assert engine.kills == 2
    assert seen


def test_a_worker_without_fork_server_is_ended_and_no_process_that_has_its_number_now() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        local._end(process.pid, "12345")
        local._end(process.pid, "")
        assert process.poll() is None
        local._end(process.pid, local._start_time(process.pid))
        assert process.wait(5) == -signal.SIGKILL
    assert local._start_time(process.pid) == ""


def test_a_fork_server_that_dies_for_ever_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Any) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(ForkServerProcess, "start", refused)
    monkeypatch.setattr("latecomer.engines.local.time.sleep", lambda seconds: None)
    with pytest.raises(ValueError, match=r"The fork server has ended 6 times in a row .*: is memory running out"):
        lc.fit(lc.problems.quadratic(), steps=5, **OPTIONS)


@pytest.mark.parametrize("engine", ["local", "inline", "ray"])
def test_more_workers_than_there_is_room_for_are_refused_before_anything_is_made(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latecomer._util.memory.available_memory", lambda: 1 << 30)
    monkeypatch.setattr(sys.modules["latecomer.training.fit"], "JournaledRun", lambda *_: pytest.fail("made"))
    with pytest.raises(ValueError, match=r"100,000 worker.* need .* GB of memory, and 1.0 GB are available: use fewer"):
        lc.fit(lc.problems.quadratic(), steps=5, engine=engine, **{**OPTIONS, "workers": 100_000})
    if engine == "local":
        monkeypatch.setattr("latecomer._util.memory.available_memory", lambda: None)
        monkeypatch.setattr(resource, "getrlimit", lambda limit: (1024, 4096))
        with pytest.raises(ValueError, match=r"1,000 worker processes need 4,000 open files, and .* may have 1,024"):
            lc.fit(lc.problems.quadratic(), steps=5, **{**OPTIONS, "workers": 1000})


def test_the_memory_of_slots_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latecomer._util.memory.available_memory", lambda: 17 << 20)
    task = lc.Task(torch.nn.Linear(1 << 21, 1, bias=False), torch.nn.functional.mse_loss, batch_fn=lambda sample: None)
    for engine in ("local", "inline"):
        with pytest.raises(ValueError, match=r"workers.* need \d+ MB of memory, and 17 MB are available"):
            lc.fit(task, steps=5, engine=engine, **OPTIONS)
