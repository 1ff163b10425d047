"""What does not hold in the paper as it is printed: a counter-example each, and next to it the form that does hold.

Small enough to be exact where possible: rational numbers, or all outcomes of a few coin flips.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

import latecomer as lc
from latecomer.trace import Trace
from studies.theory.adversary import Adversary

HALF = Fraction(1, 2)


def traces() -> list[Trace]:
    models = (
        lc.delays.DataDependent(5, 0.2),
        lc.delays.Constant(4),
        lc.delays.SampleCost(6, (1.0, 20.0), 0.2),
        Adversary(3, hold=-1.0, age=0.1, noise=0.5),
    )
    return [model.trace(120, seed) for model in models for seed in range(3)]


def missing(trace: Trace, t: int) -> set[int]:
    """T(t): the versions from 2 to t that have not arrived by t."""
    return set(range(2, t + 1)) - set(trace.version[:t].tolist())


# ---- Appendix A ----------------------------------------------------------------------------------------------------


def test_the_virtual_error_is_not_the_sum_of_its_parts() -> None:
    """E|ehat|² = E|ehat - ebar|² + E|ebar|² lacks a cross term: x_t, and with it ebar_t, depends on past noise."""
    beta = lr = HALF
    whole, noise, expected, cross, mean = (Fraction(0) for _ in range(5))
    for flips in itertools.product((-1, 1), repeat=3):  # one worker, no delay, f = x²/2 from x_1 = 0
        x, m, m_bar = Fraction(0), Fraction(0), Fraction(0)
        for t, n in enumerate(flips, start=1):
            m, m_bar = (1 - beta) * m + beta * (x + n), (1 - beta) * m_bar + beta * x
            if t == len(flips):
                whole, noise, expected = whole + (m - x) ** 2, noise + (m - m_bar) ** 2, expected + (m_bar - x) ** 2
                cross, mean = cross + 2 * (m - m_bar) * (m_bar - x), mean + m - m_bar
            x -= lr * m
    assert mean == 0  # which is all that the proof uses
    assert cross > 0
    assert whole == noise + expected + cross


def test_the_noise_that_has_arrived_is_no_martingale_exactly() -> None:
    """Two workers flip a coin each and -1 arrives first: the noise of version 1 has mean -1/2, and no delay at all."""
    outcomes = list(itertools.product((-1, 1), repeat=2))
    assert sum(Fraction(min(pair)) for pair in outcomes) / 4 == -HALF
    assert sum(Fraction(pair[0]) for pair in outcomes) / 4 == 0  # who is first does not depend on the coins


@pytest.mark.parametrize("dependent", [True, False])
def test_the_noise_that_has_arrived_is_a_martingale_only_for_independent_delays(dependent: bool) -> None:
    example, beta, T, sums = lc.theory.CounterExample(workers=11, steps=300), 1 / 160, 300, []
    for seed in range(150):
        trace = example.trace(dependent=dependent, seed=seed)
        noise = np.where(trace.group == 1, 0.9, -0.1)
        counts = (trace.version > 1) | (np.arange(T) == 0)
        sums.append(float((beta * (1 - beta) ** (T - trace.version) * noise)[counts].sum()))
    score = np.mean(sums) / (np.std(sums) / math.sqrt(len(sums)))
    assert score < -15 if dependent else abs(score) < 4


def test_the_virtual_error_needs_version_1_to_be_unselected() -> None:
    """Full noise does not save the lemma for every beta: the gradient of version 1 is that of whoever was first."""
    M, beta, T = 20, HALF, 2
    p = Fraction(1, M)  # noise M - 1 with probability 1/M, on jobs that are fast, and -1 on the others
    sigma2 = p * (M - 1) ** 2 + (1 - p)
    start = Fraction(-(M - 1), 5)  # f = x²/2 and a learning rate of zero in the limit, so x_t = x_1

    def mean_square(first_is_large: Fraction) -> Fraction:
        total = Fraction(0)
        for n, chance in ((M - 1, first_is_large), (-1, 1 - first_is_large)):
            first = -(1 - beta) * start + beta * n
            total += chance * (first**2 + (1 - beta) ** 2 * first**2 + beta**2 * sigma2) / T
        return total

    bound = start**2 / (beta * T) + beta * sigma2  # 2 L Delta = start²
    selected = mean_square(1 - (1 - p) ** M)
    assert bound < selected <= bound + min(M * sigma2, (M - 1) ** 2) / T
    assert mean_square(p) <= bound


def test_the_recursion_needs_p_equal_to_one_minus_beta() -> None:
    """|x+y|² <= |x|²/p + |y|²/(1-p) times (1-beta)²: only p = 1-beta gives what is displayed; p = beta is printed."""
    for beta in (Fraction(1, 160), Fraction(1, 10), Fraction(3, 10), Fraction(9, 10)):
        displayed = (1 - beta, (1 - beta) ** 2 / beta)
        for p in {beta, HALF, *(Fraction(i, 10) for i in range(1, 10)), 1 - beta}:
            got = ((1 - beta) ** 2 / p, (1 - beta) ** 2 / (1 - p))
            enough = got[0] <= displayed[0] and got[1] <= displayed[1]
            assert enough == (p == 1 - beta)
        if beta <= Fraction(3, 10):
            assert (1 - beta) ** 2 / beta > 1  # with p = beta nothing contracts


def test_what_is_filled_in_is_the_gradient_of_its_own_version() -> None:
    """Main text: beta (1-beta)^(t-k) grad f(x_t). The appendix needs grad f(x_k), for gbar_t = (1-beta) gbar_{t-1}."""
    beta, gradient = Fraction(1, 4), [Fraction(0), Fraction(3), Fraction(-1), Fraction(2), Fraction(5)]

    def filled(t: int, k: int, at: int) -> Fraction:
        return beta * (1 - beta) ** (t - k) * gradient[at]

    for t, k in ((2, 1), (3, 1), (3, 2), (4, 2)):
        assert filled(t, k, at=k) == (1 - beta) * filled(t - 1, k, at=k)
        assert filled(t, k, at=t) != (1 - beta) * filled(t - 1, k, at=t - 1)


@pytest.mark.parametrize("start", [1e-3, 1.0, 30.0])
def test_the_explicit_bound_is_zero_for_one_worker_without_noise(start: float) -> None:
    promised = lc.theory.nonconvex(L=1.0, delta=start**2 / 2, sigma=0.0, workers=1, steps=50)
    x = start * (1 - promised.lr) ** np.arange(50)  # beta is 1: gradient descent on x²/2
    printed = 640 * promised.delta * 0 / 50 + 16 * 0.0 * math.sqrt(5 * promised.delta) / math.sqrt(50)
    assert promised.beta == 1.0
    assert printed < (x**2).mean() <= promised.bound


# ---- Appendix B ----------------------------------------------------------------------------------------------------


def test_the_first_gradients_and_the_others_add_up_to_t_with_T_of_t_only() -> None:
    """Printed: k in [t] without T(k). That is what arrived at once; with T(t) the two sums have t terms."""
    differs = False
    for trace in traces():
        for t in range(1, len(trace) + 1):
            played, flying = set(trace.worker[:t].tolist()), missing(trace, t)
            right = set(range(2, t + 1)) - flying
            printed = {k for k in range(2, t + 1) if k not in missing(trace, k)}
            assert right == {int(k) for k in trace.version[:t] if k > 1}
            assert len(played) + len(right) == t
            assert printed == {k for k in range(2, t + 1) if trace.delay[k - 1] == 0}
            differs |= len(played) + len(printed) != t
    assert differs


def test_who_has_played_is_who_was_sent_what_is_missing() -> None:
    """Printed: {i(t)} and i(k) for k in T(t), where i(k) played at k. Who was sent x_k is i(k-1)."""
    wrong_arrival = wrong_sent = 0
    for trace in traces():
        arrived = [-1, *trace.worker.tolist()]  # i(t), from t = 1
        for t in range(2, len(trace) + 1):
            played, flying = set(arrived[1 : t + 1]), missing(trace, t)
            assert played == {arrived[t]} | {arrived[k - 1] for k in flying}
            assert len(played) == len(flying) + 1
            wrong_arrival += played != {arrived[t]} | {arrived[k] for k in flying}
            wrong_sent += played != {arrived[t - 1]} | {arrived[k - 1] for k in flying}  # i(t) as who was sent x_t
    assert wrong_arrival > 0
    assert wrong_sent > 0


def test_the_missing_increments_have_weights_of_k() -> None:
    """Lemma bound_eps displays alpha_t - alpha_{t-1}, alpha_{t-1} and x_t where alpha_k, alpha_{k-1} and x_k belong."""
    g = [Fraction(value) for value in (0, 3, -1, 2, 5, -4)]  # grad f(x_1), ... from index 1; alpha_t = t
    for t, k in ((4, 2), (5, 2), (5, 3), (5, 4)):
        true = g[1] - (k * g[k] - (k - 1) * g[k - 1])
        assert true == g[1] - (k - (k - 1)) * g[k] + (k - 1) * (g[k - 1] - g[k])
        assert true != g[1] - (t - (t - 1)) * g[k] + (t - 1) * (g[t - 1] - g[t])


def test_the_parts_of_the_error_of_algorithm_2_are_not_orthogonal() -> None:
    """Eq. (eps_parts) lacks a cross term even for a fixed order: what is missing was computed where noise had led."""
    lr, whole, apart = Fraction(1, 16), Fraction(0), Fraction(0)
    for first, second in itertools.product((-1, 1), repeat=2):  # two workers arrive in turn, both with version 1
        x1 = Fraction(0)  # f = x²/2 and a large K
        q1 = x1 + first
        x2 = x1 + Fraction(2, 3) * -lr * q1
        q2 = q1 + x1 + second  # version 2 is in flight
        noise, bias = first + second, x1 - (2 * x2 - x1)
        assert q2 - 2 * x2 == noise + bias
        whole, apart = whole + (q2 - 2 * x2) ** 2 / 4, apart + (first**2 + second**2 + bias**2) / Fraction(4)
    assert whole > apart


@pytest.mark.parametrize("first", [10.0, -3.0, 0.9, 0.0])
def test_projected_descent_has_to_start_inside(first: float) -> None:
    """The lemma says any w_1 in R^d. On K = [0, 1] with q_1 = 0 from w_1 = 10 it says 0 <= a negative number."""
    lr, q = 0.5, 0.0
    second = min(1.0, max(0.0, first - lr * q))
    for x in (0.0, 0.3, 1.0):
        holds = q * (second - x) <= 1.0 / (2 * lr) - (first - second) ** 2 / (2 * lr)
        assert holds == (0 <= first <= 1)


def test_smooth_and_convex_on_K_alone_is_not_enough() -> None:
    """K = {(s, 0)}, f(x, y) = L x y: f = 0 on K, its gradient (0, L s) is L-Lipschitz on K, and it is not constant."""
    L = 2.0

    def f(point: NDArray[np.float64]) -> float:
        return float(L * point[0] * point[1])

    def gradient(point: NDArray[np.float64]) -> NDArray[np.float64]:
        return L * point[::-1]

    for a, b in itertools.permutations([np.array([s, 0.0]) for s in np.linspace(-1, 1, 9)], 2):
        change = float(np.linalg.norm(gradient(a) - gradient(b)))
        assert f((a + b) / 2) == f(a) == f(b) == 0.0  # convex on K, and every point is a minimum
        assert change <= L * np.linalg.norm(a - b) + 1e-12
        assert change**2 > 2 * L * (f(a) - f(b))


@pytest.mark.parametrize("constant", [1.0, 1e3, 1e6])
def test_theorem_2_needs_the_gradient_at_the_minimum(constant: float) -> None:
    """O(D² L M/T) without D G*/T: f = c x + L x²/2 on [0, D] has L as small as one likes, and no constant is enough."""
    c, D, T = 1.0, 1.0, 100
    L = c / (constant * 4 * D * T)
    lr = 1 / (4 * L * T)  # the largest allowed; no noise, one worker
    w = x = D
    for t in range(1, T):
        w = min(D, max(0.0, w - lr * t * (c + L * x)))  # t d_t = t grad f(x_t)
        x += 2 / (t + 2) * (w - x)
    excess = c * x + L * x**2 / 2
    assert excess > constant * D**2 * L / T
    promised = lc.theory.convex(L=L, D=D, sigma=0.0, G=c, workers=1, steps=T)
    assert excess <= promised.bound(lr)
    assert c > promised.L * D  # far from a minimum on the whole line within reach of K, which is what would excuse it


def test_the_papers_delay_model_does_not_draw_samples_independently() -> None:
    """Version k's sample should not depend on whether version k-1, in flight when it starts, is slow."""
    trace = lc.delays.DataDependent(workers=2, slow_share=0.1, weights=(1.0, 1.0)).trace(steps=60_000, seed=0)
    group = np.full(len(trace) + 2, -1)
    arrival = np.zeros(len(trace) + 2, dtype=np.int64)
    group[trace.version], arrival[trace.version] = trace.group, trace.arrival
    k = np.arange(3, len(trace) - 100)
    out = k[arrival[k - 1] > k - 1]  # version k-1 has not arrived when version k starts
    shares = [float((group[out[group[out - 1] == kind]] == 1).mean()) for kind in (0, 1)]
    assert shares[1] < 0.01 < 0.1 < shares[0]
    honest = lc.delays.SampleCost(2, (1.0, 3.0), slow_share=0.1).trace(steps=60_000, seed=0)
    group[honest.version], arrival[honest.version] = honest.group, honest.arrival
    out = k[arrival[k - 1] > k - 1]
    shares = [float((group[out[group[out - 1] == kind]] == 1).mean()) for kind in (0, 1)]
    assert abs(shares[0] - shares[1]) < 0.02
