"""`simulate` and `fit` share their words, return one type of run, and refuse the same things before they start."""

from __future__ import annotations

import dataclasses
import inspect
import io
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import latecomer as lc
from latecomer.cli import main
from latecomer.cli._entry import run as run_command
from latecomer.core import callbacks as module
from latecomer.problems import Quadratic

SHARED = {
    "method", "policy", "scheduler", "seed", "evaluate_every", "checkpoint", "checkpoint_every", "keep", "callbacks",
    "progress",
}  # fmt: skip


def simulated(problem: Any = None, **options: Any) -> lc.Run:
    given = {"method": "ordered-momentum", "lr": 0.05, **options}
    trace = lc.delays.Constant(workers=3).trace(steps=20, seed=0)
    return lc.simulate(problem or Quadratic(), trace=trace, **given)


def fitted(problem: Any = None, **options: Any) -> lc.Run:
    given = {"method": "ordered-momentum", "lr": 0.05, "workers": 3, "engine": "inline", "steps": 20, **options}
    return lc.fit(problem or Quadratic(), **given)


both = pytest.mark.parametrize("train", [simulated, fitted])


def test_the_words_are_the_same() -> None:
    for function in (lc.simulate, lc.fit):
        assert inspect.signature(function).parameters.keys() >= SHARED, function


def test_both_return_one_kind_of_run() -> None:
    one_group = Quadratic(centres=(0.0,), shares=(1.0,))
    runs = [train(one_group, evaluate_every=5) for train in (simulated, fitted)]
    assert all(type(run) is lc.Run for run in runs)
    assert runs[0].history.columns == runs[1].history.columns
    assert runs[0].history["arrival"].to_list() == runs[1].history["arrival"].to_list() == [0, 5, 10, 15, 20]
    # The inline engine's workers take turns, as in the constant delay model: the same schedule, so the same numbers.
    metrics = ["update", "delay", "loss", "squared_gradient"]
    assert runs[0].history.select(metrics).equals(runs[1].history.select(metrics))
    assert torch.equal(runs[0].state["x"], runs[1].state["x"])


@both
def test_progress_is_a_function_or_a_console(train: Any) -> None:
    calls: list[tuple[int, int]] = []
    train(evaluate_every=10, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(0, 20), (10, 20), (20, 20)]
    shown = Console(file=io.StringIO(), width=200)
    train(progress=shown)
    assert "training: 20 of 20" in shown.file.getvalue()

    def full(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        train(progress=full)
    with pytest.raises(TypeError, match="Invalid progress: 3"):
        train(progress=3)


def test_the_rate_of_progress_leaves_out_how_long_workers_took_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1000.0, *(1000.0 + i for i in range(1, 100))])  # an arrival per second, after a long start
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    shown = Console(file=io.StringIO(), width=200)
    bar = module.ProgressBar(20, shown)
    simulated(callbacks=[bar])
    assert "training: 20 of 20, 1/s" in shown.file.getvalue()


@both
def test_a_callback_hears_and_may_end_a_run(train: Any) -> None:
    class Seventh(lc.training.Callback):
        events: list[str] = []  # noqa: RUF012

        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            if run.server.arrivals == 7:
                run.stop()

        def evaluated(self, run: Any, row: Any) -> None:
            self.events.append(f"row {row['arrival']} of {run.steps}")

        def ended(self, run: Any, result: lc.Run) -> None:
            self.events.append(f"ended at {result.final['arrival']}")

        def closed(self) -> None:
            self.events.append("closed")

    Seventh.events = []
    assert train(callbacks=[Seventh()], evaluate_every=5).server.arrivals == 7
    assert Seventh.events == ["row 0 of 20", "row 5 of 20", "row 7 of 20", "ended at 7", "closed"]


@both
def test_the_seed_of_a_uniform_output_can_be_given(train: Any) -> None:
    outputs = [train(output="uniform", output_seed=seed).output["x"].tolist() for seed in range(6)]
    assert outputs[0] == train(output="uniform", output_seed=0).output["x"].tolist()
    assert len({tuple(x) for x in outputs}) > 1


