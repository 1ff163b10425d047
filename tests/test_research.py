"""The measures of the research, on rows and scores made by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import latecomer.research
from latecomer.cli import main
from latecomer.experiments import Sweep
from latecomer.optim.clipping import next_scale
from latecomer.problems import TwoCentres
from latecomer.research import (
    CANDIDATES,
    LEADERS,
    SHORTLIST,
    SIZES,
    Score,
    Size,
    applied_influence,
    front,
    hard,
    measure,
    plan,
    plans,
    stability,
)
from latecomer.research.candidates import find


def row(method: str, lr: float, seed: int, f1: float | None, **more: Any) -> dict[str, Any]:
    return {"method": method, "lr": lr, "seed": seed, "f1": f1, **more}


def test_the_best_is_that_of_all_candidates_and_what_diverged_is_never_near_it() -> None:
    rows = [
        row("momentum", 0.01, 0, 0.98, beta=0.1),
        row("momentum", 0.1, 0, 0.99, beta=0.1, diverged_at=7),
        row("momentum", 0.2, 0, None, beta=0.1),
        row("catch-up", 0.01, 0, 0.90, beta=0.1),
        row("catch-up", 0.1, 0, 0.94, beta=0.1),
    ]
    found = stability(rows)
    assert (found["momentum beta=0.1"].good, found["momentum beta=0.1"].runs) == (1, 3)
    assert (found["catch-up beta=0.1"].share, found["catch-up beta=0.1"].best) == (0.5, 0.1)
    assert stability(rows, best=0.94)["catch-up beta=0.1"].share == 1.0


def test_a_single_lucky_run_is_not_the_best() -> None:
    rows = [row("async-sgd", 0.1, seed, f1) for seed, f1 in enumerate((1.0, 0.1))]
    rows += [row("async-sgd", 0.01, seed, 0.9) for seed in range(2)]
    assert stability(rows)["async-sgd"].share == 0.75


@pytest.mark.parametrize(("rows", "message"), [([], "no rows"), ([row("async-sgd", 0.1, 0, None)], "No learning rate")])
def test_nothing_to_compare(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stability(rows)


def test_equals_share_the_front_and_nan_is_never_ahead() -> None:
    scores = [Score("a", 0.5, 1.0), Score("b", 0.5, 1.0), Score("c", 0.5, math.nan), Score("d", 0.6, math.nan)]
    assert [score.name for score in front(scores)] == ["d", "a", "b"]


def test_bad_input_of_the_measures() -> None:
    with pytest.raises(ValueError, match="one of each an arrival"):
        applied_influence([1.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="Unknown problem 'nowhere'"):
        measure("nowhere", "momentum")


def test_a_run_that_diverges_is_infinitely_unfair() -> None:
    found = measure("near", "async-sgd", lr=100.0, steps=600)
    assert found.excess == math.inf


def test_heavy_tails_are_the_slow_groups_alone() -> None:
    """The fast group has the plain problem's noise to the bit; the slow one now and then a far larger one."""
    plain, tailed = TwoCentres(), TwoCentres(tail=1.5)
    largest = [0.0, 0.0]
    for sample in range(300):
        for group, found in enumerate((plain.batch(sample, 0)[1], tailed.batch(sample, 0)[1])):
            largest[group] = max(largest[group], float(found.abs().max()))
    assert largest[0] == largest[1]
    assert max(float(tailed.batch(sample, 1)[1].abs().max()) for sample in range(300)) > 4 * largest[0]


def test_every_size_has_runs_that_can_be_made() -> None:
    for size in SIZES:
        for sweep in plan(size):
            assert Sweep.from_toml(sweep.to_toml()).runs() == sweep.runs()


def test_every_candidate_is_found_again_by_its_options() -> None:
    for each in CANDIDATES.values():
        assert find(each.method, {"lr": 0.1, **each.options}) is each
    assert set(SHORTLIST) <= CANDIDATES.keys()
    assert set(LEADERS) <= CANDIDATES.keys()


def test_a_group_of_share_q_is_not_clipped_for_long_if_c_is_at_least_one_over_q() -> None:
    """The scale's fixed point: below 1/q a rare group with large gradients stays clipped, from there on it does not."""
    slow = np.random.default_rng(0).random(20_000) < 0.2
    for c, stays in ((2.0, True), (4.0, True), (6.0, False)):
        scale, cut = 1.0, []
        for is_slow in slow:
            norm = 1000.0 if is_slow else 1.0
            cut.append(is_slow and norm > c * scale)
            scale = next_scale(scale, norm, clip=c, rate=0.01)
        assert (np.sum(cut[10_000:]) > 0.9 * slow[10_000:].sum()) == stays


def test_the_quick_plane_is_run_drawn_and_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of the command but the size: two candidates, a few updates."""
    few = {name: CANDIDATES[name] for name in ("momentum", "clipped-catch-up, c 2")}
    tiny = Size("quick", (0.03, 0.1), 1, 1, 60, 3, ("mlp", 20), None)
    monkeypatch.setattr(plans, "CANDIDATES", few)
    monkeypatch.setattr(plans, "SHORTLIST", tuple(few))
    monkeypatch.setattr(plans, "SIZES", {"quick": tiny})
    monkeypatch.setattr(latecomer.research, "CANDIDATES", few)
    monkeypatch.setattr(latecomer.research, "SHORTLIST", tuple(few))
    where = ["--store", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main(["research", "pareto", "--processes", "1", *where]) == 0
    first = (tmp_path / "out" / "pareto-quick.svg").read_bytes()
    assert main(["research", "pareto", "--as-is", *where]) == 0
    assert (tmp_path / "out" / "pareto-quick.svg").read_bytes() == first
    table = pl.read_csv(tmp_path / "out" / "pareto-quick.csv")
    assert table["candidate"].to_list() == list(few)
    assert {"stable_digits", "excess_far", "say_far", "theorem"} <= set(table.columns)


def test_the_hard_settings_are_run_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SIZES", {"quick": Size("quick", (0.03,), 1, 1, 60, 3, ("mlp", 20), None)})
    monkeypatch.setattr(hard, "LEADERS", ("momentum", "clipped-catch-up, c 2"))
    monkeypatch.setattr(hard, "HARD", hard.HARD[-2:])
    where = ["--store", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main(["research", "hard", "--processes", "1", *where]) == 0
    table = pl.read_csv(tmp_path / "out" / "hard-quick.csv")
    assert table["setting"].to_list() == ["slow share 0.3"] * 2 + ["no delay"] * 2


def test_nothing_there_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--store", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--as-is"]
    for command in ("pareto", "hard"):
        assert main(["research", command, *where]) == 2
        assert "leave --as-is out" in "".join(capsys.readouterr())
