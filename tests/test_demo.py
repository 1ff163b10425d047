"""The demo measures what it says, and the command meets bad input with a sentence."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from latecomer import demo
from latecomer.cli import main
from latecomer.optim import METHODS


@pytest.fixture(scope="module")
def schedule() -> demo.Schedule:
    return demo.Schedule.make(steps=40_000, seed=1)


def test_the_schedule_is_the_delay_model_of_the_paper(schedule: demo.Schedule) -> None:
    delay = schedule.t - schedule.version
    # Mean of delay + 1 is M over all arrivals (up to what is in flight at the end) and 1/p_i over one worker's.
    assert abs((delay + 1).mean() - demo.WORKERS) < 0.01
    for i in range(demo.WORKERS):
        own = (delay + 1)[schedule.worker == i]
        p = (i + 1) / 28
        assert abs(own.mean() - 1 / p) < 4.5 * math.sqrt(1 - p) / p / math.sqrt(len(own))
    # The literal rule: the slow share is 0.108 instead of 0.1 (expectation over workers of (1-p)^floor(tau)).
    p = np.arange(1, 8) / 28
    exact = float((p * (1 - p) ** np.floor(np.log(0.1) / np.log1p(-p))).sum())
    assert abs(exact - 0.108) < 5e-4
    assert abs(schedule.slow.mean() - exact) < 4.5 * math.sqrt(exact / len(schedule.slow))
    # A worker's next version is its last arrival + 1, and no slow sample comes early.
    for i in range(demo.WORKERS):
        arrivals = schedule.t[schedule.worker == i]
        assert (schedule.version[schedule.worker == i][1:] == arrivals[:-1] + 1).all()
    assert delay[schedule.slow].min() == 8


@pytest.mark.parametrize(
    ("method", "beta", "expected"),
    [
        ("ordered-momentum", 0.1, 0.295),
        ("ordered-momentum", 0.05, 0.521),
        ("ordered-momentum", 0.01, 0.862),
        ("ordered-mu2", 0.1, 0.295),
        ("catch-up", 0.1, 1.0),
        ("momentum", 0.1, 1.0),
        ("async-sgd", 0.1, 1.0),
    ],
)
def test_say_of_the_slow_class(
    method: str, beta: float, expected: float, schedule: demo.Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The influence of the slow class that the design states for M = 7."""
    monkeypatch.setattr(demo, "BETA", beta)
    assert demo.slow_say(method, schedule) == pytest.approx(expected, abs=0.012)


def test_losses_rank_as_the_bias_says() -> None:
    results = {result.method: result for result in demo.measure(steps=20_000, seed=0)}
    assert list(results) == list(METHODS)
    fair = ["async-sgd", "momentum", "mu2", "catch-up", "ordered-mu2-anytime"]
    assert all(results[name].excess < 5e-3 for name in fair)
    assert all(results[name].slow_say == pytest.approx(1.0, abs=0.02) for name in fair)
    for name in ("delay-adaptive", "delay-filtered"):
        assert 3e-2 < results[name].excess < 9e-2
    for name in ("ordered-momentum", "ordered-mu2"):
        assert 0.1 < results[name].excess < 0.16


def test_demo_prints_and_writes_the_same_every_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, figures = [], []
    for name in ("a", "b"):
        assert main(["demo", "--steps", "300", "--out", str(tmp_path / name)]) == 0
        texts.append(capsys.readouterr().out.replace(str(tmp_path / name), ""))
        figures.append((tmp_path / name / "influence.svg").read_bytes())
    assert texts[0] == texts[1]
    assert figures[0] == figures[1]
    assert figures[0].startswith(b"<?xml")
    assert all(name in texts[0] for name in METHODS)
    assert "Figure written to" in texts[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["demo", "--steps", "5"], "latecomer: Invalid steps value: 5 (expected steps >= 100)\n"),
        (["demo", "--seed", "-1"], "latecomer: Invalid seed value: -1 (expected seed >= 0)\n"),
        (["demo", "--out", "{file}/below"], "latecomer: cannot write {file}/below: Not a directory\n"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main([argument.format(file=file) for argument in arguments]) == 2
    assert capsys.readouterr().err == sentence.format(file=file)


@pytest.mark.parametrize("arguments", [["demo", "--steps", "many"], ["demo", "--colour", "red"], ["dance"]])
def test_the_command_line_refuses_what_it_does_not_know(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "latecomer", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_interrupt_is_not_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "latecomer", "demo", "--steps", "1000000", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    while not (tmp_path / "out").exists():  # made just before the work starts
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "latecomer: interrupted\n"


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("latecomer 0.")
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--help"])
    assert stop.value.code == 0
    assert "Example: latecomer demo" in capsys.readouterr().out
