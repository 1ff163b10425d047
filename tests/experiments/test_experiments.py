"""Specs round-trip, the store keeps complete runs only, a sweep survives kills and gives the same table."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from latecomer.cli.main import main
from latecomer.experiments import Grid, RunSet, RunSpec, Store, Sweep, missing, run_sweep
from latecomer.experiments.pieces import Pieces
from latecomer.experiments.store import _host_id
from latecomer.experiments.sweep import run_one
from latecomer.paper import PRESETS, SIZES, preset
from processes import children, ended


def small(steps: int = 60, seeds: tuple[int, ...] = (0, 1)) -> Sweep:
    grids = (
        Grid("momentum", {"lr": [0.1, 0.01], "beta": [0.1]}),
        Grid("delay-filtered", {"lr": [0.1], "threshold": [4.0]}),
        Grid("async-sgd", {"lr": [0.05, 1e12]}),
    )
    delays = {"workers": 3, "slow_share": 0.1}
    return Sweep("small", "quadratic", "data-dependent", steps, seeds, grids, 20, {"noise": 0.5}, delays)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("size", SIZES)
def test_presets_round_trip_through_toml(name: str, size: str) -> None:
    sweep = preset(name, size)
    again = Sweep.from_toml(sweep.to_toml())
    assert again == sweep
    if name != "cifar10":
        keys = [run.key for run in sweep.runs()]
        assert keys == [run.key for run in again.runs()]
        assert len(set(keys)) == len(keys)


def test_the_paper_sized_grids_are_the_papers() -> None:
    sweep = preset("mnist", "paper")
    methods = {grid.method: grid.values for grid in sweep.grids}
    tenths = [0.1, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01]
    assert methods["momentum"]["lr"] == [*tenths, 0.009, 0.008, 0.007, 0.006, 0.005, 0.004, 0.003, 0.002, 0.001]
    assert methods["ordered-mu2"]["beta"] == [0.1, 0.05, 0.01]
    assert {0.9, 0.95} < set(methods["ordered-mu2"]["gamma"])
    assert methods["delay-filtered"]["threshold"] == [7.0, 10.5, 14.0]
    assert (sweep.seeds, sweep.delay_options["workers"]) == ((0, 1, 2), 7)
    assert preset("cifar10", "paper").delay_options["workers"] == 5


def test_a_key_depends_on_the_spec_only() -> None:
    run = small().runs()[0]
    assert run.key == RunSpec(**json.loads(json.dumps(run.as_dict()))).key
    for change in ({"seed": 7}, {"steps": 61}, {"options": {"lr": 0.3}}, {"problem_options": {"noise": 0.4}}):
        assert RunSpec(**{**run.as_dict(), **change}).key != run.key


SPEC = small().to_toml()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lacks"),
        ("name = ", "is not valid TOML"),
        ("surprise = 1", "has unknown entries"),
        (SPEC.replace("quadratic", "cubic"), "Unknown problem 'cubic'"),
        (SPEC.replace('"momentum"', '"adam"'), "Unknown method 'adam'"),
        (SPEC.replace("data-dependent", "random"), "Unknown delay model 'random'"),
        (SPEC.replace("0.05,", "-1.0,"), "Invalid lr value: -1"),
        (SPEC.replace("threshold", "treshold"), "delay-filtered has no option 'treshold'"),
        (SPEC.replace("steps = 60", 'steps = "many"'), "Invalid steps value: 'many'"),
        (re.sub(r"seeds = \[[^]]*\]", "seeds = []", SPEC), "has no runs"),
    ],
)
def test_bad_specs_get_a_sentence(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    assert main(["sweep", str(path), "--store", str(tmp_path / "runs")]) == 2
    output = capsys.readouterr().err
    assert output.startswith("latecomer: ")
    assert re.search(message, output), output


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "timing.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_sweep_is_done_once_and_does_not_depend_on_processes(tmp_path: Path) -> None:
    sweep = small()
    alone, together = Store(tmp_path / "a"), Store(tmp_path / "b")
    assert len(list(run_sweep(sweep, alone, processes=1))) == 10
    assert len(list(run_sweep(sweep, together, processes=2))) == 10
    assert list(run_sweep(sweep, alone, processes=1)) == []
    assert contents(alone.folder) == contents(together.folder)
    table = alone.table()
    assert table.height == 10
    assert table.filter(pl.col("lr") == 1e12)["diverged_at"].null_count() == 0
    assert table.filter(pl.col("lr") < 1)["diverged_at"].null_count() == 8
    keys = alone.keys()
    assert all(alone.seconds(key) is not None for key in keys)
    assert len(missing(small(seeds=(0, 1, 2)), alone)) == 5


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], str(Path(sys.argv[2]).parent)]
from test_experiments import small
from latecomer.experiments import Store, run_sweep
for done in run_sweep(small(steps=400, seeds=(0, 1, 2, 3, 4)), Store(Path(sys.argv[1])), processes=2):
    print(done.key, flush=True)
"""


