"""The page of a recorded run: what is on it, in a browser too, and one sentence for what cannot be shown."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import latecomer as lc
from browser import needs_chromium, opened
from engine_tasks import Trouble, regression
from latecomer.cli.main import main
from latecomer.core.faults import FaultLog
from latecomer.monitor import report
from latecomer.monitor.view import RunView
from latecomer.report.plot import Plot, number
from latecomer.report.timeline import Jobs, _time_in_bins, timeline
from latecomer.testing import KillAt
from latecomer.trace import Header
from latecomer.training import replay
from latecomer.training.record import write_record

DOCS = Path(__file__).parents[2] / "docs"
Capture = pytest.CaptureFixture[str]
TASK = """
import torch
import latecomer as lc

class Halves(lc.problems.TwoCentres):
    pass

def task():
    return Halves(slow_share=0.3)

data = torch.utils.data.TensorDataset(torch.ones(8, 3), torch.ones(8, 1))
other = lc.Task(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, data, batch_size=4)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "halves_task.py"
    path.write_text(TASK)
    return path


@pytest.fixture(scope="module")
def record(script: Path) -> Path:
    """A run with a kill, recorded by the command's own words."""
    from latecomer.cli.train import load_task

    path = script.parent / "run.parquet"
    lc.fit(
        load_task(f"{script}:task"), method="ordered-momentum", lr=0.01, workers=2, steps=60, engine="inline",
        evaluate_every=10, record=path, callbacks=[KillAt((1, 30))],
    )  # fmt: skip
    return path


def older(record: Path, folder: Path, *gone: str) -> Path:
    """Return a record as an earlier version wrote it: without these parts of its description, and no digest."""
    with safe_open(record.with_suffix(".safetensors"), "pt") as file:
        about, x = json.loads(file.metadata()["latecomer"]), file.get_tensor("x")
    kept = {name: value for name, value in about.items() if name not in gone}
    save_file({"x": x}, folder / "run.safetensors", {"latecomer": json.dumps(kept)})
    (folder / "run.parquet").write_bytes(record.read_bytes())
    return folder / "run.parquet"


