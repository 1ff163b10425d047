"""`latecomer trace make`: every delay model, costs around it, policies, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import latecomer as lc
from latecomer.cli.main import main
from latecomer.delays import MeasuredDelays, MeasuredDurations, SampleCost, TimeVarying, WithCosts, WorkerSpeeds

SPEEDS = """
def at_night(worker, time):
    return 3.0 if worker == 0 and time >= 2.0 else 1.0


def broken(worker, time):
    return 1 / 0


def endless(worker, time):
    return 1e308


number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, measured files, an empty and a damaged one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("nights.py").write_text(SPEEDS)
    monkeypatch.delitem(sys.modules, "nights", raising=False)
    Path("jobs.csv").write_text("worker,seconds,group\n0,1.0,0\n0,2.0,1\n1,5.0,0\n")
    Path("delays.csv").write_text("0\n1\n2\n1\n3\n2\n")
    Path("empty.csv").touch()
    WorkerSpeeds([1.0, 2.5]).trace(20).save("run.parquet")
    Path("cut.parquet").write_bytes(Path("run.parquet").read_bytes()[:200])
    return tmp_path


def at_night(worker: int, time: float) -> float:
    return 3.0 if worker == 0 and time >= 2.0 else 1.0


@pytest.mark.usefixtures("folder")
def test_makes_the_trace_of_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    two = WorkerSpeeds([1.0, 2.5], slow_share=0.1)
    for words, model, policy in (
        ("--model worker-speeds --durations 1 2.5 --noise pareto", WorkerSpeeds([1.0, 2.5], "pareto", slow_share=0.1),
         None),
        ("--model worker-speeds --durations 1 2.5 --factor nights.py:at_night", TimeVarying(two, at_night), None),
        ("--model worker-speeds --durations 1 2.5 --network 0.5 --server 0.25",
         WithCosts(two, network=0.5, server=0.25), None),
        ("--model worker-speeds --durations 1 2.5 --factor nights.py:at_night --server 0.25",
         WithCosts(TimeVarying(two, at_night), server=0.25), None),
        ("--model sample-cost --costs 1 6 --speeds 1 1 3", SampleCost(3, (1.0, 6.0), 0.1, speeds=(1, 1, 3)), None),
        ("--model measured-durations --file jobs.csv", MeasuredDurations.read("jobs.csv"), None),
        ("--model measured-durations --file run.parquet", MeasuredDurations.of(lc.Trace.load("run.parquet")), None),
        ("--model measured-delays --file delays.csv", MeasuredDelays("delays.csv"), None),
        ("--model measured-delays --file delays.csv --workers 4", MeasuredDelays("delays.csv", 4), None),
        ("--model measured-durations --file jobs.csv --policy synchronous", MeasuredDurations.read("jobs.csv"),
         lc.policy.Synchronous(2)),
        ("--model worker-speeds --durations 1 2.5 --policy ringmaster-stop --set R=2", two,
         lc.policy.RingmasterStop(2, 2)),
    ):  # fmt: skip
        assert main(["trace", "make", "--steps", "6", "--seed", "3", "--out", "made.parquet", *words.split()]) == 0
        expected = model.trace(6, 3, policy)
        assert lc.Trace.load("made.parquet") == expected, words
        assert "Trace written to made.parquet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--model sample-cost --noise pareto", "--noise belongs to --model worker-speeds, not to sample-cost"),
        ("--model measured-delays --slow-share 0.2", "--slow-share belongs to --model data-dependent or uniform or"),
        (
            "--model uniform --server 1",
            "--server belongs to --model worker-speeds or sample-cost or measured-durations",
        ),
        ("--model measured-delays", "--model measured-delays needs a --file"),
        ("--model measured-delays --file nowhere.csv", "There is no file nowhere.csv"),
        ("--model measured-delays --file empty.csv", "empty.csv is empty"),
        ("--model measured-delays --file delays.csv --steps 7", "Invalid steps value: 7 (delays.csv has 6 arrivals)"),
        ("--model measured-durations --file delays.csv", "has no columns 'worker' and 'seconds'"),
        ("--model measured-durations --file cut.parquet", "cut.parquet"),
        ("--model measured-durations --file jobs.csv --workers 3", "jobs.csv has 2 workers, not 3"),
        ("--model sample-cost --speeds 1 2 --workers 3", "2 speeds are given for 3 workers"),
        ("--model worker-speeds --network nan", "Invalid network value: nan"),
        ("--model worker-speeds --factor nights.py", "Invalid factor 'nights.py' (expected a Python file and a name"),
        ("--model worker-speeds --factor nights.py:number", "nights.py:number is of type int"),
        ("--model worker-speeds --factor nights.py:nobody", "nights.py has no 'nobody'"),
        ("--model worker-speeds --factor nights.py:broken", "nights.py:broken raised ZeroDivisionError"),
        ("--model worker-speeds --factor nights.py:endless --steps 9", "runs beyond the largest number"),
        ("--model worker-speeds --durations 1e308 1e308 --steps 9", "runs beyond the largest number"),
        ("--policy nobody", "Unknown policy 'nobody'"),
        ("--policy rennala --set K=2", "The policy Rennala has no option 'K' (it has S)"),
        ("--policy rennala --set S=0", "Invalid S value: 0"),
        ("--set S=2", "--set has options of a policy: name it with --policy"),
        ("--policy ringmaster-stop --set R=1", "has no clock"),
    ],
)
def test_bad_input_gets_a_sentence(words: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "make", "--steps", "6", "--out", "made.parquet", *words.split()]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (folder / "made.parquet").exists()
