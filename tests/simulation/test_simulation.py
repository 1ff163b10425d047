"""Runs: the same bits every time, from a file, and after an interrupt; what the methods do on known problems."""

from __future__ import annotations

import hashlib
import json
import math
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import latecomer as lc
from delay_models import MODELS
from latecomer.core.state import NON_FINITE_LIMIT
from latecomer.problems import Digits, Quadratic
from support import KINDS, NAMES, OPTIONS, TWINS


def bits(run: lc.Run) -> list[bytes]:
    tensors = [*run.state.values(), *run.output.values()]
    return [t.numpy().tobytes() for t in tensors] + [run.history.write_csv().encode(), run.trace.digest.encode()]


@pytest.mark.parametrize("name", [n for n in NAMES if lc.optim.METHODS[n].policy is None])
def test_a_run_is_its_twin_on_the_same_schedule(name: str) -> None:
    """Closed loop: gradients at the stale iterates, against the textbook sums."""
    trace = lc.delays.DataDependent(workers=4, slow_share=0.2).trace(steps=40, seed=2)
    problem = Quadratic(dimensions=3)
    options = {**OPTIONS[name], **({"workers": 4} if name == "delay-adaptive" else {})}
    twin = TWINS[name](torch.full((3,), 5.0), **options)
    twin.at_query, points = True, getattr(twin, "queries", twin.iterates)  # workers may get another point
    columns = (trace.sample, trace.group, trace.version, trace.delay, trace.worker)
    for ticket_sample, group, version, delay, worker in zip(*(column.tolist() for column in columns), strict=True):
        batch, twin.worker = problem.batch(ticket_sample, group), worker
        g, before = torch.empty(3, dtype=torch.float64), torch.empty(3, dtype=torch.float64)
        problem.gradient(points[version - 1], batch, g)
        problem.gradient(twin.iterates[max(0, version - 2)], batch, before)
        twin.step(g, delay=delay, previous=before)
    x = lc.simulate(problem, name, trace, **options).state["x"]
    torch.testing.assert_close(x, twin.iterates[-1], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", KINDS)
def test_the_same_run_twice_and_from_a_file(name: str, tmp_path: Path) -> None:
    trace = lc.delays.DataDependent(workers=4, slow_share=0.2).trace(steps=60, seed=2)
    loaded = lc.Trace.load(trace.save(tmp_path / "t.parquet"))
    problem = Digits(network="mlp")
    runs = [lc.simulate(problem, name, t, seed=1, **OPTIONS[name]) for t in (trace, trace, loaded)]
    assert bits(runs[0]) == bits(runs[1]) == bits(runs[2])
    other = lc.simulate(problem, name, trace, seed=2, **OPTIONS[name])
    assert bits(other) != bits(runs[0])
    # What the server recorded is the schedule it was given.
    for column in ("ticket", "worker", "seen", "version", "arrival", "sample"):
        assert np.array_equal(runs[0].trace.columns[column], trace.columns[column])
    assert lc.simulate(problem, name, runs[0].trace, seed=1, **OPTIONS[name]).history.equals(runs[0].history)


@pytest.mark.parametrize("model", MODELS)
def test_every_delay_model_runs(model: str) -> None:
    trace = MODELS[model]().trace(steps=50, seed=1)
    shares = (0.5, 0.3, 0.2) if model == "three-groups" else (0.75, 0.25)
    problem = Quadratic(dimensions=2, centres=(0.0, 1.0, 2.0)[: len(shares)], shares=shares)
    run = lc.simulate(problem, "ordered-momentum", trace, lr=0.1)
    assert run.final["update"] == 50
    assert run.final["loss"] < run.history["loss"][0]
    assert (run.final["time"] is None) == (trace.header.clock == "none")


@pytest.mark.parametrize("name", KINDS)
def test_a_run_resumed_from_any_checkpoint_has_the_same_bits(name: str, tmp_path: Path) -> None:
    trace = lc.delays.SampleCost(workers=4, cost=(1.0, 6.0), slow_share=0.3).trace(steps=30, seed=2)
    problem, options = Digits(network="mlp"), {**OPTIONS[name], "output": "uniform", "seed": 1}
    straight = lc.simulate(problem, name, trace, evaluate_every=7, **options)

    class StopError(Exception):
        pass

    for stop in (1, 6, 7, 13, 29):
        path = tmp_path / f"{stop}.ckpt"

        def watch(server: lc.Server, stop: int = stop) -> None:
            if server.arrivals == stop + 1:
                raise StopError  # dies without saving: the last checkpoint counts

        with pytest.raises(StopError):
            lc.simulate(
                problem,
                name,
                trace,
                evaluate_every=7,
                checkpoint=path,
                checkpoint_every=1,
                callbacks=[lc.training.OnArrival(watch)],
                **options,
            )
        resumed = lc.simulate(problem, name, trace, evaluate_every=7, checkpoint=path, **options)
        assert bits(resumed) == bits(straight)
        done = lc.simulate(problem, name, trace, evaluate_every=7, checkpoint=path, **options)
        assert bits(done) == bits(straight)


SCRIPT = textwrap.dedent(
    """
    import sys
    import time
    import latecomer as lc
    trace = lc.delays.DataDependent(workers=4, slow_share=0.2).trace(steps=1500, seed=2)
    calls = []
    def watch(server):
        if server.arrivals >= 120 and not calls:
            calls.append(print("going", flush=True))
        time.sleep(0.01 * (bool(calls) and len(sys.argv) > 2))  # the process waits to be killed
    options = dict(lr=0.01, checkpoint=sys.argv[1], checkpoint_every=50, callbacks=[lc.training.OnArrival(watch)])
    run = lc.simulate(lc.problems.quadratic(), "catch-up", trace, **options)
    print(run.state["x"].tolist())
    """
)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_killed_and_resumed_gives_the_same_bits(sign: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    trace = lc.delays.DataDependent(workers=4, slow_share=0.2).trace(steps=1500, seed=2)
    straight = lc.simulate(lc.problems.quadratic(), "catch-up", trace, lr=0.01).state["x"].tolist()
    victim = subprocess.Popen(
        [*command, str(tmp_path / "b"), "slowly"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == "going\n"
    victim.send_signal(sign)
    victim.communicate()
    assert victim.returncode != 0
    assert (tmp_path / "b").exists()
    resumed = subprocess.run([*command, str(tmp_path / "b")], capture_output=True, text=True, check=True).stdout
    assert resumed.splitlines()[-1] == str(straight)
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".part")] == ["b"]


def test_checkpoints_of_other_runs_and_broken_ones_are_refused(tmp_path: Path) -> None:
    trace = lc.delays.Constant(workers=2).trace(steps=20, seed=0)
    path = tmp_path / "run"

    def go(**changes: Any) -> lc.Run:
        arguments: dict[str, Any] = {"method": "momentum", "trace": trace, "lr": 0.1, **changes}
        return lc.simulate(Quadratic(), arguments.pop("method"), arguments.pop("trace"), checkpoint=path, **arguments)

    go()
    for change in ({"lr": 0.2}, {"method": "catch-up"}, {"seed": 3}, {"trace": trace.head(10)}):
        with pytest.raises(ValueError, match="has checkpoints of another run"):
            go(**change)
    straight = lc.simulate(Quadratic(), "momentum", trace, lr=0.1)
    *_, newest = sorted(path.glob("arrival-*.json"))
    whole = newest.read_bytes()
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2]):
        newest.write_bytes(damaged)
        with pytest.warns(UserWarning, match="is damaged .*: trying the one before it"):
            assert bits(go()) == bits(straight)
    for file in path.glob("arrival-*.json"):
        file.write_bytes(b"nonsense")
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(ValueError, match="remove them to start"):
        go()


