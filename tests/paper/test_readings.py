"""Other readings of the paper change one factor, keep the chosen configurations, and share runs with the judging."""

from __future__ import annotations

import pytest

from evidence_support import InMemory, best_at, fill
from latecomer.experiments import RunSpec
from latecomer.paper import plan
from latecomer.paper.evidence import JUDGED_SEEDS, PAPER
from latecomer.paper.readings import AS_JUDGED, READINGS, reading_rows, reading_sweeps, reading_table


def prefers_small_gamma(run: RunSpec) -> float:
    return best_at(0.03)(run) - (0.2 if run.options.get("gamma", 0.1) > 0.5 else 0.0)


@pytest.fixture(scope="module")
def store() -> InMemory:
    made = InMemory()
    fill(made, "choose", prefers_small_gamma)
    return made


def test_one_factor_at_a_time_with_the_chosen_configurations(store: InMemory) -> None:
    choice = plan.chosen(store) or {}
    sweeps = reading_sweeps(store, choice)
    assert tuple(sweeps) == READINGS
    base = {(run.method, run.seed): run for run in sweeps[AS_JUDGED].runs()}
    assert {method for method, _ in base} == set(PAPER)
    assert {seed for _, seed in base} == set(range(1000, 1010))
    judged = {run.key for run in plan.judge_sweep(choice, JUDGED_SEEDS[:20]).runs()}
    assert {run.key for run in base.values()} <= judged  # they are judged anyway
    expected = {
        "batch 64": {"problem_options"}, "15,000 updates": {"steps"}, "width 0.4": {"problem_options"},
        "gamma as printed": {"options"}, "gamma the other way round": set(),
    }  # fmt: skip
    for name, factors in expected.items():
        changed = set()
        for run in sweeps[name].runs():
            before = base[run.method, run.seed].as_dict()
            now = run.as_dict()
            changed |= {key for key in now if now[key] != before[key] and key != "evaluate_every"}
        assert changed == factors, name
    printed = {grid.method: grid.values for grid in sweeps["gamma as printed"].grids}
    for method in ("mu2", "ordered-mu2"):
        assert choice[method]["gamma"] < 0.5 < printed[method]["gamma"][0]
        assert printed[method]["beta"] == [0.05]  # the best of the choice's runs with such a gamma
    assert printed["momentum"] == {name: [value] for name, value in choice["momentum"].items()}


def test_the_table_says_whether_a_direction_changes_and_what_was_not_run(store: InMemory) -> None:
    choice = plan.chosen(store) or {}

    def trained(run: RunSpec) -> float:
        """Ordered methods always train, others in even seeds; with batch 64 it is the other way round."""
        ordered = run.method.startswith("ordered") != (run.problem_options.get("batch_size") == 64)
        return 0.95 if ordered or run.seed % 2 == 0 else 0.1

    fill(store, "readings", trained)
    table = reading_table(reading_rows(store, choice))
    assert table.height == 3 * len(READINGS)
    rows = {(reading, number): row for reading, number, *row in table.iter_rows()}
    direction, changed, least, pairs, *shares = rows["batch 64", 1][1:]
    assert (direction, changed, least, pairs) == ("against", True, -0.5, 10)
    assert dict(zip(PAPER, shares, strict=True))["momentum"] == 1.0
    assert rows[AS_JUDGED, 3][1:4] == ["for", False, 0.5]
    assert rows["width 0.4", 5][1:4] == ["none", False, 0.0]  # ordered momentum trains as often
    rest = {name: each for name, each in reading_rows(store, choice).items() if name != "15,000 updates"}
    missing = reading_table(rest).filter(reading="15,000 updates")
    assert missing["direction"].to_list() == ["not run"] * 3
    assert missing["least"].null_count() == 3
