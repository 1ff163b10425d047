"""Problems: gradients, metrics against scikit-learn, seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from latecomer.flat import FlatModule
from latecomer.problems import Digits, Quadratic
from latecomer.problems.base import scores
from latecomer.problems.networks import cnn


@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60),
    slow=st.sets(st.integers(0, 4), max_size=5),
)
def test_scores_are_those_of_scikit_learn(pairs: list[tuple[int, int]], slow: set[int]) -> None:
    labels, guesses = (np.array(column) for column in zip(*pairs, strict=True))
    got = scores(labels, guesses, classes=5, slow=slow)
    per_class = f1_score(labels, guesses, labels=range(5), average=None, zero_division=0)
    assert got["accuracy"] == pytest.approx(accuracy_score(labels, guesses))
    assert got["f1"] == pytest.approx(per_class.mean())
    assert [got[f"f1_{c}"] for c in range(5)] == pytest.approx(per_class)
    for key, chosen in (("f1_slow", slow), ("f1_fast", set(range(5)) - slow)):
        expected = per_class[sorted(chosen)].mean() if chosen else math.nan
        assert got[key] == pytest.approx(expected, nan_ok=True)


def test_the_formula_of_the_quadratic_is_its_gradient() -> None:
    problem = Quadratic(dimensions=4)
    flat = FlatModule(problem.model(0))
    point = torch.randn(4, dtype=torch.float64)
    batch = problem.batch(5, 1)
    formula, autograd = torch.empty(4, dtype=torch.float64), torch.empty(4, dtype=torch.float64)
    assert problem.gradient(point, batch, formula)
    flat.gradient(point, lambda module: problem.loss(module, batch), autograd)
    torch.testing.assert_close(formula, autograd)


def test_constants_of_the_quadratic() -> None:
    problem = Quadratic(dimensions=3, curvature=(0.5, 2.0), centres=(0.0, 3.0), shares=(0.9, 0.1), start=5.0)
    assert problem.L == 2.0
    assert problem.optimum == pytest.approx(0.3)
    assert problem.delta == pytest.approx((0.5 + 1.25 + 2.0) * 4.7**2 / 2)
    assert problem.evaluate(problem.model(0))["loss"] == pytest.approx(problem.delta)
    noise = torch.stack([problem.batch(s, 0)[1] for s in range(4000)])
    assert noise.std().item() == pytest.approx(1.0, abs=0.03)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.03)


def test_digits_are_split_once_and_batches_follow_their_seed() -> None:
    problem = Digits(slow_class=3)
    assert len(problem._labels) + len(problem._test_labels) == 1797
    assert set(np.unique(problem._test_labels)) == set(range(10))
    for group in (0, 1):
        images, labels = problem.batch(123, group)
        again = problem.batch(123, group)
        assert torch.equal(images, again[0])
        assert torch.equal(labels, again[1])
        assert ((labels == 3) == bool(group)).all()
    assert not torch.equal(problem.batch(124, 0)[0], problem.batch(123, 0)[0])
    assert abs(float(problem._images.mean())) < 0.05
    assert abs(float(problem._images.std()) - 1) < 0.05


def test_models_follow_their_seed_and_leave_torch_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    problem = Digits()
    one, same, other = (FlatModule(problem.model(s)).x for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.rand(3), expected)


def test_the_cubic_is_on_the_logits() -> None:
    torch.manual_seed(0)
    plain = cnn(cubic=False)
    cubed = cnn(cubic=True)
    cubed.load_state_dict(plain.state_dict())
    images = torch.randn(4, 1, 28, 28)
    torch.testing.assert_close(cubed(images), plain(images) ** 3)


def test_flat_module_sees_what_it_is_pointed_at() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    start = [p.detach().clone() for p in module.parameters()]
    flat = FlatModule(module)
    assert torch.equal(flat.x, torch.cat([p.reshape(-1) for p in start]))
    elsewhere = torch.arange(flat.x.numel(), dtype=torch.float32)
    assert next(flat.at(elsewhere).parameters())[0, 0] == 0
    elsewhere[0] = 9.0
    assert next(module.parameters())[0, 0] == 9.0  # a view, not a copy
    flat.at(flat.x)
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), start, strict=True))
    g = torch.full_like(elsewhere, 7.0)
    flat.gradient(flat.x.detach(), lambda m: m(torch.ones(2, 3)).sum(), out=g)
    module.zero_grad(set_to_none=True)
    reference = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    with torch.no_grad():
        for p, q in zip(reference.parameters(), start, strict=True):
            p.copy_(q)
    reference(torch.ones(2, 3)).sum().backward()
    torch.testing.assert_close(g, torch.cat([p.grad.reshape(-1) for p in reference.parameters()]))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Digits(network="rnn"), ValueError, "Invalid network value: 'rnn'"),
        (lambda: Digits(slow_class=10), ValueError, "Invalid slow_class value: 10"),
        (lambda: Digits(batch_size=0), ValueError, "Invalid batch_size value: 0"),
        (lambda: Quadratic(dimensions=0), ValueError, "Invalid dimensions value: 0"),
        (lambda: Quadratic(curvature=(0.0, 1.0)), ValueError, "Invalid curvature value: 0"),
        (lambda: Quadratic(centres=(0.0,)), ValueError, "Got 1 centres for 2 shares"),
        (lambda: FlatModule(torch.nn.ReLU()), ValueError, "no parameters to train"),
        (
            lambda: FlatModule(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1).double())),
            ValueError,
            "must share one dtype and device",
        ),
    ],
)
def test_bad_problems(make, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