def test_a_checkpoint_of_another_version_gets_one_sentence(tmp_path: Path) -> None:
    trace = lc.delays.Constant(workers=2).trace(steps=20, seed=0)
    lc.simulate(Quadratic(), "momentum", trace, lr=0.1, checkpoint=tmp_path)
    for file in tmp_path.glob("arrival-*.json"):
        outer = json.loads(file.read_text())
        outer |= {
            "format": 3,
            "sha256": outer["sha256"] | {"state": hashlib.sha256(outer["state"].encode()).hexdigest()},
        }
        file.write_text(json.dumps(outer))
    with pytest.raises(ValueError, match=r"written by another version .* finish the run with that version, or choose"):
        lc.simulate(Quadratic(), "momentum", trace, lr=0.1, checkpoint=tmp_path)


def test_a_diverged_run_ends_cleanly_and_records_when() -> None:
    trace = lc.delays.Constant(workers=3).trace(steps=5000, seed=0)
    run = lc.simulate(Quadratic(), "async-sgd", trace, lr=50.0)
    assert run.diverged_at is not None
    assert run.diverged_at < 1000
    assert run.history["update"][-1] == run.diverged_at
    assert len(run.trace) == run.diverged_at


class Broken(Quadratic):
    """Gradients are NaN although the parameters are fine."""

    def gradient(self, x: torch.Tensor, batch: Any, out: torch.Tensor) -> bool:
        out.fill_(math.nan)
        return True


