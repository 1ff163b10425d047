"""`latecomer plan`: predictions that can be computed by hand, timed jobs, recorded runs, and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

import latecomer as lc
from latecomer.cli.main import main
from latecomer.comparison import work_shares
from latecomer.planning import JobTimes, Network, predict_policy, predict_rounds, recorded_times, time_jobs, timing
from latecomer.planning.plan import _advice, _full, _interval
from latecomer.planning.predict import capacity
from latecomer.policy import POLICIES, RingmasterStop
from latecomer.training import loop

SPEEDS = (1.0, 2.0, 4.0)


def test_constant_durations_give_the_sum_of_the_rates_and_the_slowest() -> None:
    times = JobTimes([[0.5]], speeds=SPEEDS, samples=[10])
    free = predict_policy(times, workers=3, jobs=7000)
    assert free.jobs == free.updates == pytest.approx(sum(1 / (0.5 * speed) for speed in SPEEDS), rel=2e-3)
    assert (free.idle, free.wasted) == (pytest.approx(0.0, abs=1e-9), 0.0)
    assert free.delay == pytest.approx(2.0, abs=0.01)  # others in flight
    for waits in (predict_rounds(times, workers=3), predict_policy(times, 3, "synchronous", jobs=3000)):
        assert waits.jobs == pytest.approx(3 / 2.0)  # three jobs per slowest job of two seconds
        assert waits.updates == pytest.approx(1 / 2.0)
        assert waits.idle == pytest.approx(1 - (0.5 + 1.0 + 2.0) / 6.0)
        assert waits.delay == 0.0


def test_a_round_lasts_as_long_as_its_slowest_job_unless_it_is_bucketed() -> None:
    times = JobTimes([[1.0], [9.0]], shares=[0.75, 0.25])
    mixed = predict_rounds(times, workers=4)
    slow = 1 - 0.75**4
    assert mixed.updates == pytest.approx(1 / (1 + 8 * slow))
    assert mixed.idle == pytest.approx(1 - 3.0 / (1 + 8 * slow))
    bucketed = predict_rounds(times, workers=4, buckets=True)
    assert bucketed.updates == pytest.approx(1 / 3.0)
    assert bucketed.idle == pytest.approx(0.0, abs=1e-9)
    free = predict_policy(times, workers=4, jobs=20_000)
    assert free.jobs == pytest.approx(4 / 3.0, rel=0.02)


@pytest.mark.parametrize("speeds", [(1.0,), (1.0, 2.0, 0.5)])
def test_the_expected_slowest_job_is_that_of_many_drawn_rounds(speeds: tuple[float, ...]) -> None:
    generator, workers = np.random.default_rng(0), 5
    times = JobTimes([generator.uniform(1, 2, 7), generator.uniform(3, 9, 4)], shares=[0.8, 0.2], speeds=speeds)
    durations, chances = times.distribution
    drawn = generator.choice(durations, size=(100_000, workers), p=chances) * np.resize(speeds, workers)
    assert predict_rounds(times, workers).updates == pytest.approx(1 / drawn.max(axis=1).mean(), rel=0.01)
    assert sum(durations * chances) == pytest.approx(times.mean)


@pytest.mark.parametrize(("share", "slow"), [(0.1, 10.0), (0.03, 30.0), (0.01, 100.0)])
@pytest.mark.parametrize("workers", [4, 64])
def test_rare_slow_jobs_are_neither_missed_nor_doubled(share: float, slow: float, workers: int) -> None:
    times = JobTimes([[1.0], [slow]], shares=[1 - share, share], counted=2000)
    exact = workers / times.mean
    assert predict_policy(times, workers, seed=3).jobs == pytest.approx(exact, rel=0.05)
    low, high = _interval(times, workers, Network(), seed=0).rounds
    assert 0.5 < low < 1.0 < high < 2.0  # factors of the prediction: the counted shares are not certain
    for found in _interval(replace(times, counted=0), workers, Network(), seed=0):
        assert found == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("workers", [2, 8, 100])
def test_a_cancelled_job_is_neither_sent_nor_handled(workers: int) -> None:
    """One worker takes 1 s, the others 100 s, and every update cancels theirs: an update per 1.3 s by hand."""
    times = JobTimes([[1.0]], speeds=(1.0, *[100.0] * (workers - 1)), server=0.3)
    found = predict_policy(times, workers, RingmasterStop(workers, 1), jobs=500)
    assert found.updates == pytest.approx(1 / 1.3)
    thrown = 1.3 * (workers - 1)  # per update: the others never pause, and the first one waits for the server
    assert found.wasted == pytest.approx(thrown / (1 + thrown), rel=5e-3)
    assert found.idle == pytest.approx(0.3 / (1.3 * workers), rel=5e-3)


@pytest.mark.parametrize("policy", ["async", "rennala", "ringmaster", "ringmaster-stop", "fedbuff"])
def test_wasted_and_idle_mean_what_they_mean_in_a_comparison(policy: str) -> None:
    found = predict_policy(JobTimes([[1.0], [9.0]], shares=[0.75, 0.25]), 8, policy, jobs=4000)
    _, idle, wasted = work_shares(lc.delays.SampleCost(8, (1.0, 9.0), 0.25).trace(4000, policy=policy))
    assert found.wasted == pytest.approx(wasted, rel=0.1)
    assert found.idle == pytest.approx(idle, abs=0.01)


def test_the_server_and_its_links_serve_one_job_at_a_time() -> None:
    compute = JobTimes([[1.0]], size=10**9)  # 8 Gbit: one second per copy at 8 Gbit/s
    alone = predict_policy(compute, 1, network=Network(8.0), jobs=100)
    assert alone.jobs == pytest.approx(1 / 3)  # down, compute, up
    assert alone.idle == pytest.approx(2 / 3)
    many = predict_policy(compute, 16, network=Network(8.0), jobs=800)
    assert many.jobs == pytest.approx(1.0, rel=0.02)  # the link
    busy = predict_policy(JobTimes([[1.0]], server=0.5), 16, jobs=800)
    assert busy.jobs == pytest.approx(2.0, rel=0.02)  # the server
    assert busy.delay == pytest.approx(15.0, rel=0.02)
    ring = predict_rounds(compute, 4, Network(8.0))
    assert ring.updates == pytest.approx(1 / (1 + 2 * 3 / 4))
    rounds = predict_rounds(JobTimes([[1.0]], server=0.5), 4)
    assert (rounds.updates, rounds.idle) == (pytest.approx(1 / 1.5), pytest.approx(1 / 3))
    two = predict_policy(JobTimes([[1.0]], size=10**9, points=2), 1, network=Network(8.0), jobs=100)
    assert two.jobs == pytest.approx(1 / 4)  # two points go down


def test_a_latency_delays_messages_and_occupies_no_link() -> None:
    slow = Network(latency=500_000)
    times = JobTimes([[1.0]], server=0.1)
    alone = predict_policy(times, 1, network=slow, jobs=100)
    assert (alone.jobs, alone.idle) == (pytest.approx(1 / 2.1), pytest.approx(1.1 / 2.1))
    many = predict_policy(times, 100, network=slow, jobs=8000)
    assert many.jobs == pytest.approx(10.0, rel=0.02)  # the server: messages travel side by side
    assert capacity(times, 2, slow) == pytest.approx(2 / 2.1)
    for workers, messages in ((1, 0), (2, 2), (4, 4), (6, 6), (64, 12)):
        assert predict_rounds(times, workers, slow).updates == pytest.approx(1 / (1.1 + 0.5 * messages))
    both = predict_rounds(JobTimes([[1.0]], size=10**9), 4, Network(8.0, latency=500_000))
    assert both.updates == pytest.approx(1 / (1 + 1.5 + 2))


def test_with_equal_jobs_it_says_to_stay_synchronous() -> None:
    equal = JobTimes([[0.1]])
    found = {"synchronous": predict_rounds(equal, 8), "async": predict_policy(equal, 8)}
    assert "8 workers: stay synchronous." in _advice(8, found)
    uneven = JobTimes([[0.1], [1.0]], shares=[0.9, 0.1])
    found = {"synchronous": predict_rounds(uneven, 8), "async": predict_policy(uneven, 8)}
    assert "asynchronous training processes" in _advice(8, found)
    found["synchronous, buckets"] = predict_rounds(uneven, 8, buckets=True)
    told = _advice(8, found)
    assert "8 workers: stay synchronous, but give all workers jobs of one group per round: 3." in told
    assert "If that cannot be done, asynchrony brings 3." in told
    assert "It is close" not in told
    assert "It is close: the interval of this number is 0.9" in _advice(8, found, (0.9, 1.3))
    assert "brings nothing" in _advice(1, found)
    busy = JobTimes([[0.1]], server=0.1)
    full = {"synchronous": found["synchronous"], "async": predict_policy(busy, 8)}
    what = _full(busy, Network(), full["async"].jobs)
    assert "The server is full: workers wait 88 % of the time" in _advice(8, full, is_full=what)
    large = JobTimes([[0.1]], size=10**8)
    assert _full(large, Network(8.0), predict_policy(large, 8, network=Network(8.0)).jobs) == "network of the server"
    slow = Network(latency=1e6)  # waiting for messages, the workers are idle, and nothing is full
    assert _full(equal, slow, predict_policy(equal, 8, network=slow).jobs) == ""


def test_jobs_are_timed_by_group_and_rare_groups_are_looked_for() -> None:
    class Uneven(lc.problems.Quadratic):
        def batch(self, sample, group):
            seen.append(group)
            return super().batch(sample, group)

    seen: list[int] = []
    problem = Uneven(centres=(0.0, 1.0, 2.0), shares=(0.9, 0.08, 0.02))
    times = time_jobs(problem, jobs=30)
    assert times.groups == len(set(seen[2:])) >= 2
    assert sum(map(len, times.seconds)) >= 30
    assert sum(times.shares) == pytest.approx(1.0)
    assert times.size == 80
    assert times.server > 0
    plain = time_jobs(lc.problems.quadratic(shares=(1.0, 0.0)), jobs=3, method="ordered-mu2")
    assert plain.groups == 1
    assert plain.points == 2


def test_shares_of_groups_are_those_of_many_more_batches_than_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs are timed, which may be of one group; the other group is looked for, and found."""
    monkeypatch.setattr(timing, "_LOOKING", 600.0)  # however slow the machine is, there is time to look at all batches
    task = lc.Task(
        torch.nn.Linear(1, 1), lambda model, batch: model(batch).mean(),
        batch_fn=lambda sample: torch.full((1, 1), float(sample % 4 == 0)),
        group_fn=lambda batch: int(batch.item()), groups=("usual", "rare"),
    )  # fmt: skip
    for times in (time_jobs(task, jobs=2, seed=seed) for seed in range(6)):
        assert times.shares[1] == pytest.approx(0.25, abs=0.05)
        assert times.counted == 2 + 2000  # those that are timed and those that are looked at, without the warm-up
    never = lc.Task(
        torch.nn.Linear(1, 1), lambda model, batch: model(batch).mean(), batch_fn=lambda sample: torch.zeros(1, 1),
        group_fn=lambda batch: 0, groups=("usual", "rare"),
    )  # fmt: skip
    assert time_jobs(never, jobs=2).missing == ["rare"]
    assert "No job of 'rare' was found, so the predictions leave" in lc.plan(never, workers=[2], jobs=2).caution


