"""Choosing, fresh seeds, verdicts, and the page of the reproduction."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from browser import CHROMIUM, opened
from latecomer import data, paper
from latecomer._util.intervals import mean
from latecomer.cli.main import main
from latecomer.experiments import Grid, RunSpec, Store, Sweep
from latecomer.experiments.sweep import _cached_problem
from latecomer.paper import Study, choose, chosen_sweep, make_study
from latecomer.paper.claims import delay_claims, paired, sensitivity_claims, training_claims
from latecomer.paper.labels import class_delays
from latecomer.paper.page import tex
from latecomer.paper.presets import grids
from latecomer.paper.study import curves, final_rows
from latecomer.problems.images import held_out

NAMES = ("delay-model", "mnist", "lr-sensitivity", "cifar10")


def images(name: str, data_dir: Any = None) -> dict[str, np.ndarray]:
    """Few images of the right shape, in which a class is a brightness."""
    draw = np.random.default_rng(0)
    shape = (28, 28) if name == "mnist" else (3, 32, 32)
    made: dict[str, np.ndarray] = {}
    for part, count in (("train", 300), ("test", 60)):
        labels = np.arange(count) % 10
        noise = draw.integers(0, 20, (count, *shape), dtype=np.uint8)
        made |= {f"{part}_images": noise + (20 * labels).astype(np.uint8).reshape(-1, *[1] * len(shape))}
        made[f"{part}_labels"] = labels.astype(np.int64)
    return made


def small(name: str, size: str, weights: str = "") -> Study:
    """The study as it is, with few updates, two learning rates and two fresh seeds."""
    made = make_study(name, size)
    options = {**made.grid.problem_options, "width": 0.1 if name != "cifar10" else 0.0625}
    workers = made.grid.delay_options["workers"]
    grid = replace(made.grid, steps=12, evaluate_every=4, problem_options=options)
    if name != "delay-model":
        grid = replace(grid, grids=grids([0.005, 0.02], workers, small=True), seeds=grid.seeds[:2])
    return replace(made, grid=grid, fresh=made.fresh[:2])


def pretend(patch: pytest.MonkeyPatch) -> None:
    """Put the few images in the place of the datasets."""
    _cached_problem.cache_clear()
    patch.setattr(data, "load", images)
    for name in ("mnist", "cifar10"):
        module = sys.modules[f"latecomer.problems.{name}"]
        patch.setattr(module, "held_out", lambda arrays, split, validation: held_out(arrays, split, 60))
    patch.setattr(data, "get", lambda name, data_dir=None, progress=None: Path("there"))
    patch.setattr(paper, "make_study", small)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pretend(monkeypatch)
    yield
    _cached_problem.cache_clear()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduction")
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        where = ["--store", str(folder / "runs"), "--out", str(folder / "out")]
        assert main(["reproduce", "all", "--size", "quick", "--processes", "1", *where]) == 0
        # Drawing it again needs no run, and gives the same bytes.
        again = ["--store", str(folder / "runs"), "--out", str(folder / "again")]
        assert main(["report", "lr-sensitivity", "--size", "quick", *again]) == 0
    for path in (folder / "again" / "figures").iterdir():
        assert path.read_bytes() == (folder / "out" / "figures" / path.name).read_bytes(), path.name
    _cached_problem.cache_clear()
    return folder / "out" / "index.html"


def test_everything_is_written(page: Path) -> None:
    out = page.parent
    text = page.read_text()
    ids = re.findall(r'<figure class="\w+" id="([\w-]+)"', text)
    expected = ["delay-by-class", "labels-by-class", "lr-momentum", "lr-others", "lr-effective", "lr-bands"]
    for name in ("mnist", "cifar10"):
        expected += [f"{name}-{what}" for what in ("f1", "slow-fast", "accuracy", "panels", "differences", "influence")]
    assert sorted(ids) == sorted(expected)
    for name in ids:
        for kind in ("svg", "pdf", "png"):
            assert (out / "figures" / f"{name}.{kind}").stat().st_size > 1000
    for name in ("mnist-quick", "mnist-quick-final", "lr-sensitivity-quick", "cifar10-quick", "delay-model-quick"):
        assert Sweep.load(out / "specs" / f"{name}.toml").runs()
    table = pl.read_csv(out / "tables" / "verdict.csv")
    assert set(table["experiment"]) == set(NAMES)
    assert set(table["verdict"]) <= {"held", "not held", "undecided"}
    assert text.count("</tr>") > table.height
    assert "\\toprule" in (out / "tables" / "verdict.tex").read_text()
    assert "\\toprule" in (out / "tables" / "mnist-summary.tex").read_text()
    finals = pl.read_csv(out / "tables" / "mnist-final.csv")
    assert set(finals["seed"]) == {100, 101}
    assert set(finals["method"]) == {grid.method for grid in small("mnist", "quick").grid.grids}
    assert re.findall(r'(?:src|href)="(?!#)([^"]+)"', text) == []  # nothing comes from elsewhere


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_in_a_browser(page: Path, width: int, tmp_path: Path) -> None:
    seen = opened(page, width, tmp_path)
    assert seen["errors"] == []
    assert len(seen["figures"]) == 18
    for name, wide, high in seen["figures"]:
        assert wide >= 330, name
        assert high >= 100, name
    assert seen["wide"] <= seen["view"]


def test_the_choice_is_the_best_on_validation_and_the_judge_is_the_test_set(tmp_path: Path) -> None:
    made = small("mnist", "quick")
    store = Store(tmp_path)
    for run in made.grid.runs():
        f1 = {0.005: 0.3, 0.02: 0.6}[run.options["lr"]] if run.method != "mu2" else float("nan")
        history = pl.DataFrame({"update": [0, 24], "time": [None, None], "f1": [0.1, f1], "accuracy": [0.1, f1]})
        store.put(run, history, {"diverged_at": None, "non_finite": 0, "dropped": 0}, 0.0)
    chosen = choose(made.grid, store)
    assert {method: options["lr"] for method, options in chosen.items() if method != "mu2"} == dict.fromkeys(
        chosen.keys() - {"mu2"}, 0.02
    )
    assert chosen["mu2"]["lr"] == 0.005  # of equals the first
    final = chosen_sweep(made, chosen)
    assert final.problem_options["split"] == "test"
    assert not set(final.seeds) & set(made.grid.seeds)
    assert len(final.runs()) == 2 * len(chosen)
    with pytest.raises(ValueError, match="nothing may be selected on test data"):
        choose(final, store)


def put(store: Store, run: RunSpec, updates: list[int], accuracy: list[float]) -> None:
    columns = {"update": updates, "time": [None] * len(updates), "f1": accuracy, "accuracy": accuracy}
    store.put(run, pl.DataFrame(columns), {"diverged_at": None, "non_finite": 0, "dropped": 0}, 0.0)


def test_a_run_that_ended_early_goes_on_as_it_ended(tmp_path: Path) -> None:
    grids = (Grid("momentum", {"lr": [0.01]}),)
    sweep = replace(small("mnist", "quick").grid, grids=grids, seeds=(0, 1), steps=24, evaluate_every=6)
    whole, short = sweep.runs()
    store = Store(tmp_path)
    put(store, whole, [0, 6, 12, 18, 24], [0.1, 0.5, 0.6, 0.8, 0.7])
    put(store, short, [0, 6, 8], [0.1, 0.5, 0.02])
    rows = curves(sweep, store)
    assert rows.filter(pl.col("seed") == 1)["update"].to_list() == [0, 6, 12, 18, 24]
    last = final_rows(sweep, store)
    assert last["f1"].to_list() == [0.7, 0.02]
    assert last["collapsed"].to_list() == [False, True]
    assert last["restless"][0] == pytest.approx(np.std([0.6, 0.8, 0.7], ddof=1))
    assert last["restless"][1] is None  # a collapse is no steadiness


def test_paired_intervals_are_students() -> None:
    draw = np.random.default_rng(3)
    shared = draw.normal(size=8)
    a, b = 0.5 + shared + 0.1 * draw.normal(size=8), shared
    seeds = list(range(8))
    rows = pl.DataFrame({"method": ["a"] * 8 + ["b"] * 8, "seed": seeds[::-1] + seeds, "f1": [*a[::-1], *b]})
    found = paired(rows, "a", "b", "f1")
    test = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((test.low, test.high))
    assert mean([2.0, 2.0]).low == mean([2.0, 2.0]).high == 2.0
    with pytest.raises(ValueError, match="share no seed"):
        paired(rows, "a", "c", "f1")


def test_claims_follow_what_was_measured() -> None:
    strength = {"async-sgd": 0.5, "delay-adaptive": 0.6, "delay-filtered": 0.4, "momentum": 0.7, "mu2": 0.72}
    strength |= {"ordered-momentum": 0.8, "ordered-mu2": 0.75, "catch-up": 0.9}
    draw = np.random.default_rng(0)
    table = [
        {"method": name, "seed": seed, "f1": value + 0.001 * draw.normal(), "f1_slow": value, "restless": 1 - value}
        for name, value in strength.items()
        for seed in range(5)
    ]
    verdicts = {row.claim: row.verdict for row in training_claims("mnist", pl.DataFrame(table))}
    assert verdicts["ordered-momentum reaches a higher F1 than momentum"] == "held"
    assert next(v for claim, v in verdicts.items() if "strongest (against ordered-momentum" in claim) == "not held"
    assert verdicts["ordered-momentum has a steadier accuracy than momentum"] == "held"
    rates = [
        {"method": name, "seed": seed, "lr": lr, "f1": value if lr < cut else 0.02}
        for name, value in strength.items()
        for seed in range(3)
        for lr, cut in ((lr, {"ordered-momentum": 9, "momentum": 3}.get(name, 5 + seed % 2)) for lr in range(1, 10))
    ]
    verdicts = {row.claim: row.verdict for row in sensitivity_claims(pl.DataFrame(rates))}
    assert (
        verdicts["ordered-momentum is stable over more learning rates than momentum"] == "undecided"
    )  # three that agree
    more = pl.concat([pl.DataFrame(rates).with_columns(pl.col("seed") + 3 * k) for k in range(2)])
    verdicts = {row.claim: row.verdict for row in sensitivity_claims(more)}
    assert verdicts["ordered-momentum is stable over more learning rates than momentum"] == "held"
    assert verdicts["ordered-mu2 is stable over more learning rates than mu2 (gamma 0.1)"] == "undecided"
    assert verdicts["catch-up is stable over more learning rates than ordered-momentum"] == "not held"


@pytest.mark.usefixtures("tiny")
def test_the_delay_model_is_judged_by_its_schedules() -> None:
    from latecomer.experiments.sweep import problem_of

    made = replace(make_study("delay-model", "standard").grid, steps=1500)
    problem = problem_of(made.runs()[0])
    rows = class_delays(made, problem, range(6))
    verdicts = [row.verdict for row in delay_claims(rows, problem.slow_classes)]
    assert verdicts[0] == "held"
    independent = rows.filter(~pl.col("dependent")).with_columns(pl.lit(True).alias("dependent"))
    assert delay_claims(independent, problem.slow_classes)[0].verdict != "held"
    nine = rows.filter(pl.col("dependent") & (pl.col("label") == 9))["appearances"].to_numpy().sum()
    assert nine / rows.filter("dependent")["appearances"].to_numpy().sum() == pytest.approx(0.108, abs=0.01)


def test_missing_runs_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "mnist", "--store", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "are not in" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["reproduce", "mnist", "--out", str(tmp_path / "file")]) == 2
    assert main(["reproduce", "mnist", "--size", "huge"]) == 2


def test_tables_for_latex_are_escaped() -> None:
    text = tex(pl.DataFrame({"a_b": ["50 % & more"], "n": [1.5]}))
    assert r"a\_b & n \\" in text
    assert r"50 \% \& more & 1.5000 \\" in text
    assert json.dumps(text).count("toprule") == 1
