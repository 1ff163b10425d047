"""Code of the user's that raises, or ends the process, gets one sentence with its place on the command line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from latecomer._util.places import user_code
from latecomer.cli.main import main

Capture = pytest.CaptureFixture[str]

RULES = """
import sys

import torch

import latecomer as lc


class Odd(Exception):
    def __init__(self, one, two):  # which cannot be unpickled
        super().__init__(f"{one} and {two}")


class Making(lc.optim.AsyncSGD):
    def __init__(self, params, lr=0.1):
        raise RuntimeError("no optimizer today")  # making


class Stepping(lc.optim.AsyncSGD):
    def _update(self, group, params, grads, arrival):
        if self.t > 2:
            raise Odd(1, 2)  # stepping


class Leaving(lc.optim.AsyncSGD):
    def _update(self, group, params, grads, arrival):
        sys.exit(0)  # leaving


class Receiving(lc.policy.Policy):
    name = "receiving"

    def receive(self, ticket, delay):
        self.state["count"] = self.state.get("count", 0) + 1
        return lc.policy.Decision("apply") if self.state["count"] < 6 else {}["nothing"]  # receiving


class Refused(lc.optim.AsyncSGD):
    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=-lr)


lc.optim.register("making", Making)
lc.optim.register("stepping", Stepping)
lc.optim.register("leaving", Leaving)
lc.optim.register("receiving", lc.optim.AsyncSGD, policy=Receiving)
lc.optim.register("refused", Refused)


def no_model():
    raise RuntimeError("no model")  # no_model


def no_loss(model, batch):
    raise KeyError("no loss")  # no_loss


def ends(model, batch):
    sys.exit(0)  # ends


def no_metrics(model):
    raise RuntimeError("no metrics")  # no_metrics


def made(model, loss=torch.nn.functional.mse_loss, **more):
    data = torch.utils.data.TensorDataset(torch.zeros(40, 3), torch.ones(40, 1))
    return lc.Task(model, loss, data, **more)


linear = torch.nn.Linear(3, 1)
task = made(linear)
modelless = made(no_model)
lossless = made(linear, no_loss)
ending = made(linear, ends)
unevaluated = made(linear, evaluate=no_metrics)


def exits():
    sys.exit(0)  # exits
"""

SPEC = """
name = "mine"
imports = ["raising_rules.py"]
steps = 20
seeds = [0]
[problem]
name = "quadratic"
[delays]
name = "sample-cost"
workers = 4
cost = [1.0, 10.0]
[[grid]]
method = "METHOD"
lr = [0.1, 0.2]
"""

RAISED = {
    "making": "RuntimeError: no optimizer today",
    "stepping": "Odd: 1 and 2",
    "leaving": "SystemExit: 0",
    "receiving": "KeyError: 'nothing'",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: dict[str, Any]) -> Path:
    """A folder with methods and tasks that raise."""
    monkeypatch.chdir(tmp_path)
    Path("raising_rules.py").write_text(RULES)
    return tmp_path


def place(folder: Path, mark: str) -> str:
    line = next(number for number, text in enumerate(RULES.splitlines(), 1) if text.endswith(f"# {mark}"))
    return f"({folder / 'raising_rules.py'}, line {line})"


def said(words: str, capsys: Capture) -> str:
    """Return the one sentence of a command that fails."""
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error.strip()


def swept(method: str, folder: Path) -> str:
    """Write a sweep of a method, and return the sentence that it ends with."""
    Path("spec.toml").write_text(SPEC.replace("METHOD", method))
    return f"latecomer: The method {method} raised {RAISED[method]} {place(folder, method)}"


@pytest.mark.parametrize("method", RAISED)
def test_a_registered_method_that_raises_is_named_by_sweep_run_and_compare(
    method: str, folder: Path, capsys: Capture
) -> None:
    sentence = swept(method, folder)
    assert said("sweep spec.toml --processes 1", capsys) == sentence
    assert said(f"run --problem quadratic --method {method} --steps 20 --import raising_rules.py", capsys) == sentence
    chosen = f"--methods {method} --problems quadratic --delays slow-samples --processes 1"
    assert said(f"compare --import raising_rules.py {chosen}", capsys) == sentence


@pytest.mark.parametrize("method", ["stepping", "leaving"])
def test_what_raises_in_another_process_of_a_sweep_is_the_same_sentence(
    method: str, folder: Path, capsys: Capture
) -> None:
    sentence = swept(method, folder)
    assert said("sweep spec.toml --processes 2", capsys) == sentence


def test_training_and_replay_name_the_place(folder: Path, capsys: Capture) -> None:
    train = "train raising_rules.py:{} --engine inline --steps 20 --set lr=0.1 --method {}"
    assert main([*train.format("task", "momentum").split(), "--record", "run.parquet"]) == 0
    capsys.readouterr()
    for method, error in RAISED.items():
        assert (
            said(train.format("task", method), capsys) == f"latecomer: Your code raised {error} {place(folder, method)}"
        )
    for method in ("making", "stepping", "leaving"):
        sentence = f"latecomer: Your code raised {RAISED[method]} {place(folder, method)}"
        assert said(f"replay run.parquet --task raising_rules.py:task --method {method}", capsys) == sentence
    for task, mark, error in (
        ("modelless", "no_model", "RuntimeError: no model"),
        ("lossless", "no_loss", "KeyError: 'no loss'"),
        ("ending", "ends", "SystemExit: 0"),
        ("unevaluated", "no_metrics", "RuntimeError: no metrics"),
    ):
        sentence = f"latecomer: Your code raised {error} {place(folder, mark)}"
        assert said(f"replay run.parquet --task raising_rules.py:{task}", capsys) == sentence
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert f"{error} {place(folder, mark)}" in said(train.format(task, "momentum"), capsys)


def test_a_task_that_ends_the_process_gets_a_sentence(folder: Path, capsys: Capture) -> None:
    sentence = f"latecomer: raising_rules.py:exits raised SystemExit: 0 {place(folder, 'exits')}"
    assert said("train raising_rules.py:exits", capsys) == sentence


def test_what_the_library_refuses_stays_as_it_is(folder: Path, capsys: Capture) -> None:
    words = "run --problem quadratic --method refused --steps 20 --import raising_rules.py"
    assert said(words, capsys).startswith("latecomer: Invalid lr value: -0.1 (expected")
    assert said("train raising_rules.py:task --engine inline --method refused", capsys).startswith(
        "latecomer: Invalid lr value"
    )


def test_a_bug_of_the_library_is_not_hidden(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from latecomer.trace import recorder

    source = compile("def arrived(*args):\n    raise KeyError('ours')\n", recorder.__file__, "exec")
    exec(source, names := {})  # type: ignore[var-annotated]
    monkeypatch.setattr(recorder.Recorder, "arrived", names["arrived"])
    Path("spec.toml").write_text(SPEC.replace("METHOD", "stepping"))
    with pytest.raises(KeyError, match="ours"):
        main(["sweep", "spec.toml", "--processes", "1"])


def test_nobodys_mistakes_pass() -> None:
    for error in (MemoryError("full"), BrokenPipeError(), KeyboardInterrupt()):
        with pytest.raises(type(error)) as found, user_code("Something"):
            raise error
        assert found.value is error
    words = r"Something raised StopIteration \(.*test_user_code.py, line"
    with pytest.raises(ValueError, match=words), user_code("Something"):
        raise StopIteration
