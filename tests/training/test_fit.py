"""What fit does when nothing goes wrong: every method, both modes, schedules, clipping, data, mistakes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, WeightedRandomSampler

import latecomer as lc
from engine_tasks import by_sign, data, network, regression, score
from latecomer.cli.main import main
from latecomer.cli.train import load_task
from latecomer.core.result import RunWarning
from latecomer.engines.inline import InlineEngine
from latecomer.engines.local import LocalEngine
from latecomer.engines.ray.cluster import import_ray
from latecomer.testing import CHECKS, check_engine
from latecomer.training import Task, replay
from support import KINDS, OPTIONS

ROOT = Path(__file__).parent.parent.parent
OWN = ["train", str(ROOT / "examples" / "own_model.py") + ":task"]


def test_the_local_engine_keeps_the_contract() -> None:
    assert len(check_engine(LocalEngine)) == len(CHECKS)


def test_the_inline_engine_keeps_the_contract() -> None:
    assert len(check_engine(InlineEngine, processes=False)) == len(CHECKS) - 3  # no job can kill its worker


def test_checks_that_do_not_exist_are_named() -> None:
    with pytest.raises(ValueError, match="Unknown checks: bytes"):
        check_engine(InlineEngine, processes=False, only=["bytes"])
    assert len(check_engine(InlineEngine, processes=False, only=["killed"])) == 4


@pytest.mark.parametrize("name", KINDS)
def test_every_method_trains_and_replays_to_the_bit(name: str, tmp_path: Path) -> None:
    options = {**OPTIONS[name], "lr": 1e-3 if name == "ordered-mu2-anytime" else 0.02}
    options.pop("workers", None)  # the server knows the number
    task = regression()
    path = tmp_path / "run.parquet"
    result = lc.fit(task, method=name, workers=3, engine="inline", steps=25, record=path, **options)
    assert result.server.arrivals == 25
    assert replay(path, task).difference == 0.0


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_two_points_batchnorm_dropout_clipping_groups_and_a_scheduler_replay_to_the_bit(
    engine: str, tmp_path: Path
) -> None:
    task = regression(
        clip_norm=0.5,
        clip_value=0.2,
        group_fn=by_sign,
        groups=("minus", "plus"),
        evaluate=score,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.5),
    )
    path = tmp_path / "run.parquet"
    result = lc.fit(task, method="ordered-mu2", lr=0.1, workers=2, engine=engine, steps=40, record=path)
    assert result.server.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 16)
    assert set(result.trace.group.tolist()) == {0, 1}
    assert result.history["update"].to_list() == list(range(0, 41, 4))
    assert result.state["1.num_batches_tracked"] == 40
    again = replay(path, task)
    assert again.difference == 0.0
    assert all(torch.equal(result.state[key], again.run.state[key]) for key in result.state)
    assert again.run.final["loss"] == pytest.approx(result.final["loss"])
    other = replay(path, task, method="catch-up")
    assert other.difference is None
    assert other.run.method == "catch-up"


def test_synchronous_training_waits_and_averages(tmp_path: Path) -> None:
    task, path = regression(), tmp_path / "run.parquet"
    result = lc.fit(task, method="momentum", lr=0.1, workers=3, steps=30, sync=True, record=path)
    trace = result.trace
    assert trace.header.policy == "synchronous"
    assert trace.delay.max() == 0
    assert result.server.optimizer.t == 10
    assert (trace.update > 0).sum() == 10
    assert np.array_equal(trace.version, np.repeat(np.arange(1, 11), 3))
    assert replay(path, task).difference == 0.0


def test_a_model_is_trained_in_place_and_frozen_parts_stay() -> None:
    model = network()
    model[0].requires_grad_(False)
    model[1].eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    lc.fit(model, nn.MSELoss(), data(), lr=0.1, engine="inline", steps=10)
    assert not torch.equal(model[3].weight, before["3.weight"])
    for key in ("0.weight", "0.bias", "1.running_mean", "1.num_batches_tracked"):
        assert torch.equal(model.state_dict()[key], before[key])
    assert not model[1].training


def test_epochs_see_every_sample_once_and_samplers_are_seeded_order_like_a_loaders() -> None:
    task = Task(network, nn.functional.mse_loss, data(64), batch_size=16)
    whole = torch.cat([task.batch_of(number, 0, 0)[0] for number in range(4)])
    assert torch.equal(whole.sort(0).values, data(64).tensors[0].sort(0).values)
    again = torch.cat([task.batch_of(number, 5, 0)[0] for number in range(4, 8)])
    assert not torch.equal(whole, again)
    assert torch.equal(again.sort(0).values, whole.sort(0).values)
    shuffled = Task(network, nn.functional.mse_loss, data(64), batch_size=16, sampler=RandomSampler(data(64)))
    epoch = torch.cat([shuffled.batch_of(number, 0, 0)[0] for number in range(4)])
    assert torch.equal(epoch.sort(0).values, whole.sort(0).values)
    weights = WeightedRandomSampler([1.0] * 8 + [0.0] * 56, 64)
    few = Task(network, nn.functional.mse_loss, data(64), batch_size=16, sampler=weights)
    drawn = torch.cat([few.batch_of(number, 0, 0)[0] for number in range(8)])
    assert torch.isin(drawn, data(64).tensors[0][:8]).all()


def test_an_own_batch_function_and_independent_draws(tmp_path: Path) -> None:
    for number, kind in enumerate(({"sampler": "independent"}, {})):
        path = tmp_path / f"{number}.parquet"
        extra: dict[str, Any] = {"dataset": data()} if kind else {"batch_fn": draw}
        task = Task(network, nn.functional.mse_loss, **extra, **kind)
        lc.fit(task, lr=0.05, workers=2, engine="inline", steps=10, record=path)
        assert replay(path, task).difference == 0.0


def draw(sample: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 3) + torch.from_numpy(np.random.normal(size=(8, 3))).float()
    return x, x.sum(1, keepdim=True)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        yield 1


class Endless(DataLoader[Any]):
    def __iter__(self) -> Any:
        while True:
            yield from super().__iter__()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": Stream()}, "pass batch_fn="),
        ({"dataset": None}, "needs either a dataset or a batch_fn"),
        ({"batch_size": 1000}, r"the dataset has 128 samples\)$"),
        ({"dataset": (torch.ones(128, 3), torch.ones(128, 1))}, r"2 samples\): if its .* pass .*TensorDataset"),
        ({"dataset": {"x": torch.ones(128, 3)}}, "Invalid dataset: a dict with the keys 'x' .*TensorDataset"),
        ({"dataset": "train.csv"}, "Invalid dataset: train.csv .expected an object whose"),
        ({"batch_size": 0}, "Invalid batch_size value: 0"),
        ({"sampler": "shuffled"}, "expected None, 'independent'"),
        (
            {"method": "adam"},
            r"Unknown method 'adam': did you mean catch-up-adamw or rate-free\? .`latecomer meth",
        ),
        ({"batchsize": 8}, r"no option 'batchsize', and fit has no such argument: did you mean batch_size\?"),
        ({"optimizer": torch.optim.AdamW}, "no option 'optimizer', .*: pass it as method="),
        ({"engine": "cloud"}, "Unknown engine 'cloud'"),
        ({"steps": 0}, "Invalid steps value: 0"),
        ({"workers": 0}, "Invalid workers value: 0"),
        ({"timeout": -1.0}, "Invalid timeout value"),
        ({"clip_norm": -1.0}, "Invalid clip_norm value"),
        ({"steps": None}, "either steps=.* or epochs=.* got neither"),
        ({"epochs": 1}, "either steps=.* or epochs=.* got both"),
        ({"steps": None, "epochs": 0}, "Invalid epochs value: 0"),
        ({"steps": None, "epochs": 1, "dataset": None, "batch_fn": draw}, "epochs= needs a dataset"),
        ({"dataset": None, "batch_fn": draw, "batch_size": 8}, "belong to a dataset: with batch_fn leave them out"),
        ({"autocast": "float16"}, "float16 needs loss scaling"),
        ({"autocast": "int8"}, "expected None or 'bfloat16'"),
        ({"accumulate": 0}, "Invalid accumulate value: 0"),
        ({"dataset": DataLoader(Stream())}, "pass batch_fn="),
        ({"dataset": DataLoader(data(), batch_size=8), "batch_size": 8}, "The DataLoader has its own batch_size"),
        ({"dataset": Endless(data(), batch_size=8)}, "Endless changes how a DataLoader draws batches"),
        ({"groups": ("a", "b")}, "one name per group"),
        ({"checkpoint": __file__}, "is a file"),
        ({"collate_fn": 3}, r"Invalid collate_fn: 3 \(expected a function\)"),
        ({"groups": 3}, r"Invalid groups value: 3 \(expected a list of names\)"),
        ({"keep": "x"}, "Invalid keep value: 'x'"),
        ({"checkpoint_every": 0}, "Invalid checkpoint_every value: 0"),
        ({"checkpoint_every": 5}, "checkpoint_every=5 needs a folder for the checkpoints: pass checkpoint= too"),
        ({"keep": 2}, "keep=2 needs a folder for the checkpoints: pass checkpoint= too"),
        ({"callbacks": 3}, "Invalid callbacks value: 3"),
    ],
)
def test_invalid_arguments_raise_before_anything_starts(change: dict[str, Any], words: str) -> None:
    options: dict[str, Any] = {"loss_fn": nn.functional.mse_loss, "dataset": data(), "steps": 5, "lr": 0.1, **change}
    with pytest.raises((ValueError, TypeError), match=words):
        lc.fit(network(), **options)


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match=r"parameter 'weight' is torch.complex64 \(expected a floating-point dtype\)"):
        lc.fit(nn.Linear(3, 1, dtype=torch.complex64), nn.functional.mse_loss, data(), steps=5, lr=0.1)


def test_a_buffer_that_cannot_be_averaged_is_refused() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.layer(x)

    with pytest.raises(ValueError, match="The buffer 'calls' changed during a job"):
        lc.fit(Counts(), nn.functional.mse_loss, data(), lr=0.1, steps=5, engine="inline")


def test_ctrl_c_leaves_a_checkpoint_and_a_record(tmp_path: Path) -> None:
    class Interrupt(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            if outcome.arrival == 12:
                signal.raise_signal(signal.SIGINT)

    options: dict[str, Any] = {"lr": 0.05, "workers": 2, "steps": 30, "checkpoint": tmp_path / "ckpt"}
    with pytest.raises(KeyboardInterrupt):
        lc.fit(regression(), record=tmp_path / "run.parquet", callbacks=[Interrupt()], **options)
    assert len(lc.Trace.load(tmp_path / "run.parquet")) == 12
    assert replay(tmp_path / "run.parquet", regression()).difference == 0.0
    result = lc.fit(regression(), record=tmp_path / "run.parquet", **options)
    assert result.server.arrivals == 30
    assert replay(tmp_path / "run.parquet", regression()).difference == 0.0


def test_the_history_can_be_read_by_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    task = regression(evaluate=score)
    options: dict[str, Any] = {"lr": 0.01, "engine": "inline", "steps": 30, "evaluate_every": 10}
    result = lc.fit(task, tensorboard=tmp_path / "logs", **options)
    written = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert set(written.Tags()["scalars"]) == {"loss", "train_loss", "delay"}
    for name in ("loss", "train_loss", "delay"):
        rows = result.history.drop_nulls(name)
        events = written.Scalars(name)
        assert [event.step for event in events] == rows["update"].to_list()
        assert [event.value for event in events] == pytest.approx(rows[name].to_list(), rel=1e-6)


def test_a_recorded_run_feeds_delays_and_diagnostics(tmp_path: Path) -> None:
    """All workers start at once and go on at once, as the paper has it, so the decomposition of its proof applies."""
    problem = lc.problems.quadratic()
    options: dict[str, Any] = {"lr": 0.02, "beta": 0.1}
    method = "ordered-momentum"
    result = lc.fit(problem, method=method, workers=3, steps=150, record=tmp_path / "run.parquet", **options)
    assert result.trace.header.strict
    trace = lc.delays.Recorded(tmp_path / "run.parquet").trace()
    rows = lc.theory.diagnose(problem, trace, **options)
    assert rows.height > 100
    assert rows["residual"].max() < 1e-12
    assert bool((rows["delay_bias"] <= rows["delay_limit"] + 1e-12).all())
    again = lc.simulate(problem, method, trace, **options)
    assert all(torch.equal(again.state[name], result.state[name]) for name in result.state)


def test_missing_tensorboard_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"latecomer\[tensorboard\]"):
        lc.fit(regression(), lr=0.1, engine="inline", steps=5, tensorboard="logs")


def test_the_example_of_an_own_model_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = str(ROOT / "examples" / "own_model.py")
    record = str(tmp_path / "run.parquet")
    train = ["train", f"{example}:task", "--steps", "60", "--workers", "2", "--method", "catch-up", "--set", "lr=0.1"]
    train += ["--record", record, "--checkpoint", str(tmp_path / "ckpt"), "--save", str(tmp_path / "m.safetensors")]
    assert main(train) == 0
    printed = capsys.readouterr().out
    assert "Trace written to" in printed
    assert "training: 60 of 60" in printed  # a log gets lines, not a bar
    assert (tmp_path / "m.safetensors").stat().st_mode == (tmp_path / "run.parquet").stat().st_mode
    assert set(load_file(tmp_path / "m.safetensors")) == set(load_task(f"{example}:task").model(0).state_dict())
    assert main(train) == 0
    assert "Resumed from arrival 60" in capsys.readouterr().out
    figure = tmp_path / "timeline.svg"
    assert main(["trace", "show", record, "--figure", str(figure)]) == 0
    assert "<svg" in figure.read_text()
    assert main(["trace", "show", record, "--figure", str(tmp_path / "timeline.png")]) == 2
    assert "figures are drawn as SVG" in capsys.readouterr().err
    assert main(["replay", record, "--task", f"{example}:task"]) == 0
    assert "bit for bit" in capsys.readouterr().out
    assert main(["replay", record, "--task", f"{example}:task", "--method", "momentum", "--set", "lr=0.05"]) == 0
    assert "momentum was replayed on the schedule" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train", "nowhere.py:task"], "There is no file"),
        (["train", "task"], "expected a Python file and a name in it"),
        (["train", str(ROOT / "examples" / "own_model.py") + ":nothing"], "has no 'nothing'"),
        (["train", str(ROOT / "examples" / "own_model.py") + ":LENGTHS"], "is of type tuple"),
        ([*OWN, "--set"], "--set is given without a value (expected name=value, such as lr=0.05)"),
        ([*OWN, "--set", "lr=0.1", "--set"], "--set is given without a value"),
        ([*OWN, "--checkpoint-every", "5"], "checkpoint_every=5 needs a folder for the checkpoints"),
        ([*OWN, "--record", "r.txt"], "call it r.parquet"),
        ([*OWN, "--address", "auto"], "--address belongs to --engine ray, not to local"),
        ([*OWN, "--cpus", "2"], "--cpus belongs to --engine ray, not to local"),
        ([*OWN, "--gpus", "0", "--engine", "inline"], "--gpus belongs to --engine ray, not to inline"),
        ([*OWN, "--bf16"], "--bf16 belongs to --engine ray, not to local"),
        ([*OWN, "--data-plane", "object-store"], "--data-plane belongs to --engine ray, not to local"),
        ([*OWN, "--engine", "ray", "--cpus", "nan"], "Invalid --cpus value: nan"),
        ([*OWN, "--engine", "ray", "--gpus", "-1"], "Invalid --gpus value: -1"),
        ([*OWN, "--engine", "ray", "--data-plane", "pigeon"], "data-plane"),
        ([*OWN, "--min-workers", "3"], "Invalid min_workers"),
        ([*OWN, "--max-workers", "1"], "Invalid max_workers"),
        (["replay", "nowhere.parquet", "--problem", "quadratic"], "nowhere.parquet"),
        (["replay", "nowhere.parquet"], "name what was trained"),
    ],
)
def test_bad_input_on_the_command_line_is_one_sentence(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_what_belongs_to_ray_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def check(_: Any, **options: Any) -> None:
        given.update(options)
        raise ValueError("this is enough")

    monkeypatch.setattr(lc.training, "fit", check)
    argv = ["--workers", "4", "--min-workers", "2", "--max-workers", "16", "--engine", "ray", "--address", "auto"]
    assert main([*OWN, *argv, "--cpus", "0.5", "--gpus", "1", "--bf16", "--data-plane", "object-store"]) == 2
    assert (given["workers"], given["min_workers"], given["max_workers"]) == (4, 2, 16)
    engine = given["engine"]
    assert (engine.address, engine.cpus, engine.gpus) == ("auto", 0.5, 1.0)
    assert (engine.bf16, engine.data_plane) == (True, "object-store")
    main([*OWN, "--engine", "ray"])
    assert (given["engine"].address, given["engine"].cpus, given["engine"].data_plane) == (None, 1.0, "zeromq")


def test_ray_brings_the_file_of_a_task_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of a standing cluster do not have its folder on their path."""
    script, sent = tmp_path / "brought_task.py", []

    def check(task: Any, **_: Any) -> None:
        sent.append(import_ray().cloudpickle.dumps(task))
        raise ValueError("this is enough")

    monkeypatch.setattr(lc.training, "fit", check)
    monkeypatch.setattr(sys, "path", list(sys.path))
    script.write_text(BROUGHT)
    assert main(["train", f"{script}:task", "--engine", "ray"]) == 2
    sys.path.remove(str(tmp_path))
    monkeypatch.delitem(sys.modules, "brought_task")
    assert isinstance(import_ray().cloudpickle.loads(sent[0]), Task)
    assert "brought_task" not in sys.modules