@both
def test_a_scheduler_that_follows_a_metric_is_refused_before_training(train: Any) -> None:
    started: list[int] = []
    with pytest.raises(ValueError, match="ReduceLROnPlateau follows a metric"):
        train(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau, progress=lambda *_: started.append(1))
    assert not started


@both
def test_a_function_that_makes_no_scheduler_is_told(train: Any) -> None:
    for made in (None, 3, torch.nn.ReLU()):
        with pytest.raises(TypeError, match=r"Invalid scheduler: the function returned .* \(expected a torch learning"):
            train(scheduler=lambda optimizer, made=made: made)
    with pytest.raises(TypeError, match=r"Invalid scheduler: the function returned .* \(expected a torch learning"):
        train(scheduler=lambda optimizer: optimizer)  # it has step and a state dict, and would step twice
    with pytest.raises(ValueError, match="The scheduler function raised ZeroDivisionError: division by zero"):
        train(scheduler=lambda optimizer: 1 / 0)


@both
def test_a_scheduler_of_another_optimizer_is_refused(train: Any) -> None:
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="The StepLR that the scheduler function returned is for another optimizer"):
        train(scheduler=lambda _: torch.optim.lr_scheduler.StepLR(other, 1))


@both
def test_schedulers_made_of_schedulers_are_accepted(train: Any) -> None:
    from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, SequentialLR, StepLR

    for combine in (
        lambda optimizer: ChainedScheduler([ConstantLR(optimizer, 0.5), StepLR(optimizer, 1)]),
        lambda optimizer: SequentialLR(optimizer, [ConstantLR(optimizer, 0.5), StepLR(optimizer, 1)], [5]),
    ):
        assert train(scheduler=combine).server.optimizer.param_groups[0]["lr"] < 0.05


@both
def test_a_scheduler_steps_with_every_update(train: Any) -> None:
    run = train(scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    assert run.server.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.5**20)


@both
def test_a_run_shows_itself_as_text_and_as_an_escaped_table(train: Any) -> None:
    class Bold(Quadratic):
        def evaluate(self, model: nn.Module) -> dict[str, float]:
            return {"<b>score</b>": 0.125}

    run = train(Bold(), method="delay-filtered", threshold=30)
    text = repr(run)
    for line in ("method: delay-filtered", "options: lr=0.05, threshold=30", "contributions: 20, 20 updates"):
        assert f"  {line}\n" in text
    assert "  final <b>score</b>: 0.125\n" in text
    assert "  delay: mean 1.85, largest 2, 3 workers\n  faults: none\n" in text
    html = run._repr_html_()
    assert "final &lt;b&gt;score&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "http" not in html
    root = ElementTree.fromstring(html)
    assert ["".join(cell.itertext()) for cell in root.iter("td")] == list(run.summary().values())
    broken = dataclasses.replace(run, deaths=2, given_up={3: 7}, diverged_at=12)
    assert "faults: 2 deaths, 1 given up\n  diverged: at arrival 12\n" in repr(broken)


class Odd(Quadratic):
    """Metrics as people have them at hand."""

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self._metric = metric

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        return {"metric": self._metric}


@both
@pytest.mark.parametrize("metric", [torch.tensor(0.5), torch.tensor([[0.5]]), torch.full((1,), 0.5).numpy()])
def test_metrics_may_be_tensors_of_one_element(train: Any, metric: Any) -> None:
    assert train(Odd(metric)).final["metric"] == 0.5


@both
@pytest.mark.parametrize("metric", [torch.ones(2), "good", None])
def test_other_metrics_are_refused(train: Any, metric: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="evaluate must return names and numbers"):
        train(Odd(metric))


def linear() -> tuple[nn.Module, Any]:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    return nn.Linear(3, 1), torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


