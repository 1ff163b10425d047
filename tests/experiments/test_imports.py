"""Methods of one's own in sweeps and on the command line: imported everywhere, and never mistaken for another rule."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from latecomer._util.imports import import_file
from latecomer.cli.main import main
from latecomer.experiments import Grid, RunSpec, Store, Sweep, missing, run_sweep
from latecomer.optim import METHODS, register
from latecomer.optim.sgd import AsyncSGD

Capture = pytest.CaptureFixture[str]

SPEC = """
name = "mine"
imports = ["rules.py"]
steps = 40
seeds = [0]
[problem]
name = "quadratic"
[delays]
name = "sample-cost"
workers = 4
cost = [1.0, 10.0]
[[grid]]
method = "halved"
lr = [0.1]
half = [2.0, 4.0]
[[grid]]
method = "fresh-halved"
lr = [0.1]
oldest = [2]
[[grid]]
method = "momentum"
lr = [0.1]
"""


def test_the_key_of_a_run_without_imports_is_what_it_always_was() -> None:
    run = RunSpec("quadratic", "momentum", "uniform", 50, delay_options={"workers": 3}, options={"lr": 0.1})
    content = {
        "format": 1, "problem": "quadratic", "method": "momentum", "delays": "uniform", "steps": 50, "seed": 0,
        "evaluate_every": 50, "problem_options": {}, "options": {"lr": 0.1}, "delay_options": {"workers": 3},
    }  # fmt: skip
    assert run.key == hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    assert "imports" not in run.as_dict()


def test_a_sweep_imports_the_file_in_every_process(own_rules: Path) -> None:
    path = own_rules.parent / "spec.toml"
    path.write_text(SPEC)
    sweep, store = Sweep.load(path), Store(own_rules.parent / "runs")
    assert sweep.imports == (str(own_rules),)
    assert Sweep.from_toml(sweep.to_toml()) == sweep
    done = list(run_sweep(sweep, store, processes=2))
    assert sorted(run.method for run in done) == ["fresh-halved", "halved", "halved", "momentum"]
    assert missing(sweep, store) == []
    records = {key: store.record(key)["spec"] for key in store.keys()}  # noqa: SIM118
    digest = hashlib.sha256(own_rules.read_bytes()).hexdigest()
    for key, spec in records.items():
        assert spec.get("imports") == (None if spec["method"] == "momentum" else {"rules.py": digest})
        assert RunSpec(**spec).key == key
    assert str(own_rules.parent) not in json.dumps(records), "no machine's paths in a store"


def test_another_rule_of_the_same_name_is_another_run(own_rules: Path, registry: dict[str, Any]) -> None:
    def keys() -> dict[str, str]:
        sweep = Sweep(
            "s", "quadratic", "uniform", 10, (0,), GRIDS, delay_options={"workers": 2}, imports=(str(own_rules),)
        )
        return {run.method: run.key for run in sweep.runs()}

    GRIDS = (Grid("halved", {"lr": [0.1]}), Grid("momentum", {"lr": [0.1]}))
    before = keys()
    stale = next(run for run in [RunSpec("quadratic", "halved", "uniform", 10, options={"lr": 0.1})])
    stale = RunSpec(**stale.as_dict())
    own_rules.write_text(own_rules.read_text().replace("0.5 **", "0.25 **"))
    for name in ("halved", "fresh-halved"):
        del registry[name]
    import sys

    del sys.modules["rules"]
    after = keys()
    assert before["momentum"] == after["momentum"]
    assert before["halved"] != after["halved"]
    with pytest.raises(ValueError, match=r"halved is defined otherwise than when the run began \(rules.py changed\)"):
        stale.check_files()


def test_a_method_without_a_file_is_refused_by_a_sweep(registry: dict[str, Any]) -> None:
    exec("register('typed', AsyncSGD)", {"register": register, "AsyncSGD": AsyncSGD})  # as in an interactive session
    run = RunSpec("quadratic", "typed", "uniform", 10, options={"lr": 0.1}, delay_options={"workers": 2})
    with pytest.raises(ValueError, match="typed was not registered in a file, so other processes cannot import it"):
        run.check()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rules.txt", "", r"Invalid file to import: .*rules.txt' \(expected a Python file"),
        ("rules.py", None, r"There is no file .*rules.py' to import"),
        ("rules.py", "1 / 0", "rules.py cannot be imported: ZeroDivisionError: division by zero"),
        ("json.py", "", "json.py has the name of another module, 'json': rename it"),
    ],
)
def test_a_file_that_cannot_be_imported_gets_a_sentence(
    name: str, content: str | None, words: str, tmp_path: Path, registry: dict[str, Any]
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        import_file(tmp_path / name)


@pytest.mark.parametrize("imports", ['"rules.py"', "[1]"])
def test_imports_of_a_spec_are_a_list_of_files(imports: str) -> None:
    with pytest.raises(ValueError, match="imports must be a list of Python files"):
        Sweep.from_toml(SPEC.replace('["rules.py"]', imports))


def test_commands_take_registered_names(
    own_rules: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, registry: dict[str, Any]
) -> None:
    monkeypatch.chdir(own_rules.parent)
    (own_rules.parent / "spec.toml").write_text(SPEC)
    assert main(["methods", "--import", "rules.py", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == list(METHODS)
    assert rows["halved"]["influence"] == "2^(-delay/half)"
    assert (rows["fresh-halved"]["influence"], rows["fresh-halved"]["policy"]) == ("not declared", "fresh")
    assert main(["methods", "show", "fresh-halved", "--import", "rules.py"]) == 0
    text = capsys.readouterr().out
    for words in ("optimizer   rules.Halved", "influence   not declared\n", "policy      fresh", "oldest        3"):
        assert words in text
    assert main(["sweep", "spec.toml", "--processes", "1", "--store", "runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["method"], row["seeds"]) for row in rows} == {("halved", 1), ("fresh-halved", 1), ("momentum", 1)}
    assert {row["half"] for row in rows} & {2.0, 4.0}, "a hyper-parameter of one's own tells configurations apart"
    common = ["--problem", "quadratic", "--steps", "20", "--store", "runs", "--import", "rules.py"]
    assert main(["run", "--method", "halved", "--set", "half=3", *common]) == 0
    assert main(["run", "--method", "fresh-halved", *common]) == 2
    assert "has no clock" in capsys.readouterr().err
    assert main(["run", "--method", "halved", "--imprt", "rules.py"]) == 2
    assert "there is no option '--imprt': did you mean --import?" in capsys.readouterr().err


def test_training_and_replay_take_registered_names(
    own_rules: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, registry: dict[str, Any]
) -> None:
    monkeypatch.chdir(own_rules.parent)
    (own_rules.parent / "task_of_own_rules.py").write_text("import latecomer as lc\ntask = lc.problems.quadratic()\n")
    given = ["--method", "fresh-halved", "--set", "lr=0.1", "oldest=0", "--engine", "inline", "--steps", "20"]
    task = ["--import", "rules.py", "--import", "task_of_own_rules.py"]
    assert main(["train", "task_of_own_rules.py:task", *task, *given, "--record", "r.parquet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deaths"] > 0, "every arrival cancels the other worker's job"
    assert main(["replay", "r.parquet", "--task", "task_of_own_rules.py:task", *task, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"] == 0.0
    registry.pop("fresh-halved")
    assert main(["replay", "r.parquet", "--task", "task_of_own_rules.py:task"]) == 2
    assert "a method of your own is known once the file that registers it is imported" in capsys.readouterr().err