def test_samples_are_counted_in_the_batches() -> None:
    loss = lambda model, batch: model(batch["x"]).mean()  # noqa: E731
    task = lc.Task(torch.nn.Linear(1, 1), loss, batch_fn=lambda sample: {"n": 3, "x": torch.zeros(7, 1)}, accumulate=2)
    assert time_jobs(task, jobs=2).samples == (14,)
    assert time_jobs(lc.problems.quadratic(), jobs=2).samples == (1, 1)
    uneven = lc.Task(
        torch.nn.Linear(1, 1), lambda model, batch: model(batch).mean(), groups=("short", "long"),
        batch_fn=lambda sample: torch.zeros(10 if sample % 8 else 1000, 1), group_fn=lambda batch: int(len(batch) > 10),
    )  # fmt: skip
    times = time_jobs(uneven, jobs=10)
    assert times.samples == (10, 1000)
    assert times.samples_per_job == pytest.approx(10 + 990 / 8, rel=0.2)  # by the shares that were counted
    trace = lc.delays.SampleCost(4, (1.0, 2.0), 0.5).trace(400)
    for record, share in ((trace, 0.5), (lc.delays.WorkerSpeeds([1.0, 1.0]).trace(400), times.shares[1])):
        table = lc.plan(uneven, [2], record=record, policies={}).table
        per_job = table["samples"] / table["updates"] / pl.Series([2.0] * (table.height - 1) + [1.0])
        assert per_job.to_list() == pytest.approx([10 + 990 * share] * table.height, rel=0.2)