BROUGHT = """
import torch
import latecomer as lc

def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()

def task():
    data = torch.utils.data.TensorDataset(torch.zeros(64, 1), torch.zeros(64, 1))
    return lc.Task(torch.nn.Linear(1, 1), loss, data)
"""


def test_the_command_begins_with_fewer_workers_than_there_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*OWN, "--steps", "20", "--engine", "inline", "--min-workers", "1", "--max-workers", "2"]
    assert main(argv) == 0
    assert "20 contributions" in capsys.readouterr().out


def test_missing_ray_is_one_sentence_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*OWN, "--engine", "ray", "--steps", "5"]) == 2
    assert capsys.readouterr().err == "latecomer: The Ray engine needs ray: pip install 'latecomer[ray]'\n"


def test_a_run_that_diverges_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "careless_task.py"
    script.write_text(CARELESS)
    sentence = "The run diverged and ended at arrival 100; 100 of 100 contributions were not finite: check the data"
    for method, rest in ("rate-free", " and the loss\n"), ("momentum", ", the loss and the learning rate\n"):
        assert main(["train", f"{script}:nan", "--steps", "300", "--workers", "1", "--method", method]) == 2
        assert sentence + rest in capsys.readouterr().err
    assert main(["train", f"{script}:nan", "--steps", "50", "--workers", "1"]) == 2
    assert "50 of 50 contributions were not finite and count with weight zero" in capsys.readouterr().err
    assert main(["train", f"{script}:raises"]) == 2
    assert "careless_task.py:raises raised RuntimeError: boom" in capsys.readouterr().err
    assert main(["train", f"{script}:needs"]) == 2
    assert "missing 1 required positional argument" in capsys.readouterr().err


