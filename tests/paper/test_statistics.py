"""The tests of the evidence against scipy, against enumeration, and for what they promise: errors and coverage."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from latecomer.paper import power
from latecomer.paper import statistics as s


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (5, 1), (12, 4), (30, 29), (0, 40)])
def test_mcnemar_is_the_binomial_test(b: int, c: int) -> None:
    expected = stats.binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    assert s.mcnemar(b, c) == pytest.approx(expected)


def test_wilcoxon_is_scipys_exact_one_without_ties_and_enumeration_with_them() -> None:
    draws = np.random.default_rng(0)
    for n in (3, 8, 20, 40):
        x = draws.normal(0.3, 1.0, n)
        assert s.wilcoxon(x.tolist()) == pytest.approx(stats.wilcoxon(x, mode="exact").pvalue)
    tied = [1.0, 1.0, -1.0, 2.0, 2.0, 3.0, 0.0]
    kept = np.array([d for d in tied if d])
    ranks = stats.rankdata(np.abs(kept))
    sums = [np.dot(ranks, np.array(signs) > 0) for signs in itertools.product((-1, 1), repeat=len(kept))]
    fewer = min(np.dot(ranks, kept > 0), np.dot(ranks, kept < 0))
    assert s.wilcoxon(tied) == pytest.approx(min(1.0, 2 * np.mean(np.array(sums) <= fewer)))


def test_sign_flip_counts_all_changes_of_sign_up_to_forty_pairs() -> None:
    """Against the distribution of the sum of whole numbers, which is a list of counts; ties and zeros included."""
    draws = np.random.default_rng(3)
    for n in (17, 20, 33, 40):
        whole = draws.integers(-4, 7, n)
        counts = {0: 1}
        for size in np.abs(whole).tolist():
            signed = [(total + sign * size, number) for total, number in counts.items() for sign in (-1, 1)]
            counts = {}
            for total, number in signed:
                counts[total] = counts.get(total, 0) + number
        extreme = sum(number for total, number in counts.items() if abs(total) >= abs(int(whole.sum())))
        assert s.sign_flip((0.1 * whole).tolist()) == pytest.approx(extreme / 2**n, rel=1e-12)
    with pytest.raises(ValueError, match="not finite"):
        s.sign_flip([0.1] * 19 + [float("nan")])


def test_one_difference_among_many_zeros_says_little_about_their_mean() -> None:
    found = s.mean_interval([0.0] * 19 + [0.3], most=1.0)
    assert found.low <= 0.0
    assert found.high == 1.0  # of all draws a third has none
    assert not found.within(0.02)


def test_sign_flip_is_exact_for_few_and_close_to_scipys_for_many() -> None:
    draws = np.random.default_rng(1)
    few, many = draws.normal(0.4, 1.0, 10), draws.normal(0.2, 1.0, 60)
    signs = np.array(list(itertools.product((-1, 1), repeat=10)))
    exact = float((np.abs(signs @ few) >= abs(few.sum()) - 1e-12).mean())
    assert s.sign_flip(few.tolist()) == pytest.approx(exact)
    theirs = stats.permutation_test((many,), np.mean, permutation_type="samples", n_resamples=20_000, rng=2).pvalue
    assert s.sign_flip(many.tolist()) == pytest.approx(theirs, abs=0.01)


def test_holm_is_what_the_definition_says() -> None:
    draws = np.random.default_rng(3)
    for _ in range(20):
        p = draws.uniform(0, 0.2, 5)
        ordered = np.sort(p)
        steps = np.maximum.accumulate(np.minimum(1.0, ordered * np.arange(5, 0, -1)))
        assert sorted(s.holm(p.tolist())) == pytest.approx(steps.tolist())


def test_no_test_calls_too_often_where_nothing_differs() -> None:
    """At level 0.05, of 400 experiments in which both methods are alike, a true level above 0.09 has p < 1e-3."""
    draws = np.random.default_rng(4)
    called = np.zeros(3)
    for _ in range(400):
        both = draws.random((30, 2)) < 0.7  # trained or not, two-humped
        x = np.where(both, 0.95, 0.1) + draws.normal(0, 0.01, (30, 2))
        d = (x[:, 0] - x[:, 1]).tolist()
        b, c = int((both[:, 0] & ~both[:, 1]).sum()), int((both[:, 1] & ~both[:, 0]).sum())
        called += [s.mcnemar(b, c) <= 0.05, s.wilcoxon(d) <= 0.05, s.sign_flip(d[:14]) <= 0.05]
    assert (called / 400 < 0.09).all()


def test_intervals_cover() -> None:
    draws, hits, n = np.random.default_rng(5), np.zeros(3), 600
    for _ in range(n):
        both = draws.random((40, 2)) < np.array([0.8, 0.6])
        b, c = int((both[:, 0] & ~both[:, 1]).sum()), int((both[:, 1] & ~both[:, 0]).sum())
        share = s.matched_pairs(b, c, 40)
        one = s.wilson(int(both[:, 0].sum()), 40)
        x = np.where(draws.random(40) < 0.9, draws.normal(0.95, 0.02, 40), 0.5)
        mean = s.mean_interval(x.tolist())
        hits += [share.low <= 0.2 <= share.high, one.low <= 0.8 <= one.high, mean.low <= 0.9 * 0.95 + 0.05 <= mean.high]
    assert (hits / n > 0.85).all()  # 90 % intervals


def test_how_many_pairs_would_decide() -> None:
    n = power.pairs_to_decide(12, 4, 40, alpha=0.00114)
    assert n is not None
    draws = np.random.default_rng(6)
    decided = [
        b > c and s.mcnemar(int(b), int(c)) <= 0.00114 for b, c, _ in draws.multinomial(n, [0.3, 0.1, 0.6], 4000)
    ]
    assert np.mean(decided) >= 0.88
    assert power.pairs_to_decide(5, 5, 40, alpha=0.001) is None


def test_power_of_mcnemar_is_that_of_simulated_pairs() -> None:
    draws = np.random.default_rng(7)
    for n, first, second in ((40, 0.35, 0.05), (120, 0.2, 0.06)):
        kinds = draws.multinomial(n, [first, second, 1 - first - second], size=4000)
        called = np.mean([b > c and s.mcnemar(int(b), int(c)) <= 0.00114 for b, c, _ in kinds])
        assert power.mcnemar_power(n, first, second, 0.00114) == pytest.approx(called, abs=0.03)


def test_how_many_pairs_must_be_won_is_that_of_the_binomial_test() -> None:
    for n in (1, 9, 10, 11, 40, 99):
        by_hand = next((k for k in range(n // 2 + 1, n + 1) if s.binomial_two_sided(k, n) <= 0.00114), None)
        assert power._needed_wins(n, 0.00114) == by_hand


def test_detectable_effects_are_the_smallest_with_that_power() -> None:
    effect = power.detectable_difference(80, 0.05, 0.00114)
    assert effect is not None
    assert power.mcnemar_power(80, 0.05 + effect, 0.05, 0.00114) >= 0.9
    assert power.mcnemar_power(80, 0.05 + effect - 0.002, 0.05, 0.00114) < 0.9
    assert power.detectable_difference(8, 0.0, 0.00114) is None  # eight pairs cannot reach the level at all
    share = power.detectable_share(40, 0.00114)
    assert share is not None
    needed = next(k for k in range(20, 41) if stats.binomtest(k, 40, 0.5).pvalue <= 0.00114)
    assert stats.binom.sf(needed - 1, 40, 0.5 + share) >= 0.9 > stats.binom.sf(needed - 1, 40, 0.498 + share)
    assert power.detectable_share(8, 0.00114) is None
    tied = power.detectable_share(40, 0.00114, untied=0.9)
    assert tied is not None
    assert tied > share
    assert power.mcnemar_power(40, 0.9 * (0.5 + tied), 0.9 * (0.5 - tied), 0.00114) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("ranks", [True, False])
def test_power_for_a_mean_is_that_of_simulated_tests(ranks: bool) -> None:
    draws = np.random.default_rng(9)
    for n, shift in ((12, 1.6), (40, 0.7)):
        samples = draws.normal(shift, 1.0, (400, n))
        test = s.wilcoxon if ranks else lambda each: stats.ttest_1samp(each, 0.0).pvalue
        called = np.mean([each.mean() > 0 and test(each) <= 0.00114 for each in samples])
        assert power.mean_power(n, shift, 0.00114, ranks) == pytest.approx(called, abs=0.06)
    least = next(n for n in range(1, 20) if s.wilcoxon([1.0 + i for i in range(n)]) <= 0.00625)
    assert power.mean_power(least - 1, 50.0, 0.00625, ranks=True) == 0.0
    assert power.mean_power(least, 50.0, 0.00625, ranks=True) == 1.0
    assert power.pairs_for_mean([5.0, 5.1] * 5, 0.00625, ranks=True) == least == 9


def test_pairs_for_means_and_margins_are_enough() -> None:
    draws = np.random.default_rng(8)
    sample = draws.normal(0.05, 0.1, 20)
    n = power.pairs_for_mean(sample.tolist(), alpha=0.0015, ranks=False)
    assert n is not None
    shown = [
        stats.ttest_1samp(draws.normal(sample.mean(), sample.std(ddof=1), n), 0.0).pvalue <= 0.0015 for _ in range(400)
    ]
    assert 0.8 < np.mean(shown) < 0.96
    assert power.pairs_for_mean([0.0] * 20, 0.05, ranks=True) is None
    assert power.pairs_for_mean(sample[:9].tolist(), 0.05, ranks=False) is None  # too few to know their spread
    within = power.pairs_for_mean_within((sample - sample.mean()).tolist(), 0.02)
    assert within is not None
    inside = [s.mean_interval(draws.normal(0.0, sample.std(ddof=1), within).tolist()).within(0.02) for _ in range(200)]
    assert 0.8 < np.mean(inside) < 0.97
    assert power.pairs_for_mean_within([0.5, 0.6, 0.7] * 4, 0.02) is None
    alike = power.pairs_for_share_within(6, 6, 40, 0.15)
    assert alike is not None
    kinds = draws.multinomial(alike, [0.15, 0.15, 0.7], 2000)
    assert np.mean([s.matched_pairs(int(b), int(c), alike).within(0.15) for b, c, _ in kinds]) >= 0.88
    assert power.pairs_for_share_within(30, 5, 40, 0.15) is None
