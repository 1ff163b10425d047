"""Measured values stay under what is proved; the published bound is broken; estimates meet known constants."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch

import latecomer as lc
from latecomer import theory
from latecomer._util.seeds import sample_seeds
from latecomer.cli.main import main
from studies.theory import jobs
from studies.theory.__main__ import main as study
from studies.theory.adversary import Adversary, measure, ratio


def test_the_counter_example_grows_with_m_and_stays_under_what_is_proved() -> None:
    ratios = []
    for workers in (11, 21, 31):
        example = theory.CounterExample(workers)
        measured = example.measure("ordered-momentum")
        assert measured <= example.promised.repaired
        independent = example.measure("ordered-momentum", dependent=False)
        assert independent <= 0.1 * example.promised.bound
        assert example.measure("catch-up") <= 0.1 * example.promised.bound
        ratios.append(measured / example.promised.bound)
    assert ratios[0] < ratios[1] < ratios[2]
    assert ratios[2] > 2 * ratios[0]


def test_counter_example_to_theorem_1_at_101_workers_breaks_the_bound() -> None:
    """Within all its assumptions the measured value is above what the theorem promises."""
    example = theory.CounterExample(101)
    assert example.steps == 128_000
    assert example.measure("ordered-momentum") / example.promised.bound == pytest.approx(1.22, abs=0.15)


def test_selection_is_the_largest_part_of_the_error_and_vanishes_without_dependence() -> None:
    example = theory.CounterExample(21)
    p = example.promised
    parts = {}
    for dependent in (True, False):
        rows = theory.diagnose(example.problem, example.trace(dependent=dependent), lr=p.lr, beta=p.beta)
        assert rows["residual"].max() < 1e-12
        assert (rows["delay_bias"] <= rows["delay_limit"] + 1e-15).all()
        assert rows["in_flight"].max() <= 20
        parts[dependent] = rows.mean().row(0, named=True)
    assert parts[True]["selection"] > 3 * parts[False]["selection"]
    assert parts[True]["selection"] > parts[True]["delay_bias"]
    # Under catch-up the same schedule leaves x near plain SGD in the order of starting.
    rows = theory.diagnose(example.problem, example.trace(), lr=p.lr, beta=p.beta, method="catch-up")
    assert rows["drift"].mean() < 0.05


def test_diagnostics_by_sampling_agree_with_the_formula() -> None:
    class Blind(lc.problems.Quadratic):
        def expected_gradient(self, x: torch.Tensor, out: torch.Tensor) -> bool:
            return False

    trace = lc.delays.DataDependent(4, 0.1).trace(steps=60, seed=0)
    exact = theory.diagnose(lc.problems.Quadratic(noise=0.0), trace, lr=0.05, beta=0.1)
    sampled = theory.diagnose(Blind(noise=0.0), trace, lr=0.05, beta=0.1, samples=4)
    for name in ("error", "selection", "gradient"):
        assert abs(exact[name] - sampled[name]).max() < 1e-9
    with pytest.raises(ValueError, match="'ordered-momentum', 'catch-up' or 'momentum'"):
        theory.diagnose(Blind(), trace, lr=0.05, beta=0.1, method="async-sgd")


def test_adversarial_schedules_stay_under_what_is_proved() -> None:
    """The worst that `latecomer theory adversary` found, and its kind."""
    schedules = [
        Adversary(11, share=0.5, hold=-3.8, age=0.001, swing=0.12, period=19.6, noise=0.48),
        Adversary(11, share=0.5, hold=0.01, age=0.005, swing=-0.8, period=5.3, noise=0.24),
        Adversary(11, share=0.1, hold=-1.0, age=0.0),
        Adversary(11, share=0.5, swing=1.0, age=0.0, period=64.0),
    ]
    for method in ("ordered-momentum", "catch-up"):
        for schedule in schedules:
            for start in (0.1, 1.0):
                assert 0 < ratio(method, schedule, steps=1500, start=start) < 0.5


def test_the_in_flight_term_is_real_at_beta_1_and_smaller_below() -> None:
    """Hold one kind of sample for half a period: async SGD gets to (lr (M-1))², far above its noise."""
    M = 51
    lr, beta = 1 / (45.25 * (M - 1)), 1 / (16 * (M - 1))
    over = {}
    for method, swing in (("async-sgd", 1.0), ("async-sgd", 0.0), ("catch-up", 1.0)):
        schedule = Adversary(M, 0.5, swing=swing, age=0.0, period=16)
        squared, _ = measure(method, schedule, 8000, lr=lr, beta=beta, start=0.0)
        over[method, swing] = squared / (lr * (M - 1)) ** 2
    assert over["async-sgd", 1.0] > 0.8
    assert over["async-sgd", 1.0] > 5 * over["async-sgd", 0.0]
    assert over["catch-up", 1.0] < 0.2 * over["async-sgd", 1.0]


def test_the_mean_gradient_vanishes_under_catch_up_and_not_under_ordering() -> None:
    example = theory.CounterExample(21)
    means = {}
    for method in ("ordered-momentum", "catch-up"):
        seen: list[float] = []
        options = {"lr": example.promised.lr, "beta": example.promised.beta, "evaluate_every": example.steps}
        watch = {"callbacks": [lc.training.OnArrival(lambda server, seen=seen: seen.append(server._params[0].item()))]}
        lc.simulate(example.problem, method, example.trace(), **options, **watch)
        means[method] = abs(sum(seen[len(seen) // 2 :]) / (len(seen) - len(seen) // 2))
    assert means["ordered-momentum"] > 5 * means["catch-up"]


def test_the_bound_of_catch_up_with_bounded_delays_holds() -> None:
    """8 delta/(lr T) + 6 L lr sigma² + 16 L² lr² (M-1) tau sigma² + 9 M sigma²/T, while samples are held back."""
    schedule = Adversary(6, share=0.5, hold=-1.0, age=0.3, noise=0.2)
    M, T, start = 6, 3000, 1.0
    tau = int(schedule.trace(T).delay.max())
    lr = 1 / (32 * (M - 1) * tau) ** 0.5
    beta = min(1.0, 32**0.5 * lr)
    squared, _ = measure("catch-up", schedule, T, lr=lr, beta=beta, start=start)
    bound = 8 * start**2 / 2 / (lr * T) + 6 * lr + 16 * lr**2 * (M - 1) * tau + 9 * M / T
    assert 0 < squared <= bound


def test_estimates_meet_known_constants() -> None:
    problem = lc.problems.Quadratic(6, (0.2, 2.0), centres=(0.0, 3.0), shares=(0.5, 0.5), noise=0.5)
    found = theory.estimate(problem, samples=200, iterations=60)
    spread = float((problem.curvature**2).sum()) * 1.5**2 + 6 * 0.25
    assert found.L.low - 1e-6 <= 2.0 <= found.L.high + 1e-6
    assert found.sigma.low * 0.9 <= spread**0.5 <= found.sigma.high * 1.1
    assert found.sigma_L.value < 1e-6  # the noise does not depend on the point
    assert found.sup_noise >= found.sigma.value
    with pytest.raises(ValueError, match=r"expected 2 that add up to 1"):
        theory.estimate(problem, shares=(0.5, 0.2))
    with pytest.raises(ValueError, match="Invalid samples value: 1"):
        theory.estimate(problem, samples=1)


def test_estimates_of_a_users_own_problem() -> None:
    class Own(lc.problems.Problem):
        name, groups = "own", 1

        def model(self, seed: int) -> torch.nn.Module:
            torch.manual_seed(seed)
            return torch.nn.Linear(2, 1, bias=False)

        def batch(self, sample: int, group: int) -> torch.Tensor:
            return torch.tensor([[2.0, 0.0], [0.0, 1.0]])[[sample % 2]]

        def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return (model(batch) ** 2).mean() / 2

        def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
            return {}

    found = theory.estimate(Own(), samples=64)
    share = float((sample_seeds(1, 64) % 2 == 0).mean())
    assert found.L.value == pytest.approx(max(4 * share, 1 - share), rel=0.01)
    assert found.sigma_L.value > 0.5


def test_rates_are_no_slower_than_declared() -> None:
    from studies.theory.rates import convex_run, fitted, nonconvex_run

    rows = pl.DataFrame([nonconvex_run(t, 4, seed=s) for t in (500, 1000, 2000, 4000) for s in range(2)])
    assert fitted(rows, "steps")[0].no_slower_than(-0.5)
    assert (rows["measured"] <= rows["repaired"]).all()
    rows = pl.DataFrame([nonconvex_run(1000, m) for m in (2, 3, 5, 9, 17, 33)])
    assert fitted(rows.with_columns(pl.col("workers") - 1), "workers")[0].no_slower_than(1.0)
    problem = lc.problems.Logistic()
    rows = pl.DataFrame([convex_run(problem, t, 7) for t in (250, 500, 1000, 2000)])
    assert fitted(rows, "steps")[0].no_slower_than(-0.5)
    assert (rows["measured"] <= rows["repaired"]).all()
    crowds = pl.DataFrame([convex_run(problem, 300, m) for m in (2, 3, 5, 9, 17)])
    assert fitted(crowds.with_columns(pl.col("workers") - 1), "workers")[0].no_slower_than(1.0)
    low = convex_run(problem, 1000, 7, position=0.0)
    assert low["measured"] > rows["measured"][2]


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "theory")
    run = ["--out", folder, "--processes", "1"]
    assert study(["counter-example", "--workers", "4", "6", "--seeds", "1", *run]) == 0
    output = capsys.readouterr().out
    assert "Proved bound: no row exceeds it" in output
    assert study(["rates", "--scale", "0.05", "--seeds", "1", *run]) == 0
    assert study(["diagnose", "--workers", "5", "--out", folder]) == 0
    assert main(["theory", "advise", "--problem", "quadratic", "--steps", "500", "--beta", "0.1"]) == 0
    assert "so slow samples have" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "theory").iterdir()}
    assert names == {
        *(f"{name}.svg" for name in ("counter-example", "rates", "learning-rates", "error-parts")),
        *(f"{name}.csv" for name in ("counter-example", "rates", "error-parts")),
    }
    assert all((tmp_path / "theory" / name).stat().st_size > 1000 for name in names)
    for wrong in (["--beta", "2"], ["--workers", "0"]):
        assert main(["theory", "advise", *wrong]) == 2
        assert capsys.readouterr().err.startswith("latecomer: ")
    for wrong in (["counter-example", "--workers", "1", *run], ["diagnose", "--out", "/proc/nowhere"]):
        assert study(wrong) == 2
        assert capsys.readouterr().err.startswith("python -m studies.theory: ")


def test_time_study() -> None:
    row = jobs.one("time", {"workers": 2})
    assert row["simulated"] == pytest.approx(row["predicted"], rel=0.01)
    assert row["mean_squared_gradient"] <= jobs.EPSILON
    assert row["reached"] < row["simulated"]
