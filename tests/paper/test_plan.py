"""The plan chooses from coarse to fine, judges as long as a claim is open, and survives a lost machine."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from evidence_support import InMemory, best_at, fill, put
from latecomer.experiments import RunSpec, Store
from latecomer.experiments.pieces import Pieces, read_piece
from latecomer.paper import plan
from latecomer.paper.evidence import JUDGED_SEEDS
from latecomer.paper.scale import PLAN
from latecomer.paper.stages import progress, stage_sweeps
from latecomer.paper.verdicts import collect


@pytest.fixture(scope="module")
def chosen_store() -> InMemory:
    store = InMemory()
    names = fill(store, "choose", best_at(0.03))
    assert [name.split()[0] for name in names] == ["choose-coarse", "choose-fine", "choose-final"]
    assert names[0] == "choose-coarse 329"
    return store


def test_the_choice_goes_from_coarse_to_fine_and_finds_what_is_between(chosen_store: InMemory) -> None:
    choice = plan.chosen(chosen_store)
    assert choice is not None
    assert set(choice) == set(plan.COMPARED)
    for method, options in choice.items():
        assert options["lr"] == 0.03, method  # not among the seven coarse rates: a neighbour on the paper's grid
        assert options.get("beta", 0.05) == 0.05
    for sweep in stage_sweeps("choose", chosen_store):
        assert sweep.problem_options == {"split": "validation"}
        assert max(sweep.seeds) < 15


def test_judging_stops_where_every_claim_is_decided_and_goes_on_otherwise(chosen_store: InMemory) -> None:
    clear, close = InMemory(), InMemory()
    clear.runs, close.runs = dict(chosen_store.runs), dict(chosen_store.runs)

    def decided(run: RunSpec) -> float:
        """Ordered mu2 always trains, ordered momentum every third time, others of the paper never."""
        every = {"ordered-mu2": 1, "ordered-momentum": 3, **dict.fromkeys(plan.OURS, 1)}.get(run.method, 10**6)
        return 0.96 if run.seed % every == 0 else 0.1

    sizes = [int(name.split()[1]) for name in fill(clear, "judge", decided)]
    assert sizes[0] == 20 * len(plan.COMPARED)
    rows = plan.judged_rows(clear, plan.chosen(clear) or {})
    assert rows is not None
    assert set(rows["seed"]) <= set(JUDGED_SEEDS)
    # All that needs async SGD is decided at the second look; mu2 against momentum is not decided at all.
    counts = dict(rows.group_by("method").len().iter_rows())
    assert (counts["async-sgd"], counts["mu2"], counts["momentum"]) == (40, 120, 120)
    first = [f"judge {20 * len(plan.COMPARED)}"]
    assert fill(close, "judge", lambda run: 0.96, most_looks=1) == first
    assert fill(close, "judge", lambda run: 0.96, most_looks=1) == []  # there already
    alike = fill(close, "judge", lambda run: 0.96)
    assert int(alike[0].split()[1]) == 40 * (len(plan.COMPARED) - 1)  # no claim is about catch-up
    assert int(alike[-1].split()[1]) == 120 * (len(plan.COMPARED) - 1)  # nothing is decided, so all looks are made


def test_later_stages_need_the_choice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run the stage 'choose' to its end first"):
        list(stage_sweeps("judge", Store(tmp_path)))
    with pytest.raises(ValueError, match="Unknown stage 'all'"):
        list(stage_sweeps("all", Store(tmp_path)))


PINNED = {
    "choose-coarse": (329, "965d523b39f54093", "7caf861e98b7c7a0", "1a6a70474f6491b9"),
    "choose-fine": (570, "6fef555a7df42be1", "35fa96bdf4fc0859", "7dd45975c953bd57"),
    "choose-final": (330, "cb0fe4929e1463e5", "ad8d6ddded35cbb2", "d15d8d249d61584f"),
    "judge": (220, "ffafb6768078a00b", "fc5cc89021b87933", "a5b6fa56f0e2c2d0"),
    "curves": (1260, "4b757cea52dad542", "01ea55ee80944593", "28523c397394d2a5"),
    "figure": (627, "ade968d03d1cdcf7", "5d039384cc01ce8a", "4d08253449a5bdf1"),
}
"""Number of runs of a sweep, the key of its first and of its last, and a hash of all, where `best_at(0.03)` scored."""


def test_a_change_of_the_plan_does_not_rename_runs_that_were_made(chosen_store: InMemory) -> None:
    found = {}
    for stage, sweeps in (("choose", 3), ("judge", 1), ("curves", 1), ("figure", 1)):
        for sweep in itertools.islice(stage_sweeps(stage, chosen_store), sweeps):
            keys = [run.key for run in sweep.runs()]
            every = hashlib.sha256("".join(keys).encode()).hexdigest()
            found[sweep.name] = (len(keys), keys[0][:16], keys[-1][:16], every[:16])
    assert found == PINNED


def test_a_run_of_several_stages_is_counted_once(chosen_store: InMemory) -> None:
    store = InMemory()
    store.runs = dict(chosen_store.runs)
    fill(store, "judge", lambda run: 0.96, most_looks=1)
    found = {each.stage: each for each in progress(store)}
    assert found["judge"].there == 20 * len(plan.COMPARED)
    assert found["readings"].there == 0  # those of the reading that is judged are judging runs
    assert sum(each.there for each in found.values()) == len(store.runs)


def test_nothing_is_shown_of_a_look_whose_runs_are_being_made(chosen_store: InMemory) -> None:
    store = InMemory()
    store.runs = dict(chosen_store.runs)
    choice = plan.chosen(store) or {}
    for run in plan.judge_sweep(choice, JUDGED_SEEDS[:19]).runs():
        put(store, run, 0.96)
    assert collect(store).judged is None
    for run in plan.judge_sweep(choice, JUDGED_SEEDS[:25]).runs():
        put(store, run, 0.96)
    judged = collect(store).judged
    assert judged is not None
    assert set(judged["seed"]) == set(JUDGED_SEEDS[:20])
    assert judged.height == 20 * len(plan.COMPARED)


def test_curves_cover_seven_rates_at_looks_of_seeds(chosen_store: InMemory) -> None:
    first = next(iter(stage_sweeps("curves", chosen_store)))
    assert first.problem_options == {"width": 0.4}
    assert len(first.seeds) == 20
    assert {tuple(grid.values["lr"]) for grid in first.grids} == {PLAN.rates}
    (figure,) = stage_sweeps("figure", chosen_store)
    assert len(figure.seeds) == 3
    assert all(len(grid.values["lr"]) == 19 for grid in figure.grids)


def test_pieces_bring_runs_back_to_the_digit_and_are_never_rewritten(tmp_path: Path) -> None:
    store, again = Store(tmp_path / "a"), Store(tmp_path / "b")
    (tmp_path / "pieces").mkdir()
    pieces = Pieces(tmp_path / "pieces")
    runs = [RunSpec("mnist", "momentum", "data-dependent", 100, seed=s, options={"lr": 0.1}) for s in range(5)]
    put(store, runs[0], 0.1234567890123456789)
    put(store, runs[1], float("nan"))
    first = pieces.export(store)
    assert first is not None
    before = first.read_bytes()
    assert pieces.export(store) is None
    put(store, runs[2], 0.5)
    second = pieces.export(store)
    assert second is not None
    assert (second.name, first.read_bytes()) == ("runs-0002.jsonl.gz", before)
    reread = Pieces(pieces.folder)
    assert (reread.fill(again), reread.fill(again), len(reread)) == (3, 0, 3)
    for run in runs[:3]:
        for copy in (again, reread):
            assert copy.history(run.key).equals(store.history(run.key))
            assert copy.record(run.key) == store.record(run.key)


def test_a_piece_of_somebody_else_is_noticed_and_a_damaged_one_refused(tmp_path: Path) -> None:
    mine, store = Pieces(tmp_path), Store(tmp_path / "store")
    run = RunSpec("mnist", "momentum", "data-dependent", 100, options={"lr": 0.1})
    put(store, run, 0.5)
    first = Pieces(tmp_path).export(store)
    assert first is not None
    assert mine.export(store) is None  # it was read meanwhile
    assert run.key in mine
    before = first.read_bytes()
    first.write_bytes(before[: len(before) // 2])
    with pytest.raises(ValueError, match="is damaged"):
        read_piece(first)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda entry: entry["record"].pop("final"), "final"),
        (lambda entry: entry["record"]["final"].update(f1="good"), "has no result"),
        (lambda entry: entry["record"].update(outcome=None), "has no result"),
        (lambda entry: [values.clear() for values in entry["history"].values()], "has no evaluations"),
    ],
)
def test_a_piece_with_something_missing_is_refused(tmp_path: Path, damage: Any, what: str) -> None:
    store = Store(tmp_path / "store")
    put(store, RunSpec("mnist", "momentum", "data-dependent", 100, options={"lr": 0.1}), 0.5)
    piece = Pieces(tmp_path).export(store)
    assert piece is not None
    assert len(read_piece(piece)) == 1
    entry = json.loads(gzip.decompress(piece.read_bytes()))
    damage(entry)
    piece.write_bytes(gzip.compress(json.dumps(entry).encode()))
    with pytest.raises(ValueError, match=f"is damaged .*{what}"):
        read_piece(piece)


def test_a_planned_run_says_which_code_made_it_and_how_much_slow_samples_counted(tmp_path: Path) -> None:
    spec = RunSpec(
        "digits", "balanced-catch-up", "data-dependent", 60, evaluate_every=60, options={"lr": 0.05, "beta": 0.05},
        problem_options={"network": "mlp"}, delay_options={"workers": 7, "slow_share": 0.3},
    )  # fmt: skip
    plan.run_planned(spec.as_dict(), str(tmp_path))
    ordered = RunSpec(**{**spec.as_dict(), "method": "ordered-momentum"})
    plan.run_planned(ordered.as_dict(), str(tmp_path))
    balanced, ordering = (Store(tmp_path).record(run.key)["outcome"] for run in (spec, ordered))
    assert ordering["relative_influence"] < balanced["relative_influence"] <= 1.05
    assert balanced["commit"] is None or len(balanced["commit"].rstrip("+")) == 40
