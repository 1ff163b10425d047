"""Clocks beyond fixed durations: speeds that change, costs of network and server, measured durations and delays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.delays import MeasuredDelays, MeasuredDurations, SampleCost, TimeVarying, WithCosts, WorkerSpeeds


def test_heavy_tails_have_mean_one_and_no_variance_to_speak_of() -> None:
    trace = WorkerSpeeds([1.0], "pareto").trace(200_000, 0)
    durations = np.diff(trace.end, prepend=0.0)
    assert durations.mean() == pytest.approx(1.0, rel=0.1)
    assert durations.min() >= 1 / 3
    # P(duration > x) = (3x)^-1.5, also far out, where an exponential has nothing left.
    for x in (1.0, 10.0, 100.0):
        assert (durations > x).mean() == pytest.approx((3 * x) ** -1.5, rel=0.2)


def test_costs_of_nothing_change_nothing() -> None:
    for model in (SampleCost(3, (1.0, 7.0), 0.3), WorkerSpeeds([1.0, 2.0], "exponential", slow_share=0.2)):
        for around in (WithCosts(model), TimeVarying(model, lambda worker, time: 1.0)):
            for policy in (None, "synchronous", lc.policy.RingmasterStop(model.workers, 2)):
                plain, costed = (each.trace(60, 4, policy=policy) for each in (model, around))
                for column in plain.columns:
                    np.testing.assert_array_equal(costed.columns[column], plain.columns[column], err_msg=column)


def test_a_busy_server_receives_one_arrival_after_the_other() -> None:
    trace = WithCosts(WorkerSpeeds([1.0] * 5), server=0.5).trace(30, 0)
    assert np.diff(trace.end).min() == pytest.approx(0.5)
    assert trace.end[-1] == pytest.approx(1.0 + 30 * 0.5)  # saturated: twice as many workers would not be faster
    synchronous = WithCosts(WorkerSpeeds([1.0, 3.0]), network=0.5, server=0.25).trace(4, 0, policy="synchronous")
    assert synchronous.end.tolist() == [1.75, 3.75, 5.5, 7.5]
    both = TimeVarying(WithCosts(WorkerSpeeds([1.0]), network=1.0, server=0.5), lambda worker, time: 2.0)
    assert both.trace(2, 0).end.tolist() == [4.5, 9.0]


def test_measured_durations_keep_their_groups_and_work_under_any_policy(tmp_path: Path) -> None:
    model = SampleCost(workers=3, cost=(1.0, 5.0), slow_share=0.3)
    recorded = MeasuredDurations.of(model.trace(300, 0))
    assert recorded.shares[1] == pytest.approx(0.3, abs=0.06)
    trace = recorded.trace(200, 1, policy=lc.policy.Rennala(3, 2))
    durations = (trace.end - trace.start).round(9)
    assert set(zip(trace.group.tolist(), durations.tolist(), strict=True)) == {(0, 1.0), (1, 5.0)}
    assert trace == recorded.trace(200, 1, policy=lc.policy.Rennala(3, 2)) != recorded.trace(200, 2, policy="rennala")
    run = lc.simulate(lc.problems.quadratic(), "rennala", trace, lr=0.05, S=2)
    assert run.trace.update.tolist() == trace.update.tolist()
    file = tmp_path / "jobs.csv"
    file.write_text("worker, seconds, group\n0, 1.5, 0\n1, 4.0, 1\n0, 2.5, 0\n\n")
    model_of_file = MeasuredDurations.read(file)
    assert (model_of_file.measured, model_of_file.workers) == ([[(1.5, 0), (2.5, 0)], [(4.0, 1)]], 2)
    assert set(model_of_file.trace(20, 0).group.tolist()) == {0, 1}


def test_with_a_task_a_worker_takes_its_durations_of_a_group_in_turn() -> None:
    task = lc.Task(
        torch.nn.Linear(1, 1), lambda model, batch: model(batch).mean(),
        batch_fn=lambda sample: torch.full((1, 1), float(sample % 3 == 0)),
        group_fn=lambda batch: int(batch.item()), groups=("usual", "rare"),
    )  # fmt: skip
    measured = {(0, 0): [1.0, 2.0, 3.0], (0, 1): [10.0, 30.0, 20.0], (1, 0): [5.0, 4.0], (1, 1): [50.0]}
    jobs = [[(took, group) for group in (0, 1) for took in measured[worker, group]] for worker in (0, 1)]
    firsts = set()
    for seed in range(20):
        trace = MeasuredDurations(jobs, 2, task=task).trace(100, seed)
        for (worker, group), own in measured.items():
            lasted = (trace.end - trace.start)[(trace.worker == worker) & (trace.group == group)].round(6).tolist()
            place = own.index(lasted[0])
            assert lasted == [own[(place + n) % len(own)] for n in range(len(lasted))]
            assert len(lasted) > len(own)
            firsts.add(lasted[0])
    assert firsts == {took for own in measured.values() for took in own}  # the seed draws the place


def test_a_record_that_lacks_its_long_jobs_is_refused() -> None:
    stops = lc.policy.RingmasterStop(8, 8)
    stopped = SampleCost(8, (1.0, 10.0), slow_share=0.1).trace(2000, 0, policy=stops)
    with pytest.raises(ValueError, match=r"^\d+ jobs of the record were cancelled, mostly slow ones.*cancels nothing$"):
        MeasuredDurations.of(stopped)
    model = WorkerSpeeds([1.0, 1.0, 500.0])
    with pytest.raises(ValueError, match=r"^Worker 2 had finished no job when the record ended.*a longer run$"):
        MeasuredDurations.of(model.trace(60))
    assert MeasuredDurations.of(model.trace(1100)).workers == 3


def test_workers_that_left_or_never_had_a_job_are_left_out() -> None:
    """They were not slow: no long duration is missing."""
    trace = WorkerSpeeds([1.0, 1.0, 500.0]).trace(60)
    gone = lc.Trace.unchecked(replace(trace.header, left=((10, 2),)), trace.columns)
    assert MeasuredDurations.of(gone).workers == 2
    alone = WorkerSpeeds([1.0]).trace(9)
    assert MeasuredDurations.of(lc.Trace.unchecked(replace(alone.header, workers=2), alone.columns)).workers == 1


@settings(max_examples=50)
@given(order=st.lists(st.integers(0, 3), min_size=1, max_size=60), data=st.data())
def test_delays_alone_say_who_arrived(order: list[int], data: st.DataObject, tmp_path_factory: Any) -> None:
    """The delays of any schedule are read back exactly, from one column or from the ages of every worker's gradient."""
    workers = 1 + max(order)
    group = np.zeros(len(order), dtype=np.int16)
    trace = lc.delays.base.arrivals_trace(
        np.array(order), None, workers=workers, seed=0, model="test", groups=("all",), group=group
    )
    file = tmp_path_factory.mktemp("delays") / "one.csv"
    file.write_text("".join(f"{delay:.18e}\n" for delay in trace.delay))
    model = MeasuredDelays(file, workers=workers)
    assert model.exact == 1.0
    assert model.trace(len(order)).delay.tolist() == trace.delay.tolist()
    ages = np.zeros((len(order) + 1, workers), dtype=int)
    for t, (worker, delay) in enumerate(zip(order, trace.delay.tolist(), strict=True), 1):
        ages[t] = ages[t - 1] + 1
        # An age that happens to be one more than before looks as if nothing had arrived.
        ages[t, worker] = delay if delay != ages[t, worker] else delay + 1000
    file.write_text("\n".join(",".join(map(str, row)) for row in ages.tolist()))
    if workers > 1:
        found = MeasuredDelays(file)
        assert found.order.tolist() == [*range(workers), *order]  # on the first line everybody has arrived
        assert found.trace(3).worker.tolist() == found.order[:3].tolist()