def test_a_run_that_only_gets_nan_is_given_up() -> None:
    trace = lc.delays.Constant(workers=3).trace(steps=5000, seed=0)
    run = lc.simulate(Broken(), "async-sgd", trace, lr=0.1)
    assert run.diverged_at == run.non_finite == NON_FINITE_LIMIT
    assert torch.equal(run.state["x"], torch.full((10,), 5.0, dtype=torch.float64))


def test_uniform_output_is_one_of_the_iterates() -> None:
    trace = lc.delays.Constant(workers=3).trace(steps=50, seed=0)
    seen: list[torch.Tensor] = [torch.full((10,), 5.0, dtype=torch.float64)]
    watch = lc.training.OnArrival(lambda server: seen.append(server._params[0].detach().clone()))
    run = lc.simulate(Quadratic(), "ordered-momentum", trace, lr=0.1, output="uniform", callbacks=[watch])
    assert any(torch.equal(run.output["x"], x) for x in seen[:-1])
    assert torch.equal(run.state["x"], seen[-1])


def test_evaluation_schedule_and_progress() -> None:
    trace = lc.delays.Constant(workers=3).trace(steps=25, seed=0)
    calls: list[tuple[int, int]] = []
    options = {"progress": lambda done, total: calls.append((done, total))}
    run = lc.simulate(Quadratic(), "momentum", trace, lr=0.1, evaluate_every=10, **options)
    assert run.history["update"].to_list() == [0, 10, 20, 25]
    assert calls == [(0, 25), (10, 25), (20, 25), (25, 25)]


def test_what_is_no_problem_trace_policy_or_function_gets_a_sentence() -> None:
    trace = lc.delays.Constant(3).trace(5)

    class NoModel(Own):
        def model(self, seed: int) -> Any:
            return None

    class NoLoss(Own):
        def loss(self, model: torch.nn.Module, batch: Any) -> Any:
            return 1.0

    class Vector(Own):
        def loss(self, model: torch.nn.Module, batch: Any) -> Any:
            return model(batch)

        def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
            return {"loss": 0.0}

    class NoMetrics(Own):
        def evaluate(self, model: torch.nn.Module) -> Any:
            return 3

    class Taken(Own):
        def evaluate(self, model: torch.nn.Module) -> Any:
            return {"update": 1.0}

    for arguments, kind, message in [
        ((Quadratic(), "momentum", "run.parquet"), TypeError, "Invalid trace: str"),
        (("digits", "momentum", trace), TypeError, "Invalid problem: str"),
        ((Quadratic, "momentum", trace), TypeError, "Invalid problem: a class, not an instance"),
        ((NoModel(), "momentum", trace), TypeError, "Invalid model: NoneType"),
        (
            (NoLoss(), "momentum", trace),
            TypeError,
            "The loss must be one number that depends on the .*, got float",
        ),
        ((Vector(), "momentum", trace), TypeError, r"one number, got a tensor of shape \(8, 1\): take its mean"),
        ((NoMetrics(), "momentum", trace), TypeError, "evaluate must return a dict of names and numbers, got 3"),
        ((Taken(), "momentum", trace), ValueError, "may not return a metric named 'update'"),
    ]:
        with pytest.raises(kind, match=message):
            lc.simulate(*arguments, lr=0.1)
    for option, message in [
        ({"policy": 7}, "Invalid policy: 7"),
        ({"scheduler": 3}, "Invalid scheduler: 3"),
        ({"callbacks": [3]}, "Invalid callbacks: 3"),
        ({"progress": 3}, "Invalid progress: 3"),
    ]:
        with pytest.raises(TypeError, match=message):
            lc.simulate(Quadratic(), "momentum", trace, lr=0.1, **option)