def test_samples_of_what_is_dropped_do_not_count() -> None:
    times = JobTimes([[1.0], [9.0]], shares=[0.75, 0.25], samples=[1, 100])
    found = predict_policy(times, 8, "rennala", jobs=4000)
    assert found.samples / found.jobs < 0.5 * times.samples_per_job  # mostly long jobs are dropped
    free = predict_policy(times, 8, jobs=4000)
    assert free.samples / free.jobs == pytest.approx(times.samples_per_job, rel=0.05)
    with pytest.raises(ValueError, match="Got 1 numbers of samples for 2 groups"):
        JobTimes([[1.0], [9.0]], shares=[0.75, 0.25], samples=[1])


def test_what_is_dropped_is_no_sample_and_waiting_is_told() -> None:
    times = JobTimes([[1.0], [9.0]], shares=[0.75, 0.25])
    free, drops, stops = (predict_policy(times, 8, name, jobs=4000) for name in ("async", "rennala", "ringmaster-stop"))
    assert drops.jobs == pytest.approx(8 * drops.updates, rel=0.01)  # batches of eight, and nothing else
    assert drops.wasted > 1 - drops.jobs / free.jobs > 0  # more time than jobs: mostly slow ones are dropped
    assert stops.jobs == stops.updates
    found = lc.plan(lc.problems.quadratic(), workers=[2], jobs=2, policies={})
    assert replace(found, times=replace(times, cpu=0.95)).caution == ""
    waited = replace(found, times=replace(times, cpu=0.4))
    assert "Jobs used the CPU for 40 % of their time" in waited.caution
    assert repr(waited).endswith(waited.caution)


