"""Speeds that change and costs of network and server in sweeps: the words and the traces of `latecomer trace make`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import latecomer as lc
from latecomer.cli.main import main
from latecomer.delays.known import DELAYS, WITH_CLOCK, model_of
from latecomer.experiments import RunSpec, Store, Sweep, missing, run_sweep

SPEEDS = "def at_night(worker, time):\n    return 3.0 if worker == 0 and time >= 2.0 else 1.0\n"
SPEC = """
name = "nights"
steps = 20
seeds = [3]
[problem]
name = "quadratic"
[delays]
name = "worker-speeds"
durations = [1.0, 2.5]
slow_share = 0.1
factor = "speeds_at_night.py:at_night"
network = 0.5
server = 0.25
[[grid]]
method = "momentum"
lr = [0.1]
"""
RUN = RunSpec("quadratic", "momentum", "worker-speeds", 20, 3, delay_options={"durations": [1.0, 2.5]})
RUN = replace(RUN, options={"lr": 0.1})


@pytest.fixture
def folder(tmp_path: Path, registry: dict[str, Any]) -> Path:
    """A folder with a spec and the function that it names."""
    (tmp_path / "speeds_at_night.py").write_text(SPEEDS)
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path


def changed(**more: Any) -> RunSpec:
    return replace(RUN, delay_options={**RUN.delay_options, **more})


def test_a_spec_makes_the_trace_of_trace_make(folder: Path) -> None:
    (run,) = Sweep.load(folder / "spec.toml").runs()
    costs = f"--factor {folder}/speeds_at_night.py:at_night --network 0.5 --server 0.25"
    words = f"trace make --model worker-speeds --durations 1 2.5 {costs} --steps 20 --seed 3"
    assert main([*words.split(), "--out", str(folder / "made.parquet")]) == 0
    made = lc.Trace.load(folder / "made.parquet")
    assert run.make_trace() == made
    assert made.header.model.startswith("WithCosts(TimeVarying(WorkerSpeeds(")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_sweep_finds_the_factor_in_every_process(
    processes: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    sweep, store = Sweep.load(Path(folder.name, "spec.toml")), Store(folder / "runs")
    assert len(list(run_sweep(sweep, store, processes=processes))) == 1
    assert missing(sweep, store) == []
    (key,) = store.keys()
    spec = store.record(key)["spec"]
    assert spec["delay_options"]["factor"] == "speeds_at_night.py:at_night"
    assert spec["imports"] == {"speeds_at_night.py": hashlib.sha256(SPEEDS.encode()).hexdigest()}
    assert str(folder) not in json.dumps(spec), "no machine's paths in a store"
    assert RunSpec(**spec).key == key


def test_the_key_depends_on_the_function_and_not_on_its_folder(folder: Path) -> None:
    def key(folder: Path, content: str) -> str:
        folder.mkdir()
        (folder / "speeds_at_night.py").write_text(content)
        return changed(factor=f"{folder}/speeds_at_night.py:at_night").key

    first = key(folder / "a", SPEEDS)
    assert first == key(folder / "b", SPEEDS)
    assert first != key(folder / "c", SPEEDS.replace("3.0", "4.0"))
    assert len({RUN.key, first, changed(network=0.5).key, changed(server=0.5).key}) == 4


def test_a_factor_that_has_changed_is_refused(folder: Path) -> None:
    run = changed(factor=f"{folder}/speeds_at_night.py:at_night")
    run.check()
    stale = replace(run, imports={"speeds_at_night.py": "0" * 64})
    with pytest.raises(ValueError, match=r"The factor is defined otherwise than when the run began \(speeds_at_night"):
        stale.check_files()


@pytest.mark.parametrize(
    ("delays", "options", "words"),
    [
        ("uniform", {"workers": 2, "network": 0.5}, "uniform delays have no clock, which 'network' needs: use worker-"),
        ("worker-speeds", {"durations": [1.0], "network": -1.0}, "Invalid network value: -1 "),
        ("worker-speeds", {"durations": [1.0], "server": "much"}, "Invalid server value: 'much'"),
        ("worker-speeds", {"durations": [1.0], "factor": 3}, r"Invalid factor 3 \(expected a Python file and a name"),
        ("worker-speeds", {"durations": [1.0], "factor": "no.py:f"}, "There is no file 'no.py' to take a factor from"),
        ("worker-speeds", {"durations": [1.0], "cost": 1}, "it has durations, .*, factor, network, server"),
        ("uniform", {"workers": 2, "cost": 1}, "it has workers, slow_share, [^)]*dependent"),
    ],
)
def test_bad_costs_get_a_sentence(delays: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        replace(RUN, delays=delays, delay_options=options).check()


def test_a_factor_that_raises_gets_a_sentence(folder: Path) -> None:
    (folder / "speeds_at_night.py").write_text("def at_night(worker, time):\n    return {}[worker]\n")
    with pytest.raises(ValueError, match=r"speeds_at_night.py:at_night raised KeyError: 0 \(.*at_night.py, line 2\)"):
        Sweep.load(folder / "spec.toml").runs()


def test_the_models_with_a_clock_are_named(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("worker,seconds\n0,1.0\n")
    (tmp_path / "delays.csv").write_text("0\n1\n")
    options: dict[str, dict[str, Any]] = {
        "worker-speeds": {"durations": [1.0]},
        "sample-cost": {"workers": 1, "cost": [1.0, 2.0]},
        "measured-durations": {"file": tmp_path / "jobs.csv"},
        "measured-delays": {"file": tmp_path / "delays.csv"},
    }
    made = {name: model_of(name, options.get(name, {"workers": 1})) for name in DELAYS}
    assert [name for name, model in made.items() if isinstance(model, lc.delays.ClockModel)] == list(WITH_CLOCK)