def test_a_checkpoint_is_a_folder_and_it_is_made(tmp_path: Path) -> None:
    trace = lc.delays.Constant(3).trace(5)
    file = tmp_path / "run.ckpt"
    file.write_text("a checkpoint of version 0.1 was a file")
    for bad in ("", file):
        with pytest.raises(ValueError, match=r"Invalid checkpoint: .* \(expected .*folder\)"):
            lc.simulate(Quadratic(), "momentum", trace, lr=0.1, checkpoint=bad)
    lc.simulate(Quadratic(), "momentum", trace, lr=0.1, checkpoint=tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").glob("arrival-*.json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "adam"}, "Unknown method 'adam'"),
        ({"lr": -1}, "Invalid lr value: -1"),
        ({"beta": 2.0}, "Invalid beta value: 2"),
        ({"seed": -1}, "Invalid seed value: -1"),
        ({"evaluate_every": -3}, "Invalid evaluate_every value: -3"),
        ({"problem": Quadratic(centres=(0.0,), shares=(1.0,))}, "The trace has 2 groups, the problem 1"),
        ({"policy": type("P", (lc.policy.Async,), {"name": "other"})()}, "made with policy 'async', not 'other'"),
    ],
)
def test_bad_runs(arguments: dict[str, Any], message: str) -> None:
    trace = lc.delays.DataDependent(3, 0.3).trace(steps=20, seed=0)
    given: dict[str, Any] = {"problem": Quadratic(), "method": "momentum", "lr": 0.1, **arguments}
    with pytest.raises(ValueError, match=message):
        lc.simulate(given.pop("problem"), given.pop("method"), trace, **given)


def test_a_trace_whose_samples_are_not_its_seeds_is_refused() -> None:
    trace = lc.delays.Constant(workers=2).trace(steps=20, seed=0)
    with pytest.raises(
        ValueError, match=r"Row 0 breaks the rule .the sample is the one of the trace's seed and the ticket"
    ):
        lc.Trace(trace.header, {**trace.columns, "sample": trace.columns["sample"] + np.uint64(1)})


# ---- what the methods do: the facts of the design -------------------------------------------------------------------


def last_half_excess(name: str, trace: lc.Trace, problem: Quadratic, **options: Any) -> float:
    mean = torch.zeros(10, dtype=torch.float64)
    half = len(trace) // 2

    def watch(server: lc.Server) -> None:
        if server.arrivals > half:
            mean.add_(server.optimizer.param_groups[0]["params"][0].detach(), alpha=1 / (len(trace) - half))

    lc.simulate(problem, name, trace, callbacks=[lc.training.OnArrival(watch)], evaluate_every=len(trace), **options)
    return problem.excess(mean)


