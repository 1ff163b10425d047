"""The demo, its page as a browser shows it, and the command's manners."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import latecomer as lc
from browser import needs_chromium, opened
from latecomer.cli.main import main
from latecomer.demo import runs as demo
from latecomer.demo.tables import rows
from latecomer.optim import METHODS
from latecomer.paper.evidence import PAPER as PAPERS
from latecomer.theory.influence import influence, influence_by_group

PAPER = (*PAPERS, "catch-up")
SMALL = ["demo", "--steps", "60", "--seeds", "2", "--processes", "1", "--out"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    assert main([*SMALL, str(out)]) == 0
    return out / "index.html"


def test_the_demo_has_the_papers_methods_and_catch_up() -> None:
    assert set(demo.METHOD_OPTIONS) == set(PAPER)
    results = list(demo.run_all(steps=60, seeds=2, processes=1))
    table = {row.method: row for row in rows(results)}
    assert list(table) == list(demo.METHOD_OPTIONS)
    assert all(row.runs == 2 for row in table.values())
    for name, row in table.items():
        last = [result.history["f1"][-1] for result in results if result.method == name]
        assert row.f1 == pytest.approx(np.mean(last))
        assert (row.lowest, row.highest) == (min(last), max(last))
    assert table["delay-filtered"].dropped > 0
    assert all(row.dropped == 0 for name, row in table.items() if name != "delay-filtered")


def test_processes_change_nothing() -> None:
    alone, together = (list(demo.run_all(steps=30, seeds=1, processes=p)) for p in (1, 2))
    together.sort(key=lambda result: list(demo.METHOD_OPTIONS).index(result.method))
    for a, b in zip(alone, together, strict=True):
        assert (a.method, a.relative_influence, a.dropped) == (b.method, b.relative_influence, b.dropped)
        assert a.history.equals(b.history)


@pytest.mark.parametrize("name", PAPER)
def test_the_influence_on_the_page_is_what_one_hot_gradients_read_off(name: str) -> None:
    """Declared influence over a trace, against the parameters after a run in which arrival t carries e_t."""
    trace = lc.delays.DataDependent(workers=4, slow_share=0.2).trace(steps=60, seed=1)
    options = {**demo.METHOD_OPTIONS[name], "lr": 1.0}
    x = torch.nn.Parameter(torch.zeros(60, dtype=torch.float64))
    server = lc.Server(METHODS[name]([x], **options), workers=4, groups=trace.header.groups)
    out = {w: server.issue(w) for w in range(4)}
    for t, (worker, group) in enumerate(zip(trace.worker.tolist(), trace.group.tolist(), strict=True)):
        hot = torch.zeros(60, dtype=torch.float64)
        hot[t] = 1.0
        before = [hot] if server.optimizer.points == 2 else None
        server.receive(out[worker], server.optimizer.contribution([hot], before, out[worker].version), group=group)
        out[worker] = server.issue(worker)
    recorded = server.trace()
    for _ in range(400):  # until everything has had its influence
        server.receive(out[0], torch.zeros(60, dtype=torch.float64))
        out[0] = server.issue(0)
    weight = influence(recorded, name, options)
    np.testing.assert_allclose(-x.detach().numpy(), weight, atol=1e-12)
    by_group = influence_by_group(recorded, name, options)
    for group in (0, 1):
        assert by_group[group] == pytest.approx(weight[recorded.group == group].mean())


def test_the_page_is_whole_and_the_same_every_time(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in demo.METHOD_OPTIONS)
    assert "index.html" in said
    for file in page.parent.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
    text = page.read_text()
    assert text.count("<figure") == text.count("<svg") == 6
    assert all(f"<td>{name}</td>" in text for name in demo.METHOD_OPTIONS)
    fetched = re.findall(r'(?:src|href)="(?!#)([^"]+)"', text)
    assert fetched == []  # nothing comes from elsewhere


@needs_chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_in_a_browser(page: Path, width: int, tmp_path: Path) -> None:
    """It opens without errors, shows every figure, and nothing sticks out to the side."""
    found = opened(page, width, tmp_path)
    assert found["errors"] == []
    names = ["timeline", "delays", "influence", "relative-influence", "slow-and-fast", "curves"]
    assert [name for name, _, _ in found["figures"]] == names
    assert all(w > 200 and h > 80 for _, w, h in found["figures"])
    assert found["wide"] <= found["view"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["demo", "--steps", "5"], "latecomer: Invalid steps value: 5 (expected steps >= 20)\n"),
        (["demo", "--seed", "-1"], "latecomer: Invalid seed value: -1 (expected seed >= 0)\n"),
        (["demo", "--seeds", "0"], "latecomer: Invalid seeds value: 0 (expected seeds >= 1)\n"),
        (["demo", "--out", "{file}/below"], "latecomer: cannot write {file}/below: Not a directory\n"),
        (["trace", "show", "{file}"], "latecomer: {file} is empty\n"),
        (["trace", "show", "{file}.not"], "latecomer: Cannot read {file}.not: No such file or directory\n"),
        (["trace", "make", "--out", "{file}/x"], "latecomer: cannot write {file}: File exists\n"),
        (
            ["trace", "make", "--out", "{file}", "--workers", "0"],
            "latecomer: Invalid workers value: 0 (expected workers >= 1)\n",
        ),
        (
            ["trace", "make", "--out", "{file}", "--slow-share", "2"],
            "latecomer: Invalid slow_share value: 2 (expected 0 <= slow_share <= 1)\n",
        ),
        (
            ["trace", "make", "--out", "{file}", "--durations", "1", "2"],
            "latecomer: --durations belongs to --model worker-speeds, not to data-dependent\n",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main([argument.format(file=file) for argument in arguments]) == 2
    assert capsys.readouterr().err == sentence.format(file=file)


def test_more_than_there_is_memory_for_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "make", "--out", str(tmp_path / "x"), "--steps", str(10**14)]) == 2
    assert re.fullmatch(
        r"latecomer: .* arrivals need .* GB of memory, and .*: use fewer steps\n", capsys.readouterr().err
    )


@pytest.mark.parametrize("model", ["data-dependent", "uniform", "constant", "worker-speeds", "sample-cost"])
def test_trace_make_and_show(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.parquet"
    assert main(["trace", "make", "--model", model, "--workers", "3", "--steps", "50", "--out", str(path)]) == 0
    made = capsys.readouterr().out
    assert f"Trace written to {path}" in made
    assert main(["trace", "show", str(path)]) == 0
    assert capsys.readouterr().out.strip() in made
    assert len(lc.Trace.load(path)) == 50


def test_a_truncated_trace_file_as_a_user_meets_it(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    assert main(["trace", "make", "--steps", "50", "--out", str(path)]) == 0
    command = [sys.executable, "-m", "latecomer", "trace", "show", str(path)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    path.write_bytes(path.read_bytes()[:1000])
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"latecomer: {path} is not a trace: it is truncated, or no Parquet file at all\n"


@pytest.mark.parametrize("arguments", [["demo", "--steps", "many"], ["demo", "--colour", "red"], ["dance"]])
def test_the_command_line_refuses_what_it_does_not_know(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "latecomer", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_interrupt_is_not_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "latecomer", "demo", "--processes", "1", "--steps", "100000"]
    command += ["--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    while not (tmp_path / "out").exists():  # made just before the work starts
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert err == "latecomer: interrupted\n"


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("latecomer 0.")
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--help"])
    assert stop.value.code == 0
    assert "Example: latecomer demo" in capsys.readouterr().out