def test_a_recorded_run_brings_durations_by_group_and_workers_by_speed() -> None:
    trace = lc.delays.SampleCost(3, cost=(1.0, 5.0), slow_share=0.3, speeds=SPEEDS).trace(steps=600, seed=0)
    times = recorded_times(trace)
    assert [np.mean(own) for own in times.seconds] == pytest.approx([7 / 3, 35 / 3], rel=0.02)
    assert times.speeds == pytest.approx([3 / 7, 6 / 7, 12 / 7], rel=0.02)
    assert times.shares[1] == pytest.approx(0.3, abs=0.05)
    assert times.names == ("fast", "slow")
    again = predict_policy(times, 3)
    assert again.jobs == pytest.approx(600 / trace.end[-1], rel=0.05)
    stopped = lc.delays.SampleCost(8, cost=(1.0, 10.0), slow_share=0.1).trace(200, seed=0, policy="ringmaster-stop")
    with pytest.raises(ValueError, match="jobs of the record were cancelled, mostly slow ones"):
        recorded_times(stopped)
    with pytest.raises(ValueError, match="Worker 1 had finished no job when the record ended"):
        recorded_times(lc.delays.WorkerSpeeds([1.0, 500.0]).trace(steps=60))
    with pytest.raises(ValueError, match="The record has no arrivals with a clock"):
        recorded_times(lc.delays.Uniform(workers=2).trace(steps=5))


def test_seconds_are_those_to_the_number_of_samples() -> None:
    record = lc.delays.WorkerSpeeds([1.0, 1.0]).trace(steps=50)
    task = lc.problems.digits(network="mlp", batch_size=5)
    found = lc.plan(task, workers=[8], record=record, samples=12_000, policies={})
    seconds = dict(zip(found.table["scheme"], found.table["seconds"], strict=True))
    assert seconds["async"] == pytest.approx(300.0, rel=0.02)  # eight jobs of five samples per second
    assert seconds["synchronous"] == pytest.approx(300.0, rel=0.02)


def test_a_recorded_duration_ends_before_the_servers_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the server's work is added once; without it, no number of workers would ever fill the server."""
    now = [0.0]

    class Slow(lc.optim.AsyncSGD):
        def _update(self, *args, **options):
            now[0] += 1.0
            return super()._update(*args, **options)

    def loss(model, batch):
        now[0] += 0.25
        return model(batch).mean()

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    task = lc.Task(torch.nn.Linear(1, 1), loss, batch_fn=lambda sample: torch.ones(1, 1))
    trace = lc.fit(task, method=Slow, lr=0.1, workers=1, engine="inline", steps=20).trace
    times = recorded_times(trace, JobTimes([[1.0]], server=1.0))
    assert times.seconds == ((0.25,) * 20,)
    assert (trace.start[1:] - trace.end[:-1]).tolist() == [1.0] * 19
    assert predict_policy(times, 1).jobs == pytest.approx(1 / 1.25)  # as the run itself was
    assert predict_policy(times, 16).jobs == pytest.approx(1.0, rel=0.02)