def test_delays_that_no_schedule_has_come_as_near_as_they_can(tmp_path: Path) -> None:
    file = tmp_path / "real.csv"
    file.write_text("0\n1\n0\n0\n3\n2\n")  # at 5 the second worker arrived long ago
    model = MeasuredDelays(file)
    assert (model.workers, 0 < model.exact < 1) == (2, True)
    run = lc.simulate(lc.problems.quadratic(), "momentum", model.trace(6), lr=0.05)
    assert len(run.trace) == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("1,2\n3\n", "have several lengths"),
        ("0\nx\n", r"Line 2 of .* has 'x' .expected a number"),
        ("0\n1.5\n", r"Line 2 of .* has \['1.5'\] .expected delays"),
        ("0\nnan\n", "Line 2 of .* has 'nan'"),
        ("0\n-1\n", "Line 2 of .* has '-1'"),
    ],
)
def test_a_file_that_is_not_one_of_delays_gets_a_sentence(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "delays.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        MeasuredDelays(file)


def test_bad_values_get_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("worker,seconds\n0,1\n2,1\n")
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    cases: list[tuple[Any, str]] = [
        (lambda: MeasuredDurations.read(file), r"has jobs of the workers \[0, 2\]"),
        (lambda: MeasuredDurations.read(tmp_path / "no.csv"), "There is no file"),
        (lambda: MeasuredDurations.read(binary), "is not a CSV file"),
        (lambda: MeasuredDurations(5), "Invalid jobs value: 5 .expected a list of lists"),  # type: ignore[arg-type]
        (lambda: MeasuredDurations([["a"]]), "Invalid seconds value: 'a'"),
        (lambda: MeasuredDurations([[(1.0, 0, 0)]]), "Invalid seconds value"),
        (lambda: MeasuredDurations.of(3), "Invalid trace: int"),  # type: ignore[arg-type]
        (lambda: MeasuredDelays(3), "Invalid file: 3"),  # type: ignore[arg-type]
        (lambda: MeasuredDurations([]), "no measured jobs of worker 0"),
        (lambda: MeasuredDurations([[1.0], []]), "no measured jobs of worker 1"),
        (lambda: MeasuredDurations([[-1.0]]), "Invalid seconds value: -1"),
        (lambda: MeasuredDurations.of(lc.delays.Constant(2).trace(5)), "no arrivals with a clock"),
        (lambda: WithCosts(lc.delays.Constant(2)), "expected a delay model with a clock"),  # type: ignore[arg-type]
        (lambda: WithCosts(WorkerSpeeds([1.0]), network=-1.0), "Invalid network value: -1"),
        (lambda: TimeVarying(WorkerSpeeds([1.0]), 2.0), "Invalid factor: 2.0"),  # type: ignore[arg-type]
        (lambda: TimeVarying(WorkerSpeeds([1.0]), lambda w, t: 0.0).trace(2), "Invalid factor value: 0"),
    ]
    for make, words in cases:
        with pytest.raises((ValueError, TypeError), match=words):
            make()
    one = tmp_path / "c.csv"
    one.write_text("0\n0\n")
    with pytest.raises(ValueError, match=r"c\.csv has 2 arrivals"):
        MeasuredDelays(one).trace(3)
    with pytest.raises(ValueError, match="no columns 'worker' and 'seconds'"):
        MeasuredDurations.read(one)