ORPHANS = """
import os, sys
from latecomer._util.parallel import in_parallel
for pid in in_parallel(os.getpid, [()] * 4, processes=2):
    print(pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_workers_go_when_their_parent_is_killed() -> None:
    victim = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True)
    assert victim.returncode == -signal.SIGKILL
    worker = int(victim.stdout)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{worker}").exists()


def test_killed_three_times_and_resumed_gives_the_same_bytes(tmp_path: Path) -> None:
    straight, broken = tmp_path / "a", tmp_path / "b"
    command, here = [sys.executable, "-c", KILLED], str(Path(__file__).parent)
    assert len(list(run_sweep(small(steps=400, seeds=(0, 1, 2, 3, 4)), Store(straight), processes=1))) == 25
    for stop in range(1, 4):
        victim = subprocess.Popen([*command, str(broken), here], stdout=subprocess.PIPE, text=True)
        assert victim.stdout is not None
        for _ in range(min(stop, 2)):
            assert victim.stdout.readline()
        time.sleep(0.02 * stop)  # into the next run
        workers = children(victim.pid)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        assert ended(workers)  # they end soon after their parent; one that still runs may still write
    assert list(run_sweep(small(steps=400, seeds=(0, 1, 2, 3, 4)), Store(broken), processes=1))
    assert contents(straight) == contents(broken)
    assert Store(straight).table().write_csv() == Store(broken).table().write_csv()


def test_what_the_dead_have_left_is_swept_up(tmp_path: Path) -> None:
    store, run = Store(tmp_path), small().runs()[0]
    run_one(run.as_dict(), str(tmp_path))
    dead, here = 99999999, _host_id()
    owners = (f"{dead}-{here}", f"{os.getpid()}-{here}", f"{dead}-elsewhere", f"x-{here}", f"{dead}-longago")
    left, *others, old = (tmp_path / run.key[:2] / f".part-{owner}-abc" for owner in owners)
    for part in (left, *others, old):
        part.mkdir()
    (left / "run.json").write_text("{")
    os.utime(old, (0, time.time() - 90_000))
    store.remove_leftovers()
    assert not left.exists()
    assert not old.exists()
    assert all(part.exists() for part in others)
    assert store.keys() == [run.key]


def test_what_the_dying_leave_is_swept_up_when_the_next_sweep_ends(tmp_path: Path) -> None:
    dying = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    part = tmp_path / "00" / f".part-{dying.pid}-{_host_id()}-abc"
    part.mkdir(parents=True)
    runs = run_sweep(small(), Store(tmp_path), processes=1)
    assert next(runs)
    assert part.exists()
    dying.communicate()
    assert list(runs)
    assert not part.exists()


def test_broken_entries_get_a_sentence_and_half_ones_are_made_again(tmp_path: Path) -> None:
    store, run = Store(tmp_path), small().runs()[0]
    place = tmp_path / run.key[:2] / run.key
    place.mkdir(parents=True)
    (place / "history.parquet").write_bytes(b"half")
    assert run.key not in store
    run_one(run.as_dict(), str(tmp_path))
    assert store.table().height == 1
    for damage in ("", "[]", "{}", json.dumps({"key": "another"})):
        (place / "run.json").write_text(damage)
        with pytest.raises(ValueError, match=r"is damaged .*: remove its folder"):
            store.table()
    (place / "history.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged"):
        store.history(run.key)


def test_what_is_read_from_a_store_is_verified(tmp_path: Path) -> None:
    store, run = Store(tmp_path), small().runs()[0]
    run_one(run.as_dict(), str(tmp_path))
    record, history = store.record(run.key), store.history(run.key)
    place = tmp_path / run.key[:2] / run.key
    file = place / "run.json"
    intact = file.read_text()
    assert '"loss":' in intact
    file.write_text(intact.replace('"loss": ', '"loss": 1'))
    with pytest.raises(ValueError, match=r"is damaged .*it does not match its SHA-256.*: remove its folder"):
        store.record(run.key)
    file.write_text(intact.replace('"sha256"', '"sha255"'))
    with pytest.raises(ValueError, match="is damaged"):
        store.record(run.key)
    file.write_text(intact)
    table = (place / "history.parquet").read_bytes()
    history.with_columns(loss=pl.lit(0.0)).write_parquet(place / "history.parquet")
    with pytest.raises(ValueError, match=r"is damaged .*it does not match its SHA-256.*: remove its folder"):
        store.history(run.key)
    # Runs from before there were digests are read without.
    plain = {key: value for key, value in json.loads(intact).items() if key != "sha256"}
    file.write_text(json.dumps(plain))
    (place / "history.parquet").write_bytes(table)
    assert store.record(run.key) == record == plain
    assert store.history(run.key).equals(history)


def test_nothing_of_a_damaged_piece_gets_into_a_store(tmp_path: Path) -> None:
    store, run = Store(tmp_path / "store"), small().runs()[0]
    run_one(run.as_dict(), str(store.folder))
    piece = Pieces(tmp_path / "pieces").export(store)
    assert piece is not None
    intact = piece.read_bytes()
    for content in (intact[:-6] + bytes(6), intact[:-20], intact + intact, b"", b"nonsense"):
        piece.write_bytes(content)
        other = Store(tmp_path / "other")
        with pytest.raises(ValueError, match=r"is damaged \(.*\): take it from the repository again"):
            Pieces(piece.parent).fill(other)
        assert other.keys() == []
    piece.write_bytes(intact)
    assert Pieces(piece.parent).fill(Store(tmp_path / "other")) == 1


def test_a_full_disk_leaves_no_half_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    run = small().runs()[0]
    with pytest.raises(OSError, match="No space left"):
        run_one(run.as_dict(), str(tmp_path))
    assert run.key not in Store(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, spec = str(tmp_path / "runs"), tmp_path / "small.toml"
    spec.write_text(SPEC)
    assert main(["sweep", str(spec), "--store", store, "--dry-run"]) == 0
    assert "10 to run: about" in capsys.readouterr().out
    assert not Path(store).exists()
    assert main(["sweep", str(spec), "--store", store, "--processes", "1"]) == 0
    assert "small: 10 runs, 0 are in" in capsys.readouterr().out
    assert main(["sweep", str(spec), "--store", store]) == 0
    assert "10 are in" in capsys.readouterr().out
    assert main(["runs", "--store", store, "--method", "momentum", "--csv", str(tmp_path / "runs.csv")]) == 0
    assert "4 runs" in capsys.readouterr().out
    written = pl.read_csv(tmp_path / "runs.csv")
    assert written.height == 4
    assert {"delays.workers", "evaluate_every", "lr"} <= set(written.columns)
    broken = Path(store) / written["key"][0][:2] / written["key"][0] / "run.json"
    whole = broken.read_text()
    broken.write_text("{")
    assert main(["runs", "--store", store, "--sort", "loss"]) == 0
    output = capsys.readouterr().out
    assert "Left out: " in output
    assert "9 runs" in output
    broken.write_text(whole)
    assert main(["sweep", "mnist", "--size", "quick", "--show"]) == 0
    assert Sweep.from_toml(capsys.readouterr().out) == preset("mnist", "quick")
    one = ["run", "--problem", "quadratic", "--method", "catch-up", "--set", "lr=0.1", "--steps", "40"]
    for output in ("Kept in", "in the store already"):
        assert main([*one, "--store", store]) == 0
        assert output in capsys.readouterr().out
    for wrong in (
        ["run", "--method", "adam"],
        ["run", "--set", "lr"],
        ["run", "--set", "lr=fast"],
        ["run", "--problem", "nothing"],
        ["runs", "--store", str(tmp_path / "none")],
        ["runs", "--store", store, "--method", "adam"],
        ["runs", "--store", store, "--sort", "beauty"],
        ["runs", "--store", store, "--top", "0"],
        ["run", "--set", "lr=nan"],
        ["run", "--set", "lr=0.1", "betta=0.1"],
        ["run", "--problem-set", "data_dir=elsewhere"],
        ["sweep", str(tmp_path / "none.toml")],
        ["sweep", str(spec), "--store", "/proc/none"],
    ):
        assert main(wrong) == 2, wrong
        words = capsys.readouterr().err
        assert words.startswith("latecomer: ")
        assert words.count("\n") == 1


def test_a_set_of_runs_is_run_like_a_sweep(tmp_path: Path) -> None:
    one = small().runs()[0]
    other = RunSpec("digits", "async-sgd", "uniform", 5, options={"lr": 0.1}, delay_options={"workers": 2})
    runs = RunSet("mixed", (one, other, one))
    assert [run.problem for run in missing(runs, Store(tmp_path))] == ["quadratic", "digits"]
    assert len(list(run_sweep(runs, Store(tmp_path), processes=1))) == 2
    assert missing(runs, Store(tmp_path)) == []
    with pytest.raises(ValueError, match="async-sgd has no option 'beta'"):
        RunSet("bad", (replace(other, options={"lr": 0.1, "beta": 0.1}),)).runs()
