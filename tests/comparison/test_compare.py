"""`latecomer compare` from end to end: tuned, judged, killed and resumed, drawn; and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import latecomer as lc
from browser import needs_chromium, opened
from latecomer.cli.main import main
from latecomer.comparison import planned, runs
from latecomer.comparison.plan import Cell
from latecomer.comparison.settings import DELAYS, JUDGED_SEEDS, PROBLEMS, SIZES, TUNING_SEED
from latecomer.comparison.spaces import SPACES
from latecomer.experiments import Store, run_sweep
from latecomer.experiments.pieces import Pieces
from latecomer.optim import METHODS, methods

OWN = """
import latecomer as lc


def waiting(params, lr):
    return lc.optim.AsyncSGD(params, lr=lr)


lc.optim.register("waiting", waiting, policy=lc.policy.Synchronous)
"""
CELLS = ["--problems", "quadratic", "digits", "--delays", "slow-samples", "slow-workers"]
METHODS_GIVEN = ["--methods", "async-sgd", "delay-filtered", "ordered-mu2", "waiting"]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def shrink(patch: pytest.MonkeyPatch) -> None:
    quick = replace(SIZES["quick"], configurations=2, seeds=(3000, 3001), evaluations=6,
                    arrivals={"quadratic": 60, "digits": 20, "text": 8})  # fmt: skip
    patch.setattr("latecomer.comparison.plan.SIZES", {**SIZES, "quick": quick})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("compared")
    (folder / "own_waiting.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        command = ["compare", *CELLS, *METHODS_GIVEN, "--import", str(folder / "own_waiting.py"), "--processes", "1"]
        assert main([*command, "--out", str(folder / "out")]) == 0
        yield folder / "out" / "comparison.html"
    methods._METHODS.pop("waiting", None)


def test_all_is_run_tuned_alike_and_judged_on_fresh_seeds(page: Path) -> None:
    store = Store(page.parent / "runs")
    specs = [store.record(key)["spec"] for key in store.keys()]  # noqa: SIM118
    tuned = [spec for spec in specs if spec["seed"] == TUNING_SEED]
    judged = [spec for spec in specs if spec["seed"] != TUNING_SEED]
    assert (len(tuned), len(judged)) == (4 * 4 * 2, 4 * 4 * 2)  # cells, methods, configurations or seeds
    assert {spec["seed"] for spec in judged} == {3000, 3001}
    assert {spec["problem_options"].get("split") for spec in tuned if spec["problem"] == "digits"} == {"validation"}
    assert {spec["problem_options"].get("split") for spec in judged if spec["problem"] == "digits"} == {"test"}
    steps = {spec["method"]: spec["steps"] for spec in judged if spec["problem"] == "quadratic"}
    assert steps["async-sgd"] == steps["ordered-mu2"] == 60
    assert steps["waiting"] < 60  # in the same time


def test_the_tables_have_misses_idle_time_and_thrown_away_work(page: Path) -> None:
    table = pl.read_csv(page.parent / "comparison.csv")
    assert table.height == 16
    assert set(table["runs"]) == {2}
    rows = {(row["delays"], row["method"]): row for row in table.filter(problem="quadratic").iter_rows(named=True)}
    assert rows["slow-samples", "waiting"]["idle"] > 0.3
    assert rows["slow-samples", "async-sgd"]["idle"] == rows["slow-samples", "async-sgd"]["wasted"] == 0.0
    assert rows["slow-samples", "delay-filtered"]["wasted"] > 0.1
    runs_table = pl.read_csv(page.parent / "runs.csv")
    missed = runs_table.filter(pl.col("time").is_infinite())
    assert missed.height > 0
    assert missed["updates"].is_infinite().all()
    assert "∞" in (page.parent / "comparison.md").read_text()
    profiles = pl.read_csv(page.parent / "profiles.csv")
    assert profiles.group_by("method").agg(pl.col("share").is_sorted())["share"].all()
    assert {path.suffix for path in (page.parent / "figures").glob("profiles.*")} == {".svg", ".pdf", ".png"}


def test_a_rate_at_an_end_of_its_range_is_said(page: Path) -> None:
    plan = planned("standard", methods=["momentum", "rate-free"], problems=["mnist"])
    cell = plan.cells[0]
    rates = sorted(run.options["lr"] for run in plan.tuning_of(cell) if run.method == "momentum")
    found = [plan.end_of_range(cell, "momentum", {"lr": rate, "beta": 0.1}) for rate in rates]
    assert found == ["smallest", None, None, None, None, "largest"]
    assert plan.end_of_range(cell, "rate-free", {}) is None  # it has no rate
    table = pl.read_csv(page.parent / "comparison.csv")
    assert set(table["rate"]) == {"smallest", "largest"}  # of two configurations
    text = page.read_text()
    assert re.search(r">lr=[^<]* \((smallest|largest)\)<", text)
    overall = text.partition('<h3 id="overall">')[2].partition("</table>")[0]
    shares = [[int(share) for share in re.findall(r">(\d+) %<", row)] for row in overall.split("<tr>")[2:]]
    assert len(shares) == 4  # methods
    assert all(each[:4] == sorted(each[:4]) for each in shares)  # fastest, within 1.5, within 2, solved
    assert {each[4] for each in shares} == {100}


@needs_chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_in_a_browser(page: Path, width: int, tmp_path: Path) -> None:
    text = page.read_text()
    assert re.findall(r'(?:src|href)="(?!#)([^"]+)"', text) == []  # nothing comes from elsewhere
    assert "ranks nothing" in text
    seen = opened(page, width, tmp_path)
    assert seen["errors"] == []
    assert len(seen["figures"]) == text.count("<figure") == 6
    for name, wide, high in seen["figures"]:
        assert wide >= 330, name
        assert high >= 60, name
    assert seen["wide"] <= seen["view"]


def _interrupted_after(count: int, run: Callable[..., Any]) -> Callable[..., Any]:
    done = 0

    def run_some(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done > count:
            raise KeyboardInterrupt
        return run(*arguments)

    return run_some


@pytest.mark.usefixtures("tiny")
def test_interrupted_it_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "--problems", "quadratic", "--delays", "slow-samples", "--methods", "async-sgd", "momentum"]
    command += ["--processes", "1"]
    assert main([*command, "--out", str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    for after in (3, 3):  # once while tuning, once while judging
        with monkeypatch.context() as patch:
            patch.setattr(runs, "run_compared", _interrupted_after(after, runs.run_compared))
            assert main([*command, "--out", str(tmp_path / "out")]) == 130
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "judging on fresh seeds: 4 runs, 2 are missing" in capsys.readouterr().out
    for name in ("comparison.csv", "runs.csv", "profiles.csv", "figures/profiles.svg"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_committed_runs_are_enough_for_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = replace(SIZES["standard"], configurations=2, seeds=(3000,), arrivals={"quadratic": 30}, evaluations=4)
    monkeypatch.setattr("latecomer.comparison.plan.SIZES", {"standard": small})
    pieces = tmp_path / "pieces"
    common = ["compare", "--size", "standard", "--problems", "quadratic", "--delays", "slow-workers"]
    common += ["--methods", "async-sgd", "momentum", "--pieces", str(pieces)]
    for sentence in (
        f"There is no folder {pieces}: run this in a clone",
        "There are no judging runs of this comparison",
    ):
        assert main([*common, "--out", str(tmp_path / "a"), "--from-store"]) == 2
        assert sentence in capsys.readouterr().err
        pieces.mkdir(exist_ok=True)
    assert main([*common, "--out", str(tmp_path / "a"), "--processes", "1", "--hours", "1e-9"]) == 0
    assert "The time is up" in capsys.readouterr().out
    assert len(Pieces(pieces)) == 1  # what was finished is there to be committed
    assert main([*common, "--out", str(tmp_path / "a"), "--processes", "1"]) == 0
    capsys.readouterr()
    assert main([*common, "--out", str(tmp_path / "dry"), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 tuning runs are missing")  # they are committed
    assert not (tmp_path / "dry").exists()
    assert len(Pieces(pieces)) == 2 * 2 + 2
    capsys.readouterr()
    assert main([*common, "--out", str(tmp_path / "b"), "--from-store", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["complete"] is True
    assert not (tmp_path / "b" / "runs").exists()
    for name in ("comparison.csv", "runs.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    # Another machine: an empty store, and nothing is computed again.
    assert main([*common, "--out", str(tmp_path / "c"), "--processes", "1"]) == 0
    assert "6 runs imported" in capsys.readouterr().out
    assert len(list(pieces.iterdir())) == 2
    # Runs of a rule of one's own are not added to the committed ones, and are on the page all the same.
    (tmp_path / "own_rule.py").write_text(OWN.replace('"waiting"', '"own-rule"'))
    own = [*common, "--import", str(tmp_path / "own_rule.py"), "--out", str(tmp_path / "own"), "--processes", "1"]
    own[own.index("momentum")] = "own-rule"
    try:
        assert main(own) == 0
    finally:
        methods._METHODS.pop("own-rule", None)
    assert "own-rule" in (tmp_path / "own" / "comparison.csv").read_text()
    assert len(list(pieces.iterdir())) == 2
    # Without some of the judging runs the page says so.
    assert main([*common, "--out", str(tmp_path / "d"), "--from-store", "--seeds", "3000", "3001"]) == 0
    assert "Runs are missing: 6 of 8" in capsys.readouterr().out
    assert "Runs are missing:" in (tmp_path / "d" / "comparison.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "momentun"], "Unknown method 'momentun'"),
        (["--problems", "mnits"], "Unknown problem 'mnits'"),
        (["--delays", "uniform"], "Unknown delay model 'uniform'"),
        (["--methods", "momentum", "momentum"], "The methods momentum, momentum are not all different"),
        (["--seeds", "2000"], "Invalid seed value: 2000 (every method is tuned on it; judge on others)"),
        (["--seeds", "-1"], "Invalid seed value: -1"),
        (["--seeds", str(2**63)], "Invalid seed value: 9223372036854775808 (expected seed <="),
        (["--seeds", "1e5"], "Invalid --seeds value: '1e5'"),
        (["--processes", "0"], "Invalid --processes value: 0"),
        (["--hours", "nan"], "Invalid --hours value"),
        (["--import", "nowhere.py"], "There is no file 'nowhere.py'"),
        (["--size", "huge"], "huge"),
    ],
)
def test_bad_input_gets_a_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_from_python_bad_input_gets_a_sentence_too() -> None:
    for given, words in (
        ({"seeds": 4000}, r"^Invalid seeds value: 4000 \(expected a list of whole numbers, such as \[4000, 4001\]\)$"),
        ({"processes": "2"}, r"^Invalid processes value: '2' \(expected a whole number, got str\)$"),
        ({"processes": 0}, "^Invalid processes value: 0 .expected processes >= 1.$"),
        ({"methods": "momentum"}, "^Invalid methods value: 'momentum' .expected a list of names.$"),
        ({"imports": "rules.py"}, "^Invalid imports value: 'rules.py' .expected a list of files.$"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            lc.compare(**given)


@pytest.mark.usefixtures("tiny")
def test_a_dry_run_says_how_long_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--problems", "quadratic", "--methods", "async-sgd", "--dry-run", "--json"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["missing"] == 4  # two delay models, two configurations
    assert told["cpu_seconds"] == told["by_problem"]["quadratic"] > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("tiny")
def test_runs_of_a_sweep_are_not_those_of_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned("quick", methods=["async-sgd"], problems=["quadratic"], delays=["slow-workers"], seeds=[3000])
    store = Store(tmp_path / "runs")
    for runs_of in (plan.tuning, lambda: plan.judging(store)):
        assert len(list(run_sweep(runs_of(), store))) > 0
    words = ["--methods", "async-sgd", "--problems", "quadratic", "--delays", "slow-workers", "--seeds", "3000"]
    assert main(["compare", *words, "--out", str(tmp_path), "--from-store"]) == 2
    error = capsys.readouterr().err
    assert "is that of a sweep, without the loss of every group: pass another --store" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("option", ["--store", "--pieces"])
def test_a_file_is_no_folder(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["compare", "--size", "standard", "--from-store", option, str(tmp_path / "file")]) == 2
    assert "is a file (expected a folder)" in capsys.readouterr().err


def test_damaged_pieces_and_a_store_among_them_get_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = ["--out", str(tmp_path), "--pieces", str(tmp_path / "runs")]
    assert main(["compare", "--size", "standard", *same]) == 2
    assert "--store and --pieces are the same folder" in capsys.readouterr().err
    (tmp_path / "runs-0001.jsonl.gz").write_bytes(b"no gzip")
    assert main(["compare", "--size", "standard", "--pieces", str(tmp_path), "--from-store"]) == 2
    assert "is damaged" in capsys.readouterr().err


# ---- the plan -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_every_configuration_of_a_size_is_possible(size: str) -> None:
    plan = planned(size)
    first = plan.tuning().runs()  # checks every one of them
    assert len(first) == len({run.key for run in first})
    counted = {(run.problem, run.delays, repr(run.delay_options), run.method): 0 for run in first}
    for run in first:
        counted[run.problem, run.delays, repr(run.delay_options), run.method] += 1
    assert counted.pop((first[0].problem, first[0].delays, repr(first[0].delay_options), "rate-free")) == 1
    assert {n for (*_, method), n in counted.items() if method != "rate-free"} == {plan.configurations}
    assert set(plan.methods) == set(METHODS)
    assert set(SPACES) <= set(METHODS)
    assert TUNING_SEED not in JUDGED_SEEDS


def test_the_standard_study_is_what_its_page_says() -> None:
    plan = planned("standard")
    assert plan.seeds == (3000, 3001, 3002, 3003, 3004)
    assert [problem.problem for problem in plan.problems] == ["quadratic", "mnist", "text", "cifar10"]
    assert plan.delays == tuple(DELAYS)
    for cell in plan.cells:
        want = set(METHODS) if cell.problem != "cifar10" else set(PROBLEMS["cifar10"].methods) & set(METHODS)
        assert set(plan.methods_of(cell)) == want
    assert plan.setting(Cell("cifar10", "slow-samples")).arrivals == 500
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    plan = replace(plan, methods=tuple(name for name in plan.methods if METHODS[name].files is None))
    runs = len(plan.tuning().specs) + sum(len(plan.methods_of(cell)) for cell in plan.cells) * len(plan.seeds)
    assert f"With {len(plan.methods)} methods that is {runs:,} runs." in page
    for problem in plan.problems:
        assert f"| `{problem.problem}` | " in page
        assert f" | {problem.arrivals:,} | " in page