@pytest.mark.parametrize(
    "given", [{"batch_size": 32}, {"groups": ("all",)}, {"clip_norm": None}, {"sampler": None}], ids=str
)
def test_what_belongs_to_a_task_is_never_ignored_even_where_it_is_the_default(given: dict[str, Any]) -> None:
    model, data = linear()
    task = lc.Task(model, nn.functional.mse_loss, data, batch_size=8)
    with pytest.raises(ValueError, match=f"{next(iter(given))} belongs to the task"):
        fitted(task, **given)
    direct = lc.fit(model, nn.functional.mse_loss, data, lr=0.05, workers=1, engine="inline", steps=3, **given)
    assert direct.final["update"] == 3


def test_a_compiled_model_is_trained_uncompiled_with_a_warning() -> None:
    model, data = linear()
    compiled = torch.compile(model, backend="eager")
    options = {"lr": 0.05, "workers": 2, "steps": 30, "engine": "inline"}
    with pytest.warns(UserWarning, match="trained as it was before torch.compile"):
        run = lc.fit(compiled, nn.functional.mse_loss, data, **options)
    assert run.state.keys() == {"weight", "bias"}
    assert torch.equal(model.weight, run.state["weight"])


def test_packages_that_the_documentation_names_need_no_import_of_their_own() -> None:
    names = ("data.load", "experiments.Store", "testing.check_engine", "report.svg", "paper.preset", "bench.soak")
    code = "import latecomer as lc\n" + "\n".join(f"lc.{name}" for name in names)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


class Raises:
    """A command that ends as it is calls."""

    error: OSError

    def run(self, console: Console) -> None:
        raise self.error


def test_a_file_that_cannot_be_read_is_not_reported_as_unwritable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latecomer.cli._entry._parse", lambda *_: Raises())
    for error, words in (
        (FileNotFoundError(2, "No such file or directory", "x.toml"), "cannot open x.toml: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ):
        Raises.error = error
        assert run_command(None, "latecomer", "", []) == 2
        assert capsys.readouterr().err == f"latecomer: {words}\n"
    (tmp_path / "file").write_text("")
    monkeypatch.undo()
    assert main(["demo", "--out", str(tmp_path / "file" / "below")]) == 2
    assert capsys.readouterr().err.startswith("latecomer: cannot write ")


def test_numbers_of_numpy_and_torch_can_be_recorded_and_replayed(tmp_path: Path) -> None:
    problem = lc.problems.quadratic()
    options = {"lr": np.float32(0.1), "beta": torch.tensor(0.25), "engine": "inline", "steps": 20}
    run = lc.fit(problem, method="catch-up", record=tmp_path / "run.parquet", **options)
    assert run.options == {"lr": float(np.float32(0.1)), "beta": 0.25}
    assert lc.training.replay(run.record, problem).difference == 0.0


def test_a_policy_with_a_function_resumes_in_another_process(tmp_path: Path) -> None:
    """The address of a function is another one in every process, and says nothing about the policy."""

    class Rated(lc.policy.Async):
        name = "rated"

        def __init__(self, rate: Any) -> None:
            super().__init__()
            self.rate = rate

    shown = repr(Rated(lambda delay: 1.0))
    assert "0x" not in shown
    assert shown == repr(Rated(lambda delay: 1.0))


def test_a_summary_counts_cancelled_jobs() -> None:
    policy = lc.policy.RingmasterStop(4, R=2)
    trace = lc.delays.WorkerSpeeds([1.0, 1.5, 2.5, 9.0]).trace(60, policy=policy)
    run = lc.simulate(lc.problems.quadratic(), "ringmaster-stop", trace, lr=0.01, R=2)
    count = int((trace.columns["status"] == lc.trace.STATUSES.index("cancelled")).sum())
    assert count > 0
    assert run.summary()["cancelled"] == f"{count:,} jobs"
    deaths = dataclasses.replace(run, deaths=count).summary()
    assert deaths["cancelled"] == f"{count:,} jobs, whose worker processes count as deaths"
    calm = lc.simulate(lc.problems.quadratic(), "async-sgd", lc.delays.WorkerSpeeds([1.0, 2.0]).trace(5), lr=0.01)
    assert "cancelled" not in calm.summary()
