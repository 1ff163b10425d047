"""The measures of the research, on rows and scores made by hand."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from latecomer.experiments import RunSpec, Store, Sweep
from latecomer.problems import TwoCentres
from studies.stable_and_fair import (
    CANDIDATES,
    METRICS,
    SIZES,
    Score,
    Size,
    Stability,
    board,
    front,
    hard,
    hard_plan,
    over_rates,
    plan,
    plans,
    real,
    run_measured,
    size_of,
    stability,
)
from studies.stable_and_fair.__main__ import main
from studies.stable_and_fair.board import shares_of
from studies.stable_and_fair.candidates import find
from studies.stable_and_fair.figures import CANDIDATE_STYLES


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


def test_of_a_loss_the_lowest_is_the_best_and_what_diverged_is_never_near_it() -> None:
    losses = {0.01: 2.0, 0.02: 2.1, 0.03: 2.11, 0.1: 0.5, 0.2: math.nan}
    rows = [{"method": "async-sgd", "lr": lr, "seed": 0, "loss": loss} for lr, loss in losses.items()]
    rows[3]["diverged_at"] = 9
    found = stability(rows, metric="loss", least=True)["async-sgd"]
    assert (found.good, found.runs, found.best, found.score) == (2, 5, 0.01, 2.0)
    assert stability(rows, metric="loss", least=True, best=3.0)["async-sgd"].good == 3


def test_the_interval_is_of_the_shares_of_seeds_and_stays_a_share() -> None:
    good = {0: (0.9, 0.9), 1: (0.9, 0.1), 2: (0.9, 0.9)}
    rows = [
        row("async-sgd", lr, seed, f1) for seed, f1s in good.items() for lr, f1 in zip((0.1, 0.2), f1s, strict=True)
    ]
    found = stability(rows)["async-sgd"]
    assert list(found.by_seed.values()) == [1.0, 0.5, 1.0]
    assert found.interval is not None
    assert found.interval.value == found.share == 5 / 6
    # Student's t for two degrees of freedom is 4.303, the deviation over the root of three is a sixth.
    assert found.interval.low == pytest.approx(5 / 6 - 4.3027 / 6, abs=1e-4)
    assert found.interval.high == 1.0
    assert stability(rows[:2])["async-sgd"].interval is None


def test_a_kind_that_never_survives_has_no_best_of_its_own() -> None:
    rows = [{"candidate": "momentum", "lr": 0.1, "seed": seed, "f1": 0.9} for seed in range(2)]
    rows += [{"candidate": "balanced-catch-up", "lr": 0.1, "seed": seed, "f1": 0.5} for seed in range(2)]
    lost = [{"candidate": "catch-up-adamw", "lr": 0.1, "seed": seed, "f1": f1} for seed, f1 in enumerate((0.9, None))]
    shares = {
        name: found.share for name, found in shares_of([*rows, *lost], METRICS["digits"], within_kind=True).items()
    }
    assert shares == {"momentum": 1.0, "balanced-catch-up": 0.0, "catch-up-adamw": 0.5}


def test_a_lead_is_paired_by_seed() -> None:
    ours = Stability(0, 1, 0.1, 0.9, {0: 0.9, 1: 0.5, 2: 0.7, 3: 1.0})
    theirs = Stability(0, 1, 0.1, 0.9, {2: 0.6, 0: 0.7, 1: 0.2})
    lead = ours.lead(theirs)
    assert lead is not None
    assert lead.value == pytest.approx(0.2)
    assert lead.low == pytest.approx(0.2 - 4.3027 * 0.1 / math.sqrt(3), abs=1e-4)
    assert ours.lead(Stability(0, 1, 0.1, 0.9, {0: 1.0})) is None


@pytest.mark.parametrize(("rows", "message"), [([], "no rows"), ([row("async-sgd", 0.1, 0, None)], "No learning rate")])
def test_nothing_to_compare(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stability(rows)


def test_equals_share_the_front_and_nan_is_never_ahead() -> None:
    scores = [Score("a", 0.5, 1.0), Score("b", 0.5, 1.0), Score("c", 0.5, math.nan), Score("d", 0.6, math.nan)]
    assert [score.name for score in front(scores)] == ["d", "a", "b"]


def test_runs_without_measures_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep of the same spec has the same keys, but no measure of fairness."""
    run = hard_plan(size_of("quick"))["M = 3"][0].runs()[0]
    Store(tmp_path / "runs").put(run, pl.DataFrame({"update": [run.steps]}), {"diverged_at": None}, 0.0)
    where = ["--store", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--as-is"]
    assert main(["hard", *where]) == 2
    assert "was made by another command" in capsys.readouterr().err


def test_every_candidate_trains_on_workers() -> None:
    rows = list(real(rates=(0.03,), steps=12, workers=2, engine="inline", pause=0.0))
    assert [row["candidate"] for row in rows] == list(CANDIDATES)
    assert all(row["f1"] is not None for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pause", "-1"], "Invalid pause value: -1"),
        (["--rates"], "nothing to train"),
        (["--rates", "nan"], "Invalid lr"),
    ],
)
def test_bad_input_of_real(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["real", "--steps", "5", "--out", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


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
            assert Sweep.from_toml(sweep.to_toml()).grids == sweep.grids
            assert sweep.runs()[-1].key


def test_every_candidate_is_found_again_by_its_options() -> None:
    for each in CANDIDATES.values():
        assert find(each.method, {"lr": 0.1, **each.options}) is each
    assert CANDIDATES.keys() == CANDIDATE_STYLES.keys()


def test_seeds_of_a_standard_size() -> None:
    sweeps = {sweep.name: sweep for sweep in plan("standard")}
    for name, seeds in {"far": 3, "counter-example": 3, "digits": 5, "mnist": 5, "text": 5, "cifar10": 5}.items():
        sweep = sweeps[f"research-{name}-standard"]
        assert (len(sweep.seeds), len(sweep.grids)) == (seeds, len(CANDIDATES))
    assert not any("mnist" in name or "text" in name or "cifar10" in name for name in (s.name for s in plan("quick")))


@pytest.mark.parametrize(
    ("sweep", "key"),
    [
        ("research-far-standard", "8e08ee3cc39c"),
        ("research-counter-example-standard", "7c62039e3c4e"),
        ("research-digits-standard", "825dae398c60"),
        ("research-mnist-standard", "228bda75e880"),
        ("research-text-standard", "182abc6c2d7c"),
        ("research-cifar10-standard", "1dbb9d8d2099"),
        ("hard-M = 3-standard", "93a0ad597ede"),
    ],
)
def test_the_runs_that_were_made_are_still_found(sweep: str, key: str) -> None:
    """A key is a run's address in the store: another one would throw days of runs away."""
    hard_sweeps = (one for pair in hard_plan(size_of("standard")).values() for one in pair if one is not None)
    sweeps = {one.name: one for one in (*plan("standard"), *hard_sweeps)}
    assert sweeps[sweep].runs()[0].key.startswith(key)


def test_fresh_seeds_have_all_learning_rates_and_other_settings_four() -> None:
    rates = {
        name: {run.options["lr"] for run in digits.runs()}
        for name, (digits, _) in hard_plan(size_of("standard")).items()
    }
    for name in ("fresh seeds", "text, fresh seeds"):
        assert rates.pop(name) == set(size_of("standard").rates)
    assert set(map(frozenset, rates.values())) == {frozenset(hard.RATES)}
    for digits, _ in hard_plan(size_of("standard")).values():
        assert digits.seeds == (100, 101, 102, 103, 104)


def test_text_has_four_groups_a_loss_and_an_influence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run of the plan's text, and what the board makes of it."""
    tiny = Size("quick", (0.03, 0.1), 2, 1, 60, 3, ("mlp", 20), text=30)
    few, store = [CANDIDATES["momentum"], CANDIDATES["ordered-momentum"]], Store(tmp_path)
    monkeypatch.setitem(plans.TEXT, "evaluated", 128)
    sweep = plans.stability_sweeps(tiny, few)["text"]
    for run in sweep.runs():
        assert set(run.make_trace(200).group.tolist()) == {0, 1, 2, 3}
        run_measured(run.as_dict(), str(tmp_path))
    table = board(tiny, store, few)
    assert table["seeds_text"].to_list() == [2, 2]
    found = dict(zip(table["candidate"], table.select("best_text", "slow_text", "influence_text").rows(), strict=True))
    assert found["momentum"][2] == 1.0
    assert found["ordered-momentum"][2] < 0.95
    ended = [record for record in store.rows() if record["method"] == "momentum"]
    means = {lr: np.mean([one["loss"] for one in ended if one["lr"] == lr]) for lr in tiny.rates}
    assert found["momentum"][0] == pytest.approx(min(means.values()))
    best = min(means, key=lambda lr: means[lr])
    assert found["momentum"][1] == pytest.approx(np.mean([one["loss_128"] for one in ended if one["lr"] == best]))
    curves = over_rates(tiny, store, few)
    assert curves.filter(pl.col("candidate") == "momentum")["value"].to_list() == pytest.approx([*means.values()])
    assert METRICS["text"].slow in ended[0]


def test_a_kind_of_its_own_does_not_spoil_the_comparison_of_others(tmp_path: Path) -> None:
    size, store = Size("quick", (0.1, 0.2), 1, 1, 60, 3, ("mlp", 20)), Store(tmp_path)
    who = [CANDIDATES[name] for name in ("momentum", "catch-up", "catch-up-adamw")]
    ends = {"momentum": (0.5, 0.2), "catch-up": (0.48, 0.49), "catch-up-adamw": (0.9, 0.1)}
    for run in plans.stability_sweeps(size, who)["digits"].runs():
        put(store, run, f1=ends[run.method][run.options["lr"] == 0.2])
    rows = board(size, store, who).rows_by_key("candidate", named=True, unique=True)
    assert [rows[each.name]["stable_digits"] for each in who] == [0.0, 0.0, 0.5]
    assert [rows[each.name]["stable_kind_digits"] for each in who] == [0.5, 1.0, 0.5]


def put(store: Store, run: RunSpec, **outcome: float | None) -> None:
    ended = {"update": [run.steps], **({"f1": [outcome.pop("f1")]} if "f1" in outcome else {})}
    store.put(run, pl.DataFrame(ended), {"diverged_at": None, "slow_over_fast": 1.0, **outcome}, 0.0)


def test_fairness_is_averaged_over_the_seeds_that_all_candidates_have(tmp_path: Path) -> None:
    size, store = size_of("standard"), Store(tmp_path)
    few = [CANDIDATES["momentum"], CANDIDATES["catch-up"]]
    for run in plans.fairness_sweeps(size, few)["far"].runs():
        if (run.method, run.seed) != ("catch-up", 2):
            put(store, run, excess=10.0**run.seed)
    rows = board(size, store, few).rows_by_key("candidate", named=True, unique=True)
    for each in few:
        assert (rows[each.name]["excess_far"], rows[each.name]["seeds_far"]) == (5.5, 2)


def test_the_quick_plane_is_run_drawn_and_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of the command but the size: two candidates, a few updates."""
    few = {name: CANDIDATES[name] for name in ("momentum", "balanced-catch-up")}
    tiny = Size("quick", (0.03, 0.1), 1, 1, 60, 3, ("mlp", 20))
    monkeypatch.setattr(plans, "CANDIDATES", few)
    monkeypatch.setattr(plans, "SIZES", {"quick": tiny})
    monkeypatch.setattr(sys.modules["studies.stable_and_fair.__main__"], "CANDIDATES", few)
    where = ["--store", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main(["pareto", "--processes", "1", *where]) == 0
    files = [tmp_path / "out" / name for name in ("pareto-quick.svg", "curves-quick.svg", "pareto-quick.md")]
    first = [file.read_bytes() for file in files]
    assert main(["pareto", "--as-is", *where]) == 0
    assert [file.read_bytes() for file in files] == first
    table = pl.read_csv(tmp_path / "out" / "pareto-quick.csv")
    assert table["candidate"].to_list() == list(few)
    assert {"stable_digits", "excess_far", "influence_far", "theorem"} <= set(table.columns)
    page = files[2].read_text()
    assert page.count("| balanced-catch-up | ") == 6
    assert f"| momentum | {table['stable_digits'][0]:.2f} |\n" in page
    assert f"| momentum | {table['stable_digits'][0]:.2f} | {table['influence_far'][0]:.2f} |" in page


def test_the_hard_settings_are_run_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SIZES", {"quick": Size("quick", (0.03,), 1, 1, 60, 3, ("mlp", 20))})
    monkeypatch.setattr(hard, "CANDIDATES", {name: CANDIDATES[name] for name in ("momentum", "balanced-momentum")})
    monkeypatch.setattr(hard, "HARD", hard.HARD[-3:])
    where = ["--store", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main(["hard", "--processes", "1", *where]) == 0
    table = pl.read_csv(tmp_path / "out" / "hard-quick.csv")
    assert table["setting"].to_list() == ["slow share 0.3"] * 2 + ["no delay"] * 2
    page = (tmp_path / "out" / "hard-quick.md").read_text()
    assert page.count("| no delay | ") == 4
    assert f"| {table['best'][2]:.2f} / {table['slow'][2]:.2f} / {table['worst'][2]:.2f} |" in page


def test_nothing_there_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--store", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--as-is"]
    for command in ("pareto", "hard"):
        assert main([command, *where]) == 2
        assert "leave --as-is out" in "".join(capsys.readouterr())