class Nothing(lc.policy.Async):
    """A policy that drops everything."""

    name = "nothing"

    def receive(self, ticket: Any, delay: int) -> Any:
        return lc.policy.Decision("drop")


def test_a_run_that_should_not_be_trusted_says_so_at_the_line_that_called_fit() -> None:
    options = {"lr": 0.1, "engine": "inline", "steps": 30}
    for _ in range(2):  # a second run in the same process too
        with pytest.warns(RunWarning, match=r"After 30 contributions there was no update: the policy has held") as seen:
            lc.fit(lc.problems.quadratic(), policy=Nothing(), **options)
        assert seen[0].filename == __file__
    with pytest.warns(RunWarning, match=r"The run diverged and ended at arrival \d+; .* not finite: check the data"):
        lc.fit(lc.problems.quadratic(), **(options | {"lr": 1e300, "steps": 300}))


def test_a_replay_with_the_recorded_options_is_compared(tmp_path: Path) -> None:
    problem = lc.problems.quadratic()
    run = lc.fit(problem, method="catch-up", lr=0.1, beta=0.2, engine="inline", steps=20, record=tmp_path / "r.parquet")
    assert lc.training.replay(run.record, problem, method="catch-up", lr=0.1).difference == 0.0
    assert lc.training.replay(run.record, problem, lr=0.2).difference is None