EXCESS = [
    ("async-sgd", {}, 0, 5e-3),
    ("momentum", {"beta": 0.1}, 0, 5e-3),
    ("mu2", {"beta": 0.1}, 0, 5e-3),
    ("catch-up", {"beta": 0.1}, 0, 5e-3),
    ("balanced-catch-up", {"beta": 0.1}, 0, 5e-3),
    ("delay-adaptive", {}, 4e-2, 8e-2),
    ("delay-filtered", {"threshold": 14}, 4e-2, 8e-2),
    ("ordered-momentum", {"beta": 0.1}, 0.1, 0.16),
    ("ordered-mu2", {"beta": 0.1}, 0.1, 0.16),
    ("ordered-momentum", {"beta": 0.01}, 1e-3, 1e-2),
    ("ordered-mu2-anytime", {"lr": 1 / 40_000}, 0, 5e-3),
]


@pytest.mark.parametrize(("name", "options", "low", "high"), EXCESS, ids=[f"{e[0]}-{e[1]}" for e in EXCESS])
def test_bias_on_the_two_centre_quadratic(name: str, options: dict[str, Any], low: float, high: float) -> None:
    """Excess loss against the optimum at the realised share: the ranking of the design."""
    trace = lc.delays.DataDependent(workers=7, slow_share=0.1, exact=False).trace(steps=10_000, seed=4)
    share = float((trace.group == 1).mean())
    problem = Quadratic(shares=(1 - share, share))
    assert low <= last_half_excess(name, trace, problem, **{"lr": 0.006, **options}) < high


def test_counter_example_through_worker_speeds_keeps_the_bound() -> None:
    """The same durations, but by worker: one in ten takes 100. Nothing depends on the data, and the bound holds."""
    trace = lc.delays.WorkerSpeeds([1.0] * 45 + [100.0] * 6, slow_share=0.1).trace(8000, seed=0)
    problem = Quadratic(1, curvature=(1.0, 1.0), centres=(0.1, -0.9), shares=(0.9, 0.1), start=0.1, noise=0.0)
    run = lc.simulate(problem, "ordered-momentum", trace, lr=1 / (32 * math.sqrt(2) * 50), beta=1 / 800)
    assert run.final["squared_gradient"] < 0.01


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("network", ["cnn", "mlp"])
def test_every_method_learns_digits(name: str, network: str) -> None:
    trace = lc.delays.DataDependent(workers=4, slow_share=0.1).trace(steps=400, seed=0)
    options = {**OPTIONS[name], "lr": {"ordered-mu2-anytime": 2e-4, "mu2": 0.05, "ordered-mu2": 0.05}.get(name, 0.05)}
    run = lc.simulate(Digits(network=network, cubic=False), name, trace, **options)
    assert run.diverged_at is None
    assert run.final["f1"] > run.history["f1"][0] + 0.25


def test_threads_do_not_matter_for_interrupts() -> None:
    """simulate may run outside the main thread, where no signal handler can be set."""
    import threading

    trace = lc.delays.Constant(workers=2).trace(steps=20, seed=0)
    runs: list[lc.Run] = []
    thread = threading.Thread(target=lambda: runs.append(lc.simulate(Quadratic(), "momentum", trace, lr=0.1)))
    thread.start()
    thread.join()
    assert bits(runs[0]) == bits(lc.simulate(Quadratic(), "momentum", trace, lr=0.1))


# ---- models and problems of a user's own ----------------------------------------------------------------------------


class Own(lc.problems.Problem):
    """A user's problem, with dropout, batch normalisation and a careless zero_grad."""

    name, groups = "own", 2

    def __init__(self, careless: bool = False) -> None:
        self.careless = careless

    def model(self, seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)]
        return torch.nn.Sequential(*layers)

    def batch(self, sample: int, group: int) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng(sample).normal(size=(8, 3))).float() + group

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if self.careless:
            model.zero_grad()
        return torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        return {"loss": float(self.loss(model, self.batch(1, 0)))}


