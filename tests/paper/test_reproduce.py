"""`latecomer reproduce`: the plan in miniature, interrupted and resumed; the committed runs; what it refuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
import pytest

from browser import needs_chromium, opened
from evidence_support import best_at, fill
from latecomer import data
from latecomer.cli.main import main
from latecomer.experiments import Store
from latecomer.experiments.pieces import Pieces
from latecomer.experiments.sweep import _cached_problem
from latecomer.paper import scale
from latecomer.paper.evidence import CLAIMS, JUDGED_SEEDS
from latecomer.paper.plan import COMPARED
from latecomer.problems.images import held_out

TINY = replace(
    scale.MINIATURE, steps=4, width=0.1, curve_width=0.1, evaluations=2, pairs=(2,),
    stand_ins=MappingProxyType({"rotations": 2}), tuned_width=0.0625, tuned_steps=2, tuned_rates=(0.01,),
)  # fmt: skip
"""A miniature of the miniature."""


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


def pretend(patch: pytest.MonkeyPatch) -> None:
    """Put few images in the place of the datasets, and a miniature of the miniature in its place."""
    _cached_problem.cache_clear()
    patch.setattr(data, "load", images)
    for name in ("problems.mnist", "problems.cifar10", "paper.pretraining"):
        __import__(f"latecomer.{name}")
        module = sys.modules[f"latecomer.{name}"]
        patch.setattr(module, "held_out", lambda arrays, split, validation: held_out(arrays, split, 60))
    patch.setattr(data, "get", lambda name, data_dir=None, progress=None: Path("there"))
    patch.setitem(scale.SCALES, "quick", TINY)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pretend(monkeypatch)
    yield
    _cached_problem.cache_clear()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reproduction") / "out"
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        patch.setenv("LATECOMER_DATA", str(out / "data"))
        assert main(["reproduce", "all", "--size", "quick", "--processes", "1", "--out", str(out)]) == 0
    _cached_problem.cache_clear()
    return out / "evidence.html"


def test_the_miniature_takes_every_step_and_says_that_it_decides_nothing(page: Path) -> None:
    text = page.read_text()
    assert "This is a miniature: it decides nothing." in text
    assert "Not all runs were made" not in text
    assert "<td>judge</td><td>22</td><td>22</td>" in text  # eleven methods, two seeds
    verdicts = pl.read_csv(page.parent / "verdicts.csv")
    told = dict(verdicts.select("number", "verdict").iter_rows())
    assert told.pop(12) == "refuted"  # computed, not run
    assert set(told.values()) == {"none: a miniature decides nothing"}
    assert verdicts["pairs"].to_list()[:11] == [2] * 11
    for name in ("power", "comparisons", "thresholds", "methods", "bands", "cifar10"):
        assert pl.read_csv(page.parent / f"{name}.csv", infer_schema_length=None).height > 0, name
    assert not (page.parent / "readings.csv").exists()
    ids = re.findall(r'<figure class="wide" id="([\w-]+)"', text)
    assert {"trained", "f1-by-seed", "curves", "cifar10-by-seed"} <= set(ids)
    assert "slow-fast" not in ids  # after four updates nothing trained on MNIST
    assert {path.suffix for path in (page.parent / "figures").glob("curves.*")} == {".svg", ".pdf", ".png"}
    assert re.findall(r'(?:src|href)="(?!#)([^"]+)"', text) == []  # nothing comes from elsewhere
    store = Store(page.parent / "runs")
    keys = store.keys()
    specs = [store.record(key)["spec"] for key in keys]
    assert {spec["method"] for spec in specs} == set(COMPARED)
    assert not {spec["seed"] for spec in specs} & set(JUDGED_SEEDS)  # nobody looks at the plan's seeds early


@needs_chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_in_a_browser(page: Path, width: int, tmp_path: Path) -> None:
    seen = opened(page, width, tmp_path)
    assert seen["errors"] == []
    assert len(seen["figures"]) == page.read_text().count("<figure") >= 4
    for name, wide, high in seen["figures"]:
        assert wide >= 330, name
        assert high >= 100, name
    assert seen["wide"] <= seen["view"]


@pytest.mark.usefixtures("tiny")
def test_an_interrupted_run_goes_on_and_ends_the_same(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from latecomer.paper import plan

    monkeypatch.setattr(plan, "run_planned", _interrupted_after(7, plan.run_planned))
    command = ["reproduce", "mnist", "--stages", "choose", "--processes", "1", "--out", str(tmp_path / "out")]
    assert main(command) == 130
    kept = set(Store(tmp_path / "out" / "runs").keys())
    assert len(kept) == 7
    monkeypatch.undo()
    pretend(monkeypatch)
    assert main(command) == 0
    assert f"{len(COMPARED) * 2 - 7:,} are missing" in capsys.readouterr().out
    again, whole = Store(tmp_path / "out" / "runs"), Store(page.parent / "runs")
    assert kept < set(again.keys()) <= set(whole.keys())
    for key in again.keys():  # noqa: SIM118
        assert again.history(key).equals(whole.history(key))


@pytest.mark.usefixtures("tiny")
def test_drawing_again_needs_no_run(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--store", str(page.parent / "runs"), "--out", str(tmp_path)]
    assert main(["reproduce", "mnist", "--from-store", "--json", *where]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["decides"] is False
    assert told["rows"][9]["verdict"] == "not run"  # the weights of CIFAR-10 are elsewhere
    for name in ("methods.csv", "bands.csv", "figures/curves.svg"):
        assert (tmp_path / name).read_bytes() == (page.parent / name).read_bytes(), name


def _interrupted_after(count: int, run: Callable[..., Any]) -> Callable[..., Any]:
    done = 0

    def interrupted(spec: dict[str, Any], folder: str) -> Any:
        nonlocal done
        if done == count:
            raise KeyboardInterrupt
        done += 1
        return run(spec, folder)

    return interrupted


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """Some of the coarse choice, as if it were committed."""
    store, folder = Store(tmp_path / "made"), tmp_path / "paper" / "runs"
    folder.mkdir(parents=True)

    class EnoughError(Exception):
        pass

    def score(run: Any) -> float:
        if len(store.keys()) == 12:
            raise EnoughError
        return best_at(0.03)(run)

    with pytest.raises(EnoughError):
        fill(store, "choose", score)
    Pieces(folder).export(store)
    return folder


def test_the_page_of_committed_runs_says_how_far_they_are(
    committed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--pieces", str(committed), "--out", str(tmp_path / "out")]
    assert main(["reproduce", "all", "--size", "standard", "--from-store", *where]) == 0
    assert "Not run to their end, and marked so: choose, judge" in capsys.readouterr().out
    text = (tmp_path / "out" / "evidence.html").read_text()
    assert "<strong>Not all runs were made:</strong> 12 of the 329 runs planned so far are there" in text
    assert "<td>choose</td><td>329</td><td>12</td>" in text
    assert "latecomer reproduce all --size standard" in text
    table = pl.read_csv(tmp_path / "out" / "verdicts.csv")
    assert table.filter(pl.col("number") != 12)["verdict"].unique().to_list() == ["not run"]
    assert table["command"][0] == "latecomer reproduce mnist --size standard --stages choose judge"
    assert main(["reproduce", "all", "--size", "standard", "--dry-run", "--store", str(tmp_path / "s"), *where]) == 0
    assert "choose, choose-coarse: 329 runs, 317 are missing" in capsys.readouterr().out


def test_a_truncated_piece_is_told(committed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    piece = next(committed.iterdir())
    piece.write_bytes(piece.read_bytes()[:-40])
    where = ["--pieces", str(committed), "--out", str(tmp_path / "out")]
    assert main(["reproduce", "all", "--size", "standard", "--from-store", *where]) == 2
    error = capsys.readouterr().err
    assert f"{piece} is damaged" in error
    assert error.count("\n") == 1


BAD = {
    "--size huge": "huge",
    "--processes 0": "--processes",
    "--hours 0": "--hours",
    "--stages judge figure": "Invalid --stages value: 'figure' (expected some of choose, judge, curves for mnist",
    "--from-store": "There are no runs of size quick to judge: `latecomer reproduce mnist --size quick",
    "--size paper --weights nowhere.pth --stages cifar10": "Invalid --stages value: 'cifar10'",
}


@pytest.mark.parametrize("words", BAD)
def test_what_cannot_be_done_is_one_sentence(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "mnist", *words.split(), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert BAD[words] in error
    assert error.count("\n") == 1


def test_the_size_paper_says_first_what_cannot_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "all", "--size", "paper", "--dry-run"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("Cannot be run: CIFAR-10 from ImageNet weights, which this command does not download")
    assert "batch size, number of updates and widths; 16, 3,750, 20 and 50 channels are our reading" in first
    assert rest[-1] == "choose, choose-coarse: 2,679 runs, 2,679 are missing"  # 19 rates and 3 seeds: 329 / 7 * 57
    assert main(["reproduce", "cifar10", "--size", "paper"]) == 2
    assert "pass a file with --weights" in capsys.readouterr().err


def test_the_old_report_points_to_the_new_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "mnist"]) == 2
    assert "latecomer reproduce mnist --from-store" in capsys.readouterr().err


def test_the_scale_of_the_plan_is_the_plan() -> None:
    assert scale.PLAN.claims == CLAIMS
