"""A replay has the rows of the run it repeats, and says in one line how another model differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import latecomer as lc
from engine_tasks import data, regression, score
from latecomer.cli import main
from latecomer.core.structure import first_difference, structure
from latecomer.training import replay

METRICS = ["update", "arrival", "train_loss", "delay", "loss"]


def recorded(folder: Path, **options: Any) -> lc.Run:
    given = {"method": "momentum", "lr": 0.05, "workers": 2, "engine": "inline", "steps": 47, **options}
    return lc.fit(regression(evaluate=score), record=folder / "run.parquet", **given)


@pytest.mark.parametrize("every", [None, 10])
def test_a_replay_has_the_rows_of_its_run(every: int | None, tmp_path: Path) -> None:
    run = recorded(tmp_path, evaluate_every=every)
    again = replay(run.record, regression(evaluate=score)).run
    assert again.history.select(METRICS).equals(run.history.select(METRICS))
    assert again.final["train_loss"] == run.final["train_loss"]
    assert replay(run.record, regression(), evaluate_every=20).run.history["arrival"].to_list() == [0, 20, 40, 47]


def test_a_record_that_does_not_say_how_often_is_evaluated_at_its_ends(tmp_path: Path) -> None:
    recorded(tmp_path)
    file = tmp_path / "run.safetensors"
    with safe_open(file, "pt") as opened:
        about, x = json.loads(opened.metadata()["latecomer"]), opened.get_tensor("x")
    assert about.pop("evaluate_every") == 4
    save_file({"x": x}, file, {"latecomer": json.dumps(about)})  # as of an earlier version: without digests too
    assert replay(tmp_path / "run.parquet", regression()).run.history["arrival"].to_list() == [0, 47]


def test_the_command_takes_the_spacing_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, record = tmp_path / "spaced_task.py", str(tmp_path / "run.parquet")
    script.write_text("import latecomer as lc\n\n\ndef task():\n    return lc.problems.quadratic()\n")
    words = ["train", f"{script}:task", "--engine", "inline", "--steps", "33", "--record", record, "--json"]
    assert main([*words, "--evaluate-every", "8"]) == 0
    last = json.loads(capsys.readouterr().out)["rows"][-1]
    words = ["replay", record, "--task", f"{script}:task", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["final"]["delay"] == last["delay"]
    assert main([*words, "--evaluate-every", "33"]) == 0
    assert json.loads(capsys.readouterr().out)["final"]["delay"] != last["delay"]
    assert main([*words, "--evaluate-every", "0"]) == 2
    assert "Invalid evaluate_every value: 0 (expected evaluate_every >= 1)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(3, 1), r"has Sequential\(\(0\): Linear.*\) where this one has Linear\(in_features=3, .*\)$"),
        (nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))),
         r"has \(1\): Linear\(.*\) where this one has \(1\): Sequential\(\(0\): ReLU\(\), \(1\): Linear\(.*\)\)$"),
        (nn.Sequential(nn.Linear(3, 4)), r"has \(1\): Linear\(.*\) where this one has nothing$"),
    ],
)  # fmt: skip
def test_another_model_is_told_in_one_line(model: nn.Module, words: str, tmp_path: Path) -> None:
    def task(network: nn.Module) -> lc.Task:
        return lc.Task(network, nn.functional.mse_loss, data(), batch_size=16)

    original = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    lc.fit(task(original), lr=0.01, workers=1, engine="inline", steps=5, record=tmp_path / "run.parquet")
    with pytest.raises(ValueError, match=words) as caught:
        replay(tmp_path / "run.parquet", task(model))
    assert "\n" not in str(caught.value)


def test_a_long_part_of_a_model_is_cut() -> None:
    deep = nn.Sequential(*(nn.Linear(3, 3) for _ in range(50)))
    assert first_difference(structure(deep), structure(nn.ReLU())).count(" ... where this one has ReLU()") == 1


def test_a_replay_by_command_gives_another_method_the_learning_rate_of_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record of a run without a learning rate has none to pass on."""
    task, path = str(Path(__file__).parents[2] / "examples" / "own_model.py") + ":task", str(tmp_path / "run.parquet")
    made = ["train", task, "--method", "rate-free", "--engine", "inline", "--steps", "10", "--record", path]
    assert main(made) == 0
    assert main(["replay", path, "--task", task, "--method", "momentum"]) == 0
    assert "momentum was replayed on the schedule of run.parquet" in capsys.readouterr().out


def test_a_replay_keeps_the_schedule_so_a_method_with_another_policy_is_refused(tmp_path: Path) -> None:
    problem, options = lc.problems.quadratic(), {"lr": 0.05, "engine": "inline", "workers": 4, "steps": 40}
    free, held = tmp_path / "free.parquet", tmp_path / "held.parquet"
    lc.fit(problem, method="async-sgd", record=free, **options)
    lc.fit(problem, method="ringmaster", R=2, record=held, **options)
    for method in ("rennala", "ringmaster", "sync-minibatch", "fedbuff", "async-minibatch"):
        with pytest.raises(ValueError, match=rf"{method} decides by \w+\(.*free.parquet is a schedule of Async\(\)"):
            replay(free, problem, method=method)
    with pytest.raises(ValueError, match=r"decides by Ringmaster\(R=3\), and held.parquet is a schedule of .*R=2"):
        replay(held, problem, R=3)
    stopped = tmp_path / "stopped.parquet"
    lc.fit(problem, method="ringmaster-stop", R=2, record=stopped, **options)
    for record, words in (held, r"R=2\), which .* Simulate it on the recorded durations instead"), (
        stopped, r"It cannot be simulated on the recorded durations either\. \d+ jobs of the record were cancelled"
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            replay(record, problem, method="rennala")
    # The same policy with the same options, and one that was asked for, are no other schedule.
    assert replay(held, problem, R=2).difference == 0.0
    assert replay(held, problem, method="ringmaster-lmo").run.trace.header.policy == "ringmaster"
    assert replay(held, problem, method="ringmaster-lmo", R=2, beta=0.2).run.options["beta"] == 0.2
    assert replay(free, problem, method="rennala", policy="async").run.method == "rennala"
    assert replay(held, problem, method="momentum").run.trace.header.policy == "ringmaster"
