"""The bounds are the paper's formulas, behave at their limits, and refuse nonsense."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import latecomer as lc
from latecomer import theory

positive = st.floats(0.01, 100)
known = st.fixed_dictionaries(
    {
        "L": positive,
        "delta": positive,
        "sigma": positive,
        "workers": st.integers(2, 500),
        "steps": st.integers(1, 10**7),
    }
)


@given(known)
def test_theorem_1_is_the_papers_formula(k: dict[str, Any]) -> None:
    L, delta, sigma, m, T = k["L"], k["delta"], k["sigma"], k["workers"] - 1, k["steps"]
    promised = theory.nonconvex(**k)
    beta = min(1 / (16 * m), math.sqrt(5 * L * delta) / (sigma * math.sqrt(T)))
    lr = min(1 / (32 * math.sqrt(2) * L * m), math.sqrt(5 * delta) / (2 * sigma * math.sqrt(2 * L * T)))
    assert promised.beta == pytest.approx(beta)
    assert promised.lr == pytest.approx(lr)
    assert promised.bound == pytest.approx(640 * L * delta * m / T + 16 * sigma * math.sqrt(5 * L * delta / T))
    # What is proved without the selection term is never above what is published.
    assert promised.repaired - promised.selection - promised.first <= promised.bound * (1 + 1e-9)


@given(known, st.floats(0.1, 50))
def test_the_repaired_choice_is_the_best_choice(k: dict[str, Any], sup: float) -> None:
    for sup_noise in (None, sup):
        tuned = theory.repaired_nonconvex(**k, sup_noise=sup_noise)
        assert tuned.repaired <= theory.nonconvex(**k, sup_noise=sup_noise).repaired * (1 + 1e-9)
        for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
            beta = min(tuned.beta * factor, 1 / (16 * (k["workers"] - 1)))
            other = theory.NonConvex(*(k[n] for n in ("L", "delta", "sigma", "workers", "steps")), sup_noise, beta, 0.0)
            assert tuned.repaired <= other.repaired * (1 + 1e-6)


def test_one_worker_and_no_noise() -> None:
    alone = theory.nonconvex(L=2, delta=3, sigma=0, workers=1, steps=100)
    assert (alone.beta, alone.lr) == (1.0, pytest.approx(1 / (math.sqrt(8) * 2)))
    assert alone.bound == alone.repaired == pytest.approx(40 * 2 * 3 / 100)
    quiet = theory.nonconvex(L=2, delta=3, sigma=0, workers=5, steps=100)
    assert quiet.beta == 1 / 64
    assert quiet.selection == 0
    noisy = theory.nonconvex(L=1, delta=1, sigma=1, workers=1, steps=10**6)
    assert noisy.beta == pytest.approx(math.sqrt(5) / 1000)
    assert noisy.bound == pytest.approx(16 * math.sqrt(5) / 1000)
    assert noisy.selection == 0
    same = theory.convex(L=1, D=2, sigma=1, workers=1, steps=100, sup_noise=3)
    assert same.repaired(same.lr_max) == pytest.approx(same.bound(same.lr_max))


@given(known, positive, st.floats(0, 10), st.floats(0, 10))
def test_theorem_2_is_the_papers_formula(k: dict[str, Any], D: float, sigma_L: float, G: float) -> None:
    L, sigma, M, T = k["L"], k["sigma"], k["workers"], k["steps"]
    both = theory.convex(L=L, D=D, sigma=sigma, sigma_L=sigma_L, G=G, workers=M, steps=T, sup_noise=5 * sigma)
    assert both.lr_max == pytest.approx(1 / (4 * L * T))
    rest = 2 * (sigma / D + 2 * sigma_L) * math.sqrt(T) + 6 * L * (M - 1) + 2 * G / D
    assert both.lr_min == pytest.approx(1 / (T * max(4 * L, rest)))
    for lr in (both.lr_min, both.lr_max):
        bound = (
            2 * D**2 / (lr * T**2)
            + 4 * D * G / T
            + 4 * D * (sigma + 2 * D * sigma_L) / math.sqrt(T)
            + 12 * D**2 * L * (M - 1) / T
        )
        assert both.bound(lr) == pytest.approx(bound)
        assert both.repaired(lr) >= both.bound(lr) * (1 - 1e-12)
    # At the lower end the term that grows is what the others come to: nothing is lost but a factor of two.
    assert both.bound(both.lr_min) <= 2 * both.bound(both.lr_max) * (1 + 1e-9)


def test_noise_that_changes_with_the_point_needs_its_own_bound() -> None:
    known = {"L": 1.0, "D": 2.0, "sigma": 1.0, "sigma_L": 5.0, "workers": 7, "steps": 10_000}
    without, half, whole = (
        theory.convex(**known, **more) for more in ({}, {"sup_noise": 3.0}, {"sup_noise": 3.0, "sup_noise_L": 5.0})
    )
    assert without.repaired(1e-5) == half.repaired(1e-5) > whole.repaired(1e-5) > whole.bound(1e-5)


def test_tiny_noise_causes_no_error() -> None:
    k = {"L": 1.0, "delta": 1.0, "sigma": 1e-170, "workers": 3, "steps": 100}
    assert theory.repaired_nonconvex(**k).beta == 1 / 32
    assert theory.delay_adaptive_lr(**k, delay=0) == pytest.approx(1 / 3)


def test_catch_up_has_its_best_learning_rate_and_refuses_larger_ones() -> None:
    k = {"L": 2.0, "delta": 1.0, "sigma": 0.5, "workers": 9, "steps": 5000, "sup_gradient": 3.0}
    best = theory.catch_up(**k)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert best.bound <= theory.catch_up(**k, lr=best.lr * factor).bound
    assert best.beta == pytest.approx(math.sqrt(12) * 2 * best.lr)
    with pytest.raises(ValueError, match=r"expected lr <= 1/\(sqrt\(12\) L\)"):
        theory.catch_up(**k, lr=0.2)


def test_prior_rates_and_useful_workers() -> None:
    k = {"L": 1.0, "delta": 1.0, "sigma": 1.0}
    useful = {T: theory.largest_useful_workers(**k, steps=T, G=1.0, sup_noise=1.0) for T in (10**8, 16 * 10**8)}
    grown = {name: (useful[16 * 10**8][name] - 1) / (useful[10**8][name] - 1) for name in useful[10**8]}
    assert grown["Theorem 1"] == pytest.approx(4, rel=0.01)  # sqrt(T)
    assert grown["Theorem 1, repaired"] == pytest.approx(2, rel=0.01)  # T^(1/4)
    assert grown["earlier rate (Eq. 1)"] == pytest.approx(2, rel=0.02)
    both = theory.largest_useful_workers(**k, steps=10**8, D=2.0, sup_noise=3.0)
    assert both["Theorem 2"] == pytest.approx(1 + 1e4 / 6)
    assert both["Theorem 2, repaired"] == pytest.approx(1 + 1e4 / 9)
    assert both["data-independent, convex"] == pytest.approx(5000)
    assert theory.prior_convex(G=2, D=3, workers=4, steps=100) == pytest.approx(2 * 3 * 2 / 10)
    assert theory.delay_adaptive_lr(**k, workers=4, steps=100, delay=0) == pytest.approx(0.1)
    assert theory.delay_adaptive_lr(**k, workers=4, steps=100, delay=20) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.nonconvex(L=0, delta=1, sigma=1, workers=2, steps=10), "Invalid L value: 0"),
        (lambda: theory.nonconvex(L=1, delta=-1, sigma=1, workers=2, steps=10), "Invalid delta value: -1"),
        (lambda: theory.nonconvex(L=1, delta=1, sigma=math.nan, workers=2, steps=10), "Invalid sigma value: nan"),
        (lambda: theory.nonconvex(L=1, delta=1, sigma=1, workers=0, steps=10), "Invalid workers value: 0"),
        (lambda: theory.nonconvex(L=1, delta=1, sigma=1, workers=2, steps=0), "Invalid steps value: 0"),
        (lambda: theory.convex(L=1, D=0, sigma=1, workers=2, steps=10), "Invalid D value: 0"),
        (lambda: theory.convex(L=1, D=1, sigma=1, workers=2, steps=10).bound(1.0), r"expected lr <= 1/\(4 L T\)"),
        (lambda: theory.nonconvex(L=1e-200, delta=1e-200, sigma=1, workers=2, steps=10), "is out of range"),
        (lambda: theory.fastest([1.0], L=1, delta=1, sigma=1, epsilon=1e-200), "Invalid epsilon value"),
        (lambda: theory.fastest([], L=1, delta=1, sigma=1, epsilon=0.1), "Invalid number of durations value: 0"),
        (lambda: theory.fastest([1, -1], L=1, delta=1, sigma=1, epsilon=0.1), "Invalid duration value: -1"),
        (lambda: theory.steps_needed(L=1, delta=1, sigma=1, workers=2, epsilon=0), "Invalid epsilon value: 0"),
    ],
)
def test_nonsense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_steps_needed_bring_the_bound_to_the_goal() -> None:
    k = {"L": 1.0, "delta": 2.0, "sigma": 0.7, "workers": 6}
    steps = theory.steps_needed(**k, epsilon=0.2)
    assert theory.nonconvex(**k, steps=steps).bound <= 0.2 < theory.nonconvex(**k, steps=steps - 2).bound


def test_the_fastest_workers_on_the_clock() -> None:
    durations = [3.0, 1.0, 50.0, 1.0, 200.0]
    choice = theory.fastest(durations, L=1, delta=1, sigma=1, epsilon=0.5)
    assert [row[0] for row in choice.table] == [1, 2, 3, 4, 5]
    assert choice.seconds == min(row[2] for row in choice.table)
    m, steps, seconds = choice.table[2]
    model = lc.delays.WorkerSpeeds(durations).fastest(m)
    assert model.durations == (1.0, 1.0, 3.0)
    assert model.trace(2000).end[-1] == pytest.approx(2000 / (1 + 1 + 1 / 3), rel=0.01)  # what `seconds` predicts
    assert seconds == pytest.approx(steps / (1 + 1 + 1 / 3))
    assert theory.fastest([1.0] * 4, L=1, delta=1, sigma=5, epsilon=0.01).workers == 4  # noise: everybody helps
    with pytest.raises(ValueError, match="Invalid m value: 9"):
        lc.delays.WorkerSpeeds(durations).fastest(9)


def test_slopes() -> None:
    from studies.theory.rates import slope

    rng = np.random.default_rng(0)
    x = np.geomspace(10, 10_000, 30)
    found = slope(x.tolist(), (3 * x**-0.7 * np.exp(rng.normal(0, 0.1, 30))).tolist())
    assert found.low < -0.7 < found.high
    assert found.no_slower_than(-0.5)
    assert not found.no_slower_than(-0.9)