def test_a_record_holds_history_and_faults(tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    problem = Trouble(tmp_path / "tried", "raise", tickets=(3,))
    run = lc.fit(problem, lr=0.01, workers=1, steps=20, record=tmp_path / "run.parquet", engine="inline")
    (fault,) = run.faults
    assert (fault.kind, fault.worker, fault.ticket, fault.arrival) == ("raised", 0, 3, 3)
    assert "no such sample" in fault.reason
    view = RunView.of_record(tmp_path / "run.parquet")
    assert view.history is not None
    assert view.history.equals(run.history)  # null where a mean is missing, whole numbers where they count
    assert view.history.schema == run.history.schema
    assert list(view.faults or ()) == [fault]
    assert (view.steps, view.method, view.diverged_at) == (20, "balanced-catch-up", None)
    assert replay(tmp_path / "run.parquet", problem).difference == 0.0


def test_faults_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    class Stop(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            if outcome.arrival == 20:
                raise RuntimeError("stopped")

    options: dict[str, Any] = {
        "lr": 0.01,
        "workers": 2,
        "steps": 40,
        "engine": "inline",
        "checkpoint": tmp_path / "ckpt",
    }
    with pytest.raises(RuntimeError, match="stopped"):
        lc.fit(lc.problems.quadratic(), callbacks=[KillAt((0, 5), (1, 10)), Stop()], checkpoint_every=8, **options)
    run = lc.fit(lc.problems.quadratic(), **options)
    assert [fault.kind for fault in run.faults] == ["died", "died", "server restarted"]
    assert [fault.arrival >= at for fault, at in zip(run.faults, (5, 10, 20), strict=True)] == [True] * 3


def test_every_kind_of_fault_is_told_to_callbacks(tmp_path: Path) -> None:
    told = []

    class See(lc.training.Callback):
        def started(self, run: Any) -> None:
            told.append((run.method, run.options["lr"], run.server.arrivals))

        def faulted(self, run: Any, fault: lc.training.Fault) -> None:
            told.append((fault.kind, fault.ticket))

    (tmp_path / "tried").mkdir()
    problem = Trouble(tmp_path / "tried", "nan", tickets=(4,), times=0)
    lc.fit(problem, lr=0.01, workers=1, steps=10, engine="inline", callbacks=[See()])
    assert told == [("balanced-catch-up", 0.01, 0), ("not finite", 4)]
    problem = Trouble(tmp_path / "tried", "raise", tickets=(5,), times=9)
    with pytest.warns(UserWarning, match="Ticket 5"):
        lc.fit(problem, lr=0.01, workers=1, steps=10, engine="inline", callbacks=[See()])
    assert told[3:] == [("raised", 5), ("raised", 5), ("raised", 5), ("given up", 5)]


def test_a_log_of_many_faults_keeps_the_first_and_the_last() -> None:
    log = FaultLog()
    for number_ in range(2000):
        log.add("died", 1.0 * number_, number_, reason="a\nb" * 500)
    again = FaultLog()
    again.load_state_dict(json.loads(json.dumps(log.state_dict())))
    assert list(again) == list(log)
    assert again.counts == {"died": 2000}
    assert [fault.arrival for fault in log][499:501] == [499, 1500]
    assert len(next(iter(log)).reason) == 300


def test_the_page_of_a_record(record: Path, tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(record), "--out", str(page)]) == 0
    printed = capsys.readouterr().out
    assert f"Page written to {page}" in printed
    assert "contributions: 60, 60 updates" in printed
    text = page.read_text()
    figures = re.findall(r'<figure class="drawn[^"]*" id="([\w-]+)"', text)
    assert figures == ["timeline", "loss", "metric-0", "throughput", "delays", "influence"]
    assert "<td>died</td><td>1</td>" in text
    assert "killed" in text
    assert "on the same arrivals" not in text
    assert 'src="' not in text  # nothing comes from elsewhere
    links = re.findall(r'href="(?!#)([^"]+)"', text)
    assert [(page.parent / link).resolve() for link in links] == [DOCS / "seeing-a-run.md"]
    assert "<script" not in text
    assert main(["report", str(record), "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text() == text


def test_another_method_beside_it(record: Path, script: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["report", str(record), "--out", str(tmp_path / "page.html"), "--task", f"{script}:task"]
    assert main([*words, "--method", "momentum", "--set", "beta=0.5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    from latecomer.cli.train import load_task

    other = replay(record, load_task(f"{script}:task"), method="momentum", beta=0.5).run
    assert said["other"]["method"] == "momentum"
    assert said["other"]["final"]["loss"] == other.final["loss"]
    assert said["final"]["loss"] != other.final["loss"]
    assert said["faults"] == {"died": 1}
    assert said["rows"][1]["influence"] < 1
    text = (tmp_path / "page.html").read_text()
    assert "momentum (lr=0.01, beta=0.5) was replayed on the same arrivals" in text
    assert "momentum: loss" in text
    assert main(words) == 0
    assert "lands on the same parameters, bit for bit" in (tmp_path / "page.html").read_text()


def test_an_older_record_has_a_page_without_them(record: Path, script: Path, tmp_path: Path) -> None:
    path = older(record, tmp_path, "history", "faults", "steps")
    assert main(["report", str(path)]) == 0
    text = (tmp_path / "run.html").read_text()
    assert "This file has no history" in text
    assert "This file has no list of faults." in text
    assert 'id="loss"' not in text
    assert main(["report", str(path), "--task", f"{script}:task", "--method", "catch-up"]) == 0
    text = (tmp_path / "run.html").read_text()
    assert "ordered-momentum: loss" in text  # its own method was replayed too, for its loss
    assert "catch-up: loss" in text


@pytest.mark.parametrize("clock", ["none", "virtual"])
def test_a_large_trace_has_a_small_page(clock: str, tmp_path: Path) -> None:
    model = lc.delays.Constant(40) if clock == "none" else lc.delays.SampleCost(40, (1.0, 10.0), 0.2)
    model.trace(steps=200_000, seed=0).save(tmp_path / "run.parquet")
    page = report(tmp_path / "run.parquet", tmp_path / "page.html")
    assert page.stat().st_size < 500_000
    assert ("Arrivals per second" in page.read_text()) == (clock == "virtual")


def test_one_arrival_of_one_worker_has_a_page(tmp_path: Path) -> None:
    trace = lc.delays.Constant(1).trace(steps=1, seed=0)
    run = lc.simulate(lc.problems.quadratic(), "momentum", trace, lr=0.1)
    assert "momentum, 1 worker<" in report(run, tmp_path / "page.html").read_text()


def test_losses_that_are_not_finite_are_told(tmp_path: Path) -> None:
    def evaluate(model: Any) -> dict[str, float]:
        return {"loss": math.nan, "good": 1.0}

    path = tmp_path / "run.parquet"
    lc.fit(regression(evaluate=evaluate), lr=0.01, workers=1, engine="inline", steps=20, evaluate_every=10, record=path)
    text = report(path, tmp_path / "page.html").read_text()
    assert "loss of balanced-catch-up is missing or not finite in 2 of 3 evaluations, first at arrival 10." in text


@pytest.mark.parametrize("loss", [[math.inf, -math.inf], [0.0, 0.0], [1e-300, 1e308], [-1e308, 1e308], [None, 1.0]])
def test_any_loss_has_a_page(loss: list[float | None], record: Path, tmp_path: Path) -> None:
    columns = {
        "update": [0, 60],
        "time": [0.0, 1.0],
        "arrival": [0, 60],
        "train_loss": [None, 1.0],
        "delay": [None, 1.0],
    }
    history = pl.DataFrame({**columns, "loss": pl.Series(loss, dtype=pl.Float64)})
    write_record(lc.Trace.load(record), tmp_path / "run.parquet", torch.zeros(3), {"method": "momentum"}, history)
    assert 'id="loss"' in report(tmp_path / "run.parquet", tmp_path / "page.html").read_text()


def test_names_from_a_file_are_text_and_nothing_else(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    trace = lc.delays.SampleCost(2, (1.0, 5.0), 0.3).trace(steps=40, seed=0)
    header = Header(**{**vars(trace.header), "groups": (evil, f'"{evil}')})
    lc.Trace(header, trace.columns).save(tmp_path / "run.parquet")
    save_file(
        {"x": torch.zeros(1)}, tmp_path / "run.safetensors",
        {"latecomer": json.dumps({"method": evil, "options": {evil: evil}, "faults": {
            "counts": {evil: 1}, "list": [{"kind": evil, "time": 1.0, "arrival": 1, "reason": evil}]}})},
    )  # fmt: skip
    text = report(tmp_path / "run.parquet", tmp_path / "page.html").read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 5


@pytest.mark.parametrize("what", ["columns", "digest", "faults"])
def test_a_damaged_record_is_one_sentence(what: str, record: Path, tmp_path: Path, capsys: Capture) -> None:
    path = older(record, tmp_path)
    with safe_open(record.with_suffix(".safetensors"), "pt") as file:
        about = json.loads(file.metadata()["latecomer"])
        tensors = {name: file.get_tensor(name) for name in ("x", "history")}
    if what == "columns":
        about["history"]["columns"] = ["arrival"]
    elif what == "digest":
        tensors["history"][1, 1] += 1
    else:
        about["faults"] = {"counts": {}, "list": [{"what": 1}]}
    save_file(tensors, tmp_path / "run.safetensors", {"latecomer": json.dumps(about)})
    assert main(["report", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"latecomer: {tmp_path / 'run.safetensors'} is damaged: its ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{folder}/none.parquet"], "Cannot read {folder}/none.parquet: No such file or directory"),
        (["{folder}/text.parquet"], "{folder}/text.parquet is not a trace: it is truncated, or no Parquet file at all"),
        (["{folder}/cut.parquet"], "{folder}/cut.parquet is not a trace: it is truncated, or no Parquet file at all"),
        (["{folder}/empty.parquet"], "{folder}/empty.parquet is empty"),
        (["{folder}/waiting.parquet"], "{folder}/waiting.parquet has no arrivals, so there is nothing to show"),
        (["{record}", "--method", "momentum"],
         "--method needs what was trained: add --task script.py:task, or --problem with a name, or leave --method out"),
        (["{record}", "--task", "{script}:task", "--method", "momentun"], "Unknown method 'momentun'"),
        (["{record}", "--task", "{script}:other", "--method", "momentum"],
         "run.parquet is the record of another task: "),
        (["{record}", "--task", "{script}:nothing"], "{script} has no 'nothing'"),
        (["{record}", "--out", "{folder}"], "cannot write"),
        (["{record}", "--out", "{record}"], "the record and --out would both write {record}: choose another name"),
        (["{folder}/m.safetensors"], "{folder}/m.safetensors is not a record of a run: pass the .parquet file"),
        (["mnist"],
         "there is no 'latecomer report mnist' any more: write latecomer reproduce mnist --from-store"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_one_sentence(
    words: list[str], sentence: str, record: Path, script: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "text.parquet").write_text("not a Parquet file at all")
    (tmp_path / "cut.parquet").write_bytes(record.read_bytes()[:-100])
    (tmp_path / "empty.parquet").touch()
    server = lc.Server(lc.optim.Momentum([torch.nn.Parameter(torch.zeros(1))], lr=0.1), workers=2)
    server.issue(0)
    server.trace().save(tmp_path / "waiting.parquet")
    filled = {"folder": tmp_path, "record": record, "script": script}
    assert main(["report", *(word.format(**filled) for word in words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"latecomer: {sentence.format(**filled)}")
    assert error.count("\n") == 1


def test_a_run_without_arrivals_and_a_thing_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Invalid run: 3 "):
        report(3, tmp_path / "page.html")  # type: ignore[arg-type]


@needs_chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_in_a_browser(record: Path, script: Path, width: int, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["report", str(record), "--out", str(page), "--task", f"{script}:task", "--method", "momentum"]
    assert main(words) == 0
    found = opened(page, width, tmp_path)
    assert found["errors"] == []
    assert len(found["figures"]) == 6
    assert all(w > 330 and h > 80 for _, w, h in found["figures"])
    assert found["wide"] <= found["view"]


def test_time_in_bins_is_what_a_sum_over_intervals_says() -> None:
    draw = np.random.default_rng(0)
    points = np.sort(draw.random(40))
    start, end, edges = points[::2], points[1::2], np.linspace(0, 1, 8)
    by_hand = [
        sum(max(0.0, min(e, high) - max(s, low)) for s, e in zip(start, end, strict=True))
        for low, high in itertools.pairwise(edges)
    ]
    np.testing.assert_allclose(_time_in_bins(start, end, edges), by_hand, atol=1e-12)


def test_a_lost_job_ends_where_its_worker_starts_the_next(tmp_path: Path) -> None:
    problem = Trouble(tmp_path, "raise", tickets=(5,))
    trace = lc.fit(problem, lr=0.01, workers=2, steps=20, engine="inline").trace
    jobs = Jobs.of(trace)
    (lost,) = np.flatnonzero(jobs.lost)
    assert jobs.worker[lost] == jobs.worker[lost + 1]
    assert jobs.end[lost] == jobs.start[lost + 1]
    assert jobs.end.max() == jobs.last == trace.end[-1]
    assert "lost job" in timeline(trace)


def test_a_line_has_gaps_where_a_value_is_missing() -> None:
    plot = Plot("t", (0, 4), (0, 1), "", "")
    plot.line([0, 1, 2, 3, 4], [0.1, 0.2, math.nan, math.inf, 0.5], "a")
    (path,) = re.findall(r'class="a line" d="([^"]*)"', plot.svg())
    assert path.count("M") == 2
    assert path.count("L") == 1
    assert "<circle" in plot.svg()
    assert [number(value) for value in (0.0, 999.0, 12_345.0, 1e9, -2.5e6)] == ["0", "999", "12.3k", "1G", "-2.5M"]


def test_the_figure_of_the_guide_is_what_its_command_draws(tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "seeing-a-run.md"
    for line in re.findall(r"^(?:<!--| {4}) latecomer (.*?)(?: -->)?$", guide.read_text(), flags=re.MULTILINE):
        words = [
            str(tmp_path / Path(word).name) if word.endswith((".parquet", ".svg")) else word for word in line.split()
        ]
        assert main(words) == 0
    assert (tmp_path / "seeing-a-run.svg").read_text() == guide.with_suffix(".svg").read_text()