@pytest.mark.parametrize("method", ["catch-up", "ordered-mu2"])
def test_dropout_and_buffers_follow_the_ticket_and_the_checkpoint(method: str, tmp_path: Path) -> None:
    trace = lc.delays.DataDependent(3, 0.3).trace(steps=40, seed=0)
    torch.manual_seed(1)
    straight = lc.simulate(Own(), method, trace, lr=0.02)
    torch.manual_seed(2)
    assert bits(lc.simulate(Own(), method, trace, lr=0.02)) == bits(straight)

    def stop(server: lc.Server) -> None:
        if server.arrivals == 21:
            raise RuntimeError("killed")

    path = tmp_path / "own.ckpt"
    with pytest.raises(RuntimeError, match="killed"):
        lc.simulate(
            Own(), method, trace, lr=0.02, checkpoint=path, checkpoint_every=5, callbacks=[lc.training.OnArrival(stop)]
        )
    assert bits(lc.simulate(Own(), method, trace, lr=0.02, checkpoint=path)) == bits(straight)
    with pytest.raises(ValueError, match="checkpoints of another run"):
        lc.simulate(Own(careless=True), method, trace, lr=0.02, checkpoint=path)


def test_a_broken_forward_pass_leaves_running_averages_alone() -> None:
    class Sometimes(Own):
        def batch(self, sample: int, group: int) -> torch.Tensor:
            value = super().batch(sample, group)
            return value * math.nan if sample % 5 == 0 else value

    run = lc.simulate(Sometimes(), "momentum", lc.delays.Constant(2, 0.3).trace(steps=60, seed=0), lr=0.02)
    assert run.non_finite > 3
    assert run.diverged_at is None
    assert all(torch.isfinite(value).all() for value in run.state.values())


def test_both_points_of_a_sample_see_the_same_dropout() -> None:
    """At lr 0 the points are equal, so the contribution g - (1-beta)g' is beta·g for every ticket."""
    trace = lc.delays.Constant(2, 0.3).trace(steps=10, seed=0)
    from latecomer.core.gradient import Contributor
    from latecomer.simulation import Simulation

    going = Simulation(Own(), "ordered-mu2", trace, {"lr": 0.0})
    alone = Contributor(Own(), going.state.flat, points=1)
    g = torch.empty_like(going._gradient)
    for t in range(6):
        going.advance()
        alone([going.state.flat.x], g, int(trace.ticket[t]), int(trace.sample[t]), int(trace.group[t]), 1)
        assert torch.equal(going._gradient, g.add(g, alpha=0.1 - 1.0))


def test_a_problem_that_calls_zero_grad_still_trains() -> None:
    trace = lc.delays.DataDependent(3, 0.3).trace(steps=40, seed=0)
    careful, careless = (lc.simulate(Own(flag), "momentum", trace, lr=0.02) for flag in (False, True))
    assert bits(careful)[:-2] == bits(careless)[:-2]


def test_simulating_leaves_torchs_random_stream_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    lc.simulate(Digits(network="mlp"), "momentum", lc.delays.Constant(2).trace(5, seed=0), lr=0.1)
    assert torch.equal(torch.rand(2), expected)


def test_nan_is_given_up_on_also_where_other_arrivals_are_dropped() -> None:
    trace = lc.delays.DataDependent(7, 0.1).trace(steps=2000, seed=0)
    run = lc.simulate(Broken(), "delay-filtered", trace, lr=0.1, threshold=7)
    assert run.non_finite == NON_FINITE_LIMIT
    assert run.diverged_at is not None


class Hopeless(Quadratic):
    """Nothing to see from the start."""

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        return {"loss": math.nan}


def test_a_run_that_is_lost_from_the_start_ends_cleanly() -> None:
    trace = lc.delays.Constant(3).trace(steps=20, seed=0)
    run = lc.simulate(Hopeless(), "momentum", trace, lr=0.1)
    assert (run.diverged_at, run.final["update"], len(run.trace)) == (0, 0, 0)


@pytest.mark.parametrize("option", ["evaluate_every", "checkpoint_every"])
def test_zero_is_no_schedule(option: str) -> None:
    with pytest.raises(ValueError, match=f"Invalid {option} value: 0"):
        lc.simulate(Quadratic(), "momentum", lc.delays.Constant(3).trace(5), lr=0.1, **{option: 0})