CARELESS = """
import torch
import latecomer as lc

def nan():
    data = torch.utils.data.TensorDataset(torch.full((64, 1), float("nan")), torch.zeros(64, 1))
    return lc.Task(torch.nn.Linear(1, 1), torch.nn.functional.mse_loss, data)

def raises():
    raise RuntimeError("boom")

def needs(something):
    return something
"""


@pytest.mark.parametrize(
    "wrong",
    [
        {"sync": "yes"},
        {"scheduler": "cosine"},
        {"callbacks": [3]},
        {"record": 5},
        {"checkpoint": 5},
        {"tensorboard": 5},
        {"evaluate_every": 0},
        {"optimizer": torch.optim.SGD},
        {"foo": 1},
        {"method": "delay-filtered"},
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong))
    words = {"method": "Unknown method|needs a value for 'threshold'", "foo": "has no option 'foo'"}.get(name, name)
    with pytest.raises((TypeError, ValueError), match=words):
        lc.fit(regression(), **{"lr": 0.1, "engine": "inline", "steps": 5, **wrong})


def test_a_ticket_that_is_given_up_names_its_samples() -> None:
    class Broken(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, i: int) -> Any:
            if i == 7:
                raise ValueError("broken")
            return torch.zeros(1), torch.zeros(1)

    task = lc.Task(torch.nn.Linear(1, 1), torch.nn.functional.mse_loss, Broken(), batch_size=4)
    with pytest.warns(UserWarning, match=r"\(dataset\[i\] for i = (\d+, )*7(, \d+)*\) failed"):
        lc.fit(task, lr=0.1, engine="inline", steps=8)
