"""Scripts of examples/ run as a user starts them, at a small size."""

from __future__ import annotations

import json
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TIMEOUT = 300  # seconds


def start(name: str, *words: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLES / name), *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, printed
    assert "Traceback" not in printed
    return printed


@pytest.mark.timeout(2 * TIMEOUT)
def test_the_character_transformer_is_killed_resumes_and_replays_to_the_bit(tmp_path: Path) -> None:
    words = ["--steps", "40", "--folder", str(tmp_path / "run")]
    first = start("character_transformer.py", *words, folder=tmp_path)
    until = time.monotonic() + TIMEOUT
    while not any(int(path.stem.split("-")[1]) >= 8 for path in tmp_path.glob("run/checkpoints/arrival-*.json")):
        assert time.monotonic() < until
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.05)
    first.kill()
    first.communicate(timeout=TIMEOUT)
    assert first.returncode == -signal.SIGKILL
    printed = finished(start("character_transformer.py", *words, folder=tmp_path))
    resumed = int(printed.split("Resumed at arrival ")[1].split(".")[0])
    assert 8 <= resumed < 40
    assert "10 parameters with weight_decay=0.1" in printed
    assert "catch-up-adamw lands on the same parameters, bit for bit." in printed


@pytest.mark.parametrize(
    ("name", "words", "printed"),
    [
        ("own_loop.py", [], "influence of a rare gradient under ordering: 0.07"),
        ("own_parameter_server.py", ["--updates", "60"], "60 arrivals of"),
        ("replay_with_another_method.py", [], "catch-up lands on the same parameters, bit for bit."),
        ("ray_on_one_machine.py", ["--steps", "60"], "60 counted."),
    ],
)
def test_an_example_of_the_gallery_runs(name: str, words: list[str], printed: str, tmp_path: Path) -> None:
    assert printed in finished(start(name, *words, folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_late_episodes_writes_a_table_and_a_figure(tmp_path: Path) -> None:
    words = ["--steps", "20", "--seeds", "1", "--rates", "0.3", "--out", str(tmp_path)]
    assert "late_episodes.svg" in finished(start("late_episodes.py", *words, folder=tmp_path))
    rows = [line for line in (tmp_path / "late_episodes.md").read_text().splitlines() if "side |" in line]
    assert len(rows) == 10
    assert (tmp_path / "late_episodes.svg").read_text().startswith("<svg")


def test_the_committed_table_and_figure_of_late_episodes_are_their_numbers(tmp_path: Path) -> None:
    folder, example = EXAMPLES.parent / "docs" / "gallery", runpy.run_path(str(EXAMPLES / "late_episodes.py"))
    rows = [example["Row"](**row) for row in json.loads((folder / "late_episodes.json").read_text())]
    table = (folder / "late_episodes.md").read_text()
    assert all(" | ".join(row.cells()) in table for row in rows)
    example["draw"](rows, tmp_path)
    assert (tmp_path / "late_episodes.svg").read_text() == (folder / "late_episodes.svg").read_text()


def test_every_example_has_a_test() -> None:
    folders = [Path(__file__).parent, EXAMPLES.parent / "integrations"]
    text = "".join(path.read_text() for folder in folders for path in folder.rglob("test_*.py"))
    examples = list(EXAMPLES.glob("*.py"))
    assert len(examples) >= 10
    assert [path.name for path in examples if f'"{path.name}"' not in text] == []
    assert [path.name for path in EXAMPLES.glob("*.ipynb") if f'"{path.stem}.py"' not in text] == []