def test_what_is_doubtful_about_a_record_is_said() -> None:
    model = lc.delays.SampleCost(8, (1.0, 50.0), 0.1)
    problem = lc.problems.quadratic()
    short, long = (lc.plan(problem, [2], record=model.trace(steps), policies={}) for steps in (100, 4000))
    assert short.times.mean < 4.0  # it is 5.9
    assert short.caution.startswith("The record lasts only ")
    assert "mostly slow ones, so slow jobs count too little: take the record of a longer run" in repr(short)
    assert long.times.mean == pytest.approx(5.9, rel=0.1)
    assert long.caution == ""
    few = lc.delays.WorkerSpeeds([1.0] * 8).trace(16)  # two equal jobs per worker
    assert "lasts only 2.0 times as long" in lc.plan(problem, [2], record=few, policies={}).caution
    for own in ({"network": 1.0}, {"latency": 50.0}):
        twice = lc.plan(problem, [2], record=model.trace(4000), policies={}, **own)
        assert "leave the network and its latency out unless" in twice.caution
    assert "network" not in lc.plan(problem, [2], network=1.0, jobs=2, policies={}).caution


SCRIPT = """
import torch
import latecomer as lc


def loss(model, batch):
    return model(batch).mean()


task = lc.Task(
    torch.nn.Linear(4, 1), loss, batch_fn=lambda sample: torch.ones(8 if sample % 3 else 64, 4),
    group_fn=lambda batch: int(len(batch) > 8), groups=("short", "long"),
)
endless = lc.Task(torch.nn.Linear(4, 1), lambda model, batch: loss(model, batch) * float("nan"),
                  batch_fn=lambda sample: torch.ones(8, 4))
broken = lc.Task(torch.nn.Linear(4, 1), loss, batch_fn=lambda sample: torch.ones(8, 5))
leaves = lc.Task(torch.nn.Linear(4, 1), lambda model, batch: exit(0), batch_fn=lambda sample: torch.ones(8, 4))


def late(batch):
    if len(seen) > 20:
        raise KeyError("late")
    seen.append(1)
    return 0


seen = []
later = lc.Task(torch.nn.Linear(4, 1), loss, batch_fn=lambda sample: torch.ones(8, 4), group_fn=late, groups=("a", "b"))
no_model = lc.Task(lambda: {}["none"], loss, batch_fn=lambda sample: torch.ones(8, 4))
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / f"planned_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return str(path)


def test_the_command_prints_what_it_measured_predicted_and_advises(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = tmp_path / "plan.csv"
    command = ["plan", f"{script}:task", "--workers", "2", "4", "--network", "1", "--jobs", "12"]
    command += ["--policies", "synchronous"]
    assert main([*command, "--csv", str(csv)]) == 0
    shown = capsys.readouterr().out
    assert "short: " in shown
    assert "long: " in shown
    assert "4 workers: " in shown
    table = pl.read_csv(csv)
    assert table.height == 2 * 4
    assert set(table["scheme"]) == {"synchronous", "synchronous, buckets", "async", "synchronous (one server)"}
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["advice"]) == 2
    assert all(math.isfinite(row["updates"]) for row in told["rows"])


def test_the_command_shows_few_rows_unless_asked(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", f"{script}:task", "--workers", "2", "--jobs", "2"]
    for more, shown in ([], False), (["--all-policies"], True):
        assert main([*command, *more]) == 0
        out = capsys.readouterr().out
        assert "async" in out
        assert ("rennala" in out) is shown
        assert "were timed (2): raise --jobs" in out


def test_the_command_reads_a_record(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = lc.delays.WorkerSpeeds([1.0, 1.0]).trace(steps=50).save(tmp_path / "run.parquet")
    assert main(["plan", f"{script}:task", "--record", str(record), "--workers", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["groups"] == [{"group": "all", "share": 1.0, "jobs": 50, "seconds": pytest.approx(1.0)}]
    rates = {row["scheme"]: row["updates"] for row in told["rows"]}
    assert set(POLICIES) - {"synchronous"} < set(rates)
    assert rates["async"] == pytest.approx(8.0, rel=0.02)
    other = lc.delays.SampleCost(2, cost=(1.0, 2.0, 3.0), shares=(0.5, 0.3, 0.2)).trace(20).save(tmp_path / "3.parquet")
    assert main(["plan", f"{script}:task", "--record", str(other)]) == 2
    assert "The record has 3 groups, this task 2" in capsys.readouterr().err
    rare = lc.delays.SampleCost(2, cost=(1.0, 2.0), slow_share=0.03).trace(100).save(tmp_path / "rare.parquet")
    assert main(["plan", f"{script}:task", "--record", str(rare), "--workers", "2"]) == 0
    assert "): record a longer run" in capsys.readouterr().out
    record.write_bytes(record.read_bytes()[:100])
    assert main(["plan", f"{script}:task", "--record", str(record)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workers", "0"], "Invalid workers value: 0"),
        (["--workers", "1000000000000"], "1,000,000,000,000 workers need"),
        (["--network", "0"], "Invalid network value: 0"),
        (["--network", "nan"], "Invalid network value: nan"),
        (["--latency", "-1"], "Invalid latency value: -1"),
        (["--latency", "nan"], "Invalid latency value: nan"),
        (["--network", "1e-320"], "runs beyond the largest number"),
        (["--workers", "4", "x"], "Invalid --workers value: '4', 'x'"),
        (["--jobs", "0"], "Invalid jobs value: 0"),
        (["--jobs", "1000000000"], "Invalid jobs value: 1000000000"),
        (["--samples", "-1"], "Invalid samples value: -1"),
        (["--method", "momentun"], "Unknown method 'momentun'"),
        (["--policies", "nobody"], "Unknown policy 'nobody'"),
        (["--record", "nowhere.parquet"], "nowhere.parquet"),
    ],
)
def test_bad_input_gets_a_sentence(
    words: list[str], sentence: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{script}:task", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_task_that_raises_and_one_that_is_none_get_a_sentence(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{script}:broken"]) == 2
    assert "Job 0 of the task raised RuntimeError" in capsys.readouterr().err
    for name, words in (
        ("leaves", "Job 0 of the task raised SystemExit: 0"),
        ("later", "of the task raised KeyError: 'late'"),
        ("no_model", "KeyError: 'none'"),
    ):
        assert main(["plan", f"{script}:{name}", "--jobs", "5"]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert main(["plan", f"{script}:endless"]) == 2
    assert "No job of the task gave a finite gradient" in capsys.readouterr().err
    assert main(["plan", f"{script}:nothing"]) == 2
    assert "has no 'nothing'" in capsys.readouterr().err
    with pytest.raises(TypeError, match="Invalid task: int"):
        lc.plan(3)  # type: ignore[arg-type]
    seen: list[tuple[int, int]] = []
    lc.plan(lc.problems.quadratic(), workers=[1, 2], jobs=3, policies={}, on_progress=lambda *now: seen.append(now))
    assert (seen[-1], len(set(seen))) == ((5, 5), 5)  # three jobs, async with one worker and with two
    with pytest.raises(ValueError, match="Invalid workers: none"):
        lc.plan(lc.problems.quadratic(), workers=[])
    for given, words in (
        ({"workers": 4}, r"^Invalid workers value: 4 \(expected a list of numbers, such as \[4, 8, 16\]\)$"),
        ({"policies": ["ringmaster"]}, r"^Invalid policies value: \['ringmaster'\] \(expected a dict of policies by"),
        ({"policies": {1: "async"}}, "^Invalid name of a policy: 1"),
        ({"policies": {"async": "ringmaster"}}, "^The policy 'ringmaster' is called 'async', .* another name$"),
        ({"policies": {"rennala": "synchronous"}}, "^The policy 'synchronous' is called 'rennala'"),
        ({"policies": {"synchronous, buckets": "async"}}, "^The policy 'async' is called 'synchronous, buckets'"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            lc.plan(lc.problems.quadratic(), **{"workers": [2], "jobs": 2, **given})
    own = {"async": lc.policy.Async, "tight": lc.policy.Ringmaster(2, R=1)}
    rows = lc.plan(lc.problems.quadratic(), workers=[2], jobs=2, policies=own).table["scheme"]
    assert set(rows) >= {"async", "tight"}
    for wrong, words in (([], "at least one duration"), ([[]], "at least one duration"), ([[-1.0]], "duration")):
        with pytest.raises(ValueError, match=words):
            JobTimes(wrong)
