"""Every one of the field's other methods through each front door: `simulate`, `fit`, replay and sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import golden_results
import latecomer as lc
from latecomer.experiments import Grid, Store, Sweep, missing, run_sweep
from latecomer.optim import METHODS
from latecomer.optim.reference import TWINS

RIVALS = (
    *("ormo", "ormo-da", "ringmaster", "ringmaster-stop", "ringleader", "rennala", "sync-minibatch", "async-minibatch"),
    *("picky", "staleness-aware", "dc-asgd", "dana-zero", "asap", "fedbuff", "fadas", "anytime-sgd", "clipped"),
    *("ringmaster-lmo", "ordered-adamw"),
)
OPTIONS = {name: golden_results.OPTIONS[name] for name in RIVALS}
SEEN = {
    "ringmaster": "dropped", "ringmaster-stop": "cancelled", "ringleader": "held", "rennala": "dropped",
    "sync-minibatch": "held", "async-minibatch": "dropped", "fedbuff": "held", "fadas": "held",
    "ringmaster-lmo": "dropped",
}  # fmt: skip
"""Methods with a policy of their own, and a status of arrivals that shows it at work."""
DELAYS = {"workers": 3, "cost": [1.0, 3.5], "slow_share": 0.2}


def statuses(trace: lc.Trace) -> set[str]:
    return {lc.trace.STATUSES[code] for code in np.unique(trace.columns["status"])}


def test_all_names_have_a_source_a_twin_and_a_policy_where_one_is_needed() -> None:
    for name in RIVALS:
        assert METHODS[name].source
        assert name in TWINS
    assert {name for name in RIVALS if METHODS[name].policy is not None} == SEEN.keys()


@pytest.mark.parametrize("engine", ["inline", "local"])
@pytest.mark.parametrize("name", RIVALS)
def test_fit_records_what_replays_to_the_bit(name: str, engine: str, tmp_path: Path) -> None:
    """Inline, and among real workers: what they drop, hold and cancel is in the record."""
    problem, options = lc.problems.quadratic(), dict(OPTIONS[name])
    if "R" in options:
        options["R"] = 1  # three workers start at the first point, so two of them are late
    steps = 200 if engine == "local" and name != "ringmaster-stop" else 12  # each of its stops starts a process again
    done = lc.fit(problem, method=name, engine=engine, workers=3, steps=steps, seed=2, evaluate_every=steps,
                  record=tmp_path / "run.parquet", **options)  # fmt: skip
    assert len(done.trace) == steps
    assert SEEN.get(name, "applied") in statuses(done.trace)
    again = lc.training.replay(done.record, problem)
    assert again.difference == 0.0, again.verdict
    assert torch.equal(again.run.state["x"], done.state["x"])


@pytest.mark.parametrize("name", RIVALS)
def test_simulate_resumes_with_the_same_bits(name: str, tmp_path: Path) -> None:
    class Interrupt(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            if outcome.arrival == 29:
                raise InterruptedError

    rule, problem = METHODS[name], lc.problems.quadratic()
    policy = lc.policy.as_policy(rule.policy, 3, rule.policy_options(OPTIONS[name]))
    trace = lc.delays.SampleCost(**DELAYS).trace(40, 5, policy=policy)
    whole = lc.simulate(problem, name, trace, **OPTIONS[name])
    kept = {"checkpoint": tmp_path / "checkpoint", "checkpoint_every": 20, **OPTIONS[name]}
    with pytest.raises(InterruptedError):
        lc.simulate(problem, name, trace, callbacks=[Interrupt()], **kept)
    resumed = lc.simulate(problem, name, trace, **kept)
    assert resumed.resumed_at >= 20
    assert torch.equal(whole.state["x"], resumed.state["x"])
    assert whole.trace == resumed.trace
    assert SEEN.get(name, "applied") in statuses(whole.trace)


def test_one_sweep_has_them_all(tmp_path: Path) -> None:
    """Written as TOML and read again; each run is that of `simulate` on the schedule of its own policy."""
    grids = tuple(Grid(name, {key: [value] for key, value in OPTIONS[name].items()}) for name in RIVALS)
    sweep = Sweep("rivals", "quadratic", "sample-cost", 30, (1,), grids, delay_options=DELAYS)
    store = Store(tmp_path / "runs")
    done = {each.method: each for each in run_sweep(Sweep.from_toml(sweep.to_toml()), store, processes=1)}
    assert sorted(done) == sorted(RIVALS)
    assert missing(sweep, store) == []
    for run in sweep.runs():
        alone = lc.simulate(lc.problems.quadratic(), run.method, run.make_trace(), seed=1, **OPTIONS[run.method])
        assert store.record(run.key)["final"]["loss"] == alone.final["loss"], run.method


def test_the_page_and_the_table_agree_on_how_sure_we_are() -> None:
    words = {"code": "read in public code", "secondary": "read in secondary sources", "our reading": "our reading"}
    page = (Path(__file__).parent.parent / "docs" / "rivals.md").read_text()
    rows = [
        line.split(" | ") for line in page.partition("\n## What needs more")[0].splitlines() if line.startswith("| `")
    ]
    sure = {row[0].strip("|` "): next((w for w in words if row[3].startswith(w)), "") for row in rows}
    assert {*RIVALS} <= set(sure)
    for name, word in sure.items():
        if name != "delay-adaptive":  # the table has the paper's form of it
            source = METHODS[name].source
            assert [w for w in words if words[w] in source] == ([word] if word else []), (name, source)
