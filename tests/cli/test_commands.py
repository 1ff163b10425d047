"""What every command has in common: help with an example, suggestions, one sentence on bad input, JSON alone."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from latecomer.cli import _progress
from latecomer.cli._options import hyper_parameters
from latecomer.cli._output import JsonConsole, show
from latecomer.cli.main import COMMANDS, Group, _class, main
from latecomer.optim import METHODS

Capture = pytest.CaptureFixture[str]


def leaves() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for section in COMMANDS.values():
        for name, each in section.items():
            if isinstance(each, Group):
                found |= {f"{name} {sub}": _class(where) for sub, where in each.commands.items()}
            else:
                found[name] = _class(each)
    return found


LEAVES = leaves()
WITHOUT_TABLE = {"data get", "completion"}
NOTHING_RANDOM = WITHOUT_TABLE | {"data list", "trace show", "methods list", "methods show", "runs", "replay", "report"}
SEEDS_OF_A_PLAN = {"reproduce", "compare"}  # the plan names the seeds it is judged on


@pytest.mark.parametrize("name", LEAVES)
def test_help_has_an_example_of_this_command(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"Example: latecomer {name.removesuffix(' list') if name.startswith('methods') else name}" in text


@pytest.mark.parametrize("name", LEAVES)
def test_commands_take_json_and_a_seed(name: str) -> None:
    fields = {field.name for field in dataclasses.fields(LEAVES[name])}
    assert ("json" in fields) == (name not in WITHOUT_TABLE)
    assert ("seed" in fields) == (name not in NOTHING_RANDOM | SEEDS_OF_A_PLAN)


def test_the_overview_lists_every_command_by_use(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for title, commands in COMMANDS.items():
        after = lines[lines.index(f"{title}:") + 1 :]
        after = after[: after.index("")]
        assert [line.split()[0] for line in after if line[2] != " "] == list(commands)
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag: str, capsys: Capture) -> None:
    assert main([flag]) == 0
    assert capsys.readouterr().out.startswith("latecomer 0.")


@pytest.mark.parametrize(
    "name", [name for section in COMMANDS.values() for name, e in section.items() if isinstance(e, Group)]
)
def test_groups_say_what_is_in_them(name: str, capsys: Capture) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Example: latecomer {name}" in text
    assert all(f"\n  {leaf.split()[1]} " in text for leaf in LEAVES if leaf.startswith(f"{name} "))


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["trian"], "there is no command 'trian': did you mean train? (see latecomer --help)"),
        (["dance!"], "there is no command 'dance!' (see latecomer --help)"),
        (["--versoin"],
         "there is no option '--versoin' before a command: did you mean --version? (see latecomer --help)"),
        (["trace", "shwo"], "there is no command 'trace shwo': did you mean trace show? (see latecomer trace --help)"),
        (["trace", "--json"], "'--json' comes after a command: trace make or show (see latecomer trace --help)"),
        (["demo", "--sed", "3"], "there is no option '--sed': did you mean --seed? (see latecomer demo --help)"),
        (["train", "t.py:task", "--lr", "0.1"],
         "there is no option '--lr': did you mean --set lr=0.1? (see latecomer train --help)"),
        (["methods", "--jsn"], "there is no option '--jsn': did you mean --json? (see latecomer methods list --help)"),
        (["demo", "extra"], "unexpected argument: extra (see latecomer demo --help)"),
        (["demo", "--seed", "x"], "Invalid --seed value: 'x' (expected a whole number) (see latecomer demo --help)"),
        (["bench", "capacity", "--gradient", "x"],
         "Invalid --gradient value: 'x' (expected a number) (see latecomer bench capacity --help)"),
        (["methods", "show"], "NAME is missing: Name of the method (see latecomer methods show --help)"),
        (["completion", "bsh"],
         "Invalid shell value: 'bsh' (expected one of 'bash', 'zsh', 'fish') (see latecomer completion --help)"),
    ],
)  # fmt: skip
def test_mistyped_input_is_one_sentence_with_a_suggestion(argv: list[str], sentence: str, capsys: Capture) -> None:
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.err == f"latecomer: {sentence}\n"
    assert said.out == ""


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["methods", "show", "momentun"], "Unknown method 'momentun': did you mean momentum?"),
        (["run", "--method", "cach-up"], "Unknown method 'cach-up': did you mean catch-up?"),
        (["run", "--problem", "digist"], "Unknown problem 'digist': did you mean digits?"),
        (["replay", "none.parquet", "--problem", "quadratc"], "Unknown problem 'quadratc': did you mean quadratic?"),
    ],
)
def test_mistyped_names_get_a_suggestion(argv: list[str], words: str, capsys: Capture) -> None:
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_set_keeps_the_other_defaults(tmp_path: Path, capsys: Capture) -> None:
    run = ["run", "--problem", "quadratic", "--steps", "30", "--store", str(tmp_path), "--json"]
    for given, options in (
        ([], {"lr": 0.02}),
        (["--set", "beta=0.3"], {"lr": 0.02, "beta": 0.3}),
        (["--set", "lr=0.1", "--set", "beta=0.3"], {"lr": 0.1, "beta": 0.3}),
    ):
        assert main([*run, *given]) == 0
        assert json.loads(capsys.readouterr().out)["spec"]["options"] == options
    for name, method in METHODS.items():
        needed = {"threshold": 3, "radius": 1.0, "clip_at": 1.0, "L": 1.0}
        given = [[f"{key}={value}"] for key, value in needed.items() if key in method.arguments]
        method.check(hyper_parameters(name, given))


def test_train_keeps_the_default_rate_and_replay_the_recorded_ones(tmp_path: Path, capsys: Capture) -> None:
    script, record = tmp_path / "quadratic_task.py", tmp_path / "run.parquet"
    script.write_text("import latecomer as lc\nprint('imported')\ntask = lc.problems.quadratic()\n")
    train = ["train", f"{script}:task", "--engine", "inline", "--steps", "30", "--record", str(record), "--json"]
    assert main([*train, "--method", "momentum", "--set", "beta=0.3"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)  # what the task prints is not in it
    assert found["record"] == str(record)
    assert found["rows"][-1]["arrival"] == 30
    assert "imported" in said.err
    assert main(["replay", str(record), "--task", f"{script}:task", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["difference"] == 0
    assert again["final"]["loss"] == found["rows"][-1]["loss"]
    for same in (["lr=0.02"], ["beta=0.3"]):  # what is not said stays as it was recorded
        assert main(["replay", str(record), "--task", f"{script}:task", "--json", "--set", *same]) == 0
        assert json.loads(capsys.readouterr().out)["final"]["loss"] == again["final"]["loss"]


SWEEP = """
name = "small"
steps = 20
seeds = [0]
[problem]
name = "quadratic"
[delays]
name = "uniform"
workers = 2
[[grid]]
method = "momentum"
lr = [0.1, 1e9]
"""


def test_every_table_is_json_alone_on_stdout(tmp_path: Path, capsys: Capture) -> None:
    store, spec, trace = str(tmp_path / "runs"), tmp_path / "sweep.toml", str(tmp_path / "run.parquet")
    spec.write_text(SWEEP)

    def found(*argv: str) -> Any:
        assert main([*argv, "--json"]) == 0, argv
        return json.loads(capsys.readouterr().out)

    assert found("sweep", str(spec), "--show")["problem"] == {"name": "quadratic"}
    assert found("sweep", str(spec), "--store", store, "--dry-run")["missing"] == 2
    best = found("sweep", str(spec), "--store", store, "--processes", "1")
    assert [row["method"] for row in best["rows"]] == ["momentum"]
    listed = found("runs", "--store", store)
    assert (listed["runs"], {row["lr"] for row in listed["rows"]}) == (2, {0.1, 1e9})
    other = found("sweep", str(spec), "--store", store, "--processes", "1", "--seed", "5")
    assert {row["seed"] for row in found("runs", "--store", store)["rows"]} == {0, 5}
    assert other["store"] == store
    made = found("trace", "make", "--steps", "50", "--workers", "3", "--out", trace)
    shown = found("trace", "show", trace)
    assert made == {**shown, "trace": trace}
    assert sum(row["arrivals"] for row in shown["rows"]) == sum(row["arrivals"] for row in shown["groups"]) == 50
    assert {row["name"] for row in found("data", "list")["rows"]} == {"mnist", "cifar10"}
    (row,) = found("bench", "capacity", "--update-ns", "1", "--wire-ns", "1", "--sizes", "1000000")["rows"][:1]
    assert row["size"] == 1_000_000
    advice = found("theory", "advise", "--problem", "quadratic", "--steps", "300", "--beta", "0.1")
    assert advice["constants"]["L"]["value"] == pytest.approx(1.0, abs=0.01)
    assert advice["influence"]["slow"] < advice["influence"]["fast"]
    demo = found("demo", "--steps", "20", "--seeds", "1", "--processes", "1", "--out", str(tmp_path / "demo"))
    assert Path(demo["page"]).is_file()
    assert {row["method"] for row in demo["rows"]} >= {"ordered-momentum", "synchronous"}


def test_children_that_print_do_not_reach_the_stdout_of_json(tmp_path: Path) -> None:
    script = tmp_path / "talking_task.py"
    script.write_text("import latecomer as lc\nprint('imported', flush=True)\ntask = lc.problems.quadratic()\n")
    command = [sys.executable, "-m", "latecomer", "train", f"{script}:task", "--steps", "20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["contributions"] == 20
    assert "imported" in done.stderr


def test_numbers_that_json_has_no_word_for_are_null(capsys: Capture) -> None:
    show(JsonConsole(sys.stdout), "", {"rows": [{"loss": float("nan"), "f1": float("inf"), "path": Path("a")}]})
    assert json.loads(capsys.readouterr().out) == {"rows": [{"loss": None, "f1": None, "path": "a"}]}


def test_methods_and_each_of_them(capsys: Capture) -> None:
    assert main(["methods"]) == 0
    text = capsys.readouterr().out
    assert main(["methods", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == list(METHODS)
    for row in rows:
        assert all(row[key] in text for key in ("name", "optimizer", "source", "influence"))
        assert row["influence"]
    for name, method in METHODS.items():
        assert main(["methods", "show", name, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [each["name"] for each in found["hyper_parameters"]] == list(method.arguments)
        assert all(each["about"] for each in found["hyper_parameters"]), name
        assert "x" in found["rule"], name
    assert main(["methods", "show", "ordered-momentum"]) == 0
    text = capsys.readouterr().out
    for words in ("m = beta(1-beta)^d·g + (1-beta)·m", "Algorithm 1", "beta          0.1", "(1 - beta)^delay"):
        assert words in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capfd.readouterr().out
    for word in ("reproduce", "capacity", "evaluate-every"):
        assert word in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=60)


def test_progress_is_counted_in_a_log(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    clock = iter(range(0, 1000, 1))
    monkeypatch.setattr(_progress.time, "monotonic", lambda: float(next(clock)))
    with _progress.counting("passes", Console(width=200)) as on_progress:
        for done in range(1, 101):
            on_progress(done, 100)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "passes: 5 of 100 after 0:00:05"
    assert 10 <= len(lines) <= 20
    with _progress.counting("passes", Console(width=200)) as on_progress:
        for done in range(1, 46):  # slow ones: less than a twentieth in twenty seconds
            on_progress(done, 1000)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["passes: 20 of 1,000 after 0:00:20", "passes: 40 of 1,000 after 0:00:40"]
    with _progress.working("measuring", Console(width=200)):
        pass
    assert capsys.readouterr().out == "measuring ...\n"
