"""The demo, its page as a browser shows it, and the command's manners."""

from __future__ import annotations

import html
import inspect
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import latecomer as lc
from browser import needs_chromium, opened
from latecomer._util.defaults import DEFAULT_METHOD, default_method
from latecomer.cli.main import main
from latecomer.demo import runs as demo
from latecomer.demo.page import write_demo
from latecomer.demo.tables import cells, rows, story

COMMITTED = Path(__file__).parents[2] / "docs" / "demo"
SMALL = ["demo", "--steps", "60", "--seeds", "2", "--processes", "1", "--out"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    assert main([*SMALL, str(out)]) == 0
    return out / "index.html"


@pytest.fixture(scope="module")
def results() -> list[demo.DemoRun]:
    return list(demo.run_all(steps=60, seeds=2, processes=1))


def test_the_demo_compares_four_methods_with_the_default_of_fit(results: list[demo.DemoRun]) -> None:
    assert inspect.signature(lc.fit).parameters["method"].default is None
    default = default_method({})
    assert list(demo.METHOD_OPTIONS) == [
        "synchronous", "delay-filtered", "ordered-momentum", "momentum", default
    ]  # fmt: skip
    table = {row.method: row for row in rows(results)}
    assert list(table) == list(demo.METHOD_OPTIONS)
    assert all(row.runs == 2 for row in table.values())
    for name, row in table.items():
        for found, key in ((row.loss, "loss"), (row.slow, "loss_slow"), (row.fast, "loss_fast")):
            own = [each.history[key][-1] for each in results if (each.method, each.factor) == (name, 1.0)]
            assert found == pytest.approx(np.mean(own))
        assert math.isnan(row.doubled) == ("lr" not in demo.METHOD_OPTIONS[name])
    assert {name for name, row in table.items() if row.dropped} == {"delay-filtered"}
    assert {name for name, row in table.items() if row.idle > 1e-9} == {"synchronous"}


def test_all_methods_have_the_same_time_and_share_the_schedule_of_a_seed() -> None:
    late = demo.make_trace("momentum", 400, seed=3)
    assert demo.make_trace(DEFAULT_METHOD, 400, seed=3) == late
    waiting = demo.make_trace("synchronous", 400, seed=3)
    assert len(waiting) % demo.WORKERS == 0
    assert late.end[-1] - demo.COST < waiting.end[-1] <= late.end[-1]
    idle = [max(ends) - end for ends in waiting.end.reshape(-1, demo.WORKERS) for end in ends]
    assert demo.idle_share(waiting) == pytest.approx(sum(idle) / (demo.WORKERS * waiting.end[-1]))


def test_the_losses_of_the_groups_make_the_whole_loss() -> None:
    problem = demo.SlowNines()
    with torch.no_grad():
        found = problem.evaluate(problem.model(0))
    nines = float((problem._test_labels == 9).mean())
    assert found["loss"] == pytest.approx((1 - nines) * found["loss_fast"] + nines * found["loss_slow"])


def made(method: str, losses: list[float], seed: int = 0, factor: float = 1.0) -> demo.DemoRun:
    times = [10.0 * place for place in range(len(losses))]
    losses = [float(loss) for loss in losses]
    history = pl.DataFrame({"time": times, "loss": losses, "loss_slow": losses, "loss_fast": losses})
    return demo.DemoRun(method, seed, factor, history, 0.5, 0.25)


@pytest.fixture
def clear(monkeypatch: pytest.MonkeyPatch) -> list[demo.DemoRun]:
    """Runs with simple numbers: the target is reached after 40 s, never, 50 s, 10 s, and 20 s by the default."""
    curves = {
        "synchronous": [2, 2, 2, 2, 0.2], "delay-filtered": [2, 2, 2, 2, 2, 2],
        "ordered-momentum": [2, 2, 2, 2, 2, 0.2], "momentum": [2, 0.1, 0.1, 0.1, 0.1],
        DEFAULT_METHOD: [2, 1, 0.1, 0.1, 0.2],
    }  # fmt: skip
    monkeypatch.setitem(demo.METHOD_OPTIONS, DEFAULT_METHOD, {"lr": 0.5})
    return [made(name, losses, factor=factor) for name, losses in curves.items() for factor in (1.0, 2.0)]


def test_a_miss_is_shown_as_a_miss(clear: list[demo.DemoRun]) -> None:
    table = {row.method: row for row in rows(clear)}
    assert [row.speed for row in table.values()] == [1.0, 0.0, 0.8, 4.0, 2.0]
    assert cells(table["delay-filtered"])[1:3] == ["missed", "–"]
    assert cells(table["momentum"])[1:6] == ["10", "4.0", "50 %", "25 %", "0.100"]
    waiting, dropping, ordered, default, momentum = story(clear)
    assert "idle 50 % of the time. Training reaches a loss of 0.3 after 40 s." in waiting
    assert "drops 25 % of the slow gradients. It never gets there." in dropping
    assert "after 50 s, 1.2 times as long as waiting." in ordered
    assert "gets there after 20 s, 2.0 times as fast." in default
    assert "a lower loss with 0 of 1 seeds." in momentum
    assert momentum.endswith("it ends at 0.200, `momentum` ends at 0.100.")


def test_a_target_that_only_some_seeds_reach(clear: list[demo.DemoRun]) -> None:
    runs = [replace(run, seed=seed) for run in clear for seed in range(3)]
    missed = [2.0, 2.0, 2.0]
    some = [made(r.method, missed, r.seed) if (r.method, r.seed, r.factor) == ("momentum", 2, 1.0) else r for r in runs]
    row = next(row for row in rows(some) if row.method == "momentum")
    assert (row.time, row.reached, row.runs) == (10.0, 2, 3)
    assert cells(row)[1] == "10 (2 of 3)"
    assert "gets there after 10 s, 4.0 times as fast with 2 of 3 seeds." in story(some)[-1]
    few = [made(r.method, missed, r.seed) if (r.method, r.factor) == ("momentum", 1.0) and r.seed else r for r in runs]
    assert next(row for row in rows(few) if row.method == "momentum").time == math.inf
    assert "reaches a loss of 0.3 with 1 of 3 seeds only." in story(few)[-1]
    none = [made(r.method, missed, r.seed) if (r.method, r.factor) == ("synchronous", 1.0) else r for r in runs]
    assert "reaches a loss of 0.3 after 20 s." in story(none)[3]
    assert "gets there after 20 s, 2.0 times as fast (seeds: 2.0 to 2.0)." in story(runs)[3]


def test_a_default_without_a_learning_rate(
    clear: list[demo.DemoRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(demo.METHOD_OPTIONS, DEFAULT_METHOD, {})
    runs = [run for run in clear if (run.method, run.factor) != (DEFAULT_METHOD, 2.0)]
    assert all(job[3] == 1.0 for job in demo.planned(60, 2, 0) if job[0] == DEFAULT_METHOD)
    assert story(runs)[-1].endswith("the default has none to choose.")
    assert cells(rows(runs)[-1])[-2:] == ["–", "none"]
    traces = [demo.make_trace(name, 60, 0) for name in ("synchronous", "momentum")]
    assert "its\nconstants were chosen" in write_demo(runs, *traces, tmp_path, "latecomer demo").read_text()


def test_processes_change_nothing() -> None:
    alone, together = (list(demo.run_all(steps=30, seeds=1, processes=p)) for p in (1, 2))
    together.sort(key=lambda result: (list(demo.METHOD_OPTIONS).index(result.method), result.factor))
    for a, b in zip(alone, together, strict=True):
        assert (a.method, a.factor, a.idle, a.dropped) == (b.method, b.factor, b.idle, b.dropped)
        assert a.history.equals(b.history)


def test_the_page_is_whole_and_the_same_every_time(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in demo.METHOD_OPTIONS)
    assert "index.html" in said
    for file in page.parent.iterdir():
        ours, again = (re.sub(r'href="[^"#]+', "", (each / file.name).read_text()) for each in (page.parent, tmp_path))
        assert ours == again, file.name
    text = page.read_text()
    assert text.count("<figure") == text.count("<svg") == 3
    assert all(f"<td>{name}</td>" in text for name in demo.METHOD_OPTIONS)
    assert 'src="' not in text  # nothing comes from elsewhere
    links = [(page.parent / link).resolve() for link in re.findall(r'href="(?!#)([^"]+)"', text)]
    assert links == [COMMITTED.parent / "choosing.md", COMMITTED.parent / "rate-free.md"]
    words = (page.parent / "results.md").read_text()
    for line in re.findall(r"^- (.*)$", words, flags=re.MULTILINE):
        assert line.replace("**", "").replace("`", "") in said
    assert len(re.findall(r"^\| ", words, flags=re.MULTILINE)) == 1 + len(demo.METHOD_OPTIONS)


def test_the_committed_page_table_and_figures_are_of_one_run() -> None:
    """README quotes the text of results.md; `test_house.py` compares the two."""
    text = (COMMITTED / "index.html").read_text()
    words = (COMMITTED / "results.md").read_text()
    plain = re.sub(r"<[^>]+>", "", text)
    lines = [line.replace("**", "").replace("`", "") for line in re.findall(r"^- (.*)$", words, flags=re.MULTILINE)]
    assert len(lines) == 5
    assert [line for line in lines if line not in html.unescape(plain)] == []
    for cell in re.findall(r"(?<=\| )[^|]+(?= \|)", words):
        assert f">{cell}</t" in text
    assert all(file.read_text() in text for file in COMMITTED.glob("*.svg"))


def test_the_learning_rates_are_the_chosen_ones() -> None:
    rates = (COMMITTED / "rates.md").read_text()
    for name, options in demo.METHOD_OPTIONS.items():
        row = f"{name}, beta {options['beta']:g}" if name == "synchronous" else name
        found = re.search(rf"^\| {row} \|.*\| ([\d.]+) \|$", rates, flags=re.MULTILINE)
        assert "lr" not in options or (found is not None and float(found[1]) == options["lr"])


@needs_chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_in_a_browser(page: Path, width: int, tmp_path: Path) -> None:
    """It opens without errors, shows every figure, and nothing sticks out to the side."""
    found = opened(page, width, tmp_path)
    assert found["errors"] == []
    names = ["waiting-and-dropping", "timeline", "learning-rates"]
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
