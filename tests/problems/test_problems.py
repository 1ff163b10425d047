"""Problems: gradients, metrics against their definition, seeds."""

from __future__ import annotations

import hashlib
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latecomer.core.flat import FlatModule
from latecomer.problems import Digits, Logistic, Quadratic
from latecomer.problems.base import scores
from latecomer.problems.digits import digit_images
from latecomer.problems.images import some_of
from latecomer.problems.networks import cnn


@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60),
    slow=st.sets(st.integers(0, 4), max_size=5),
)
def test_scores_are_those_of_the_textbook(pairs: list[tuple[int, int]], slow: set[int]) -> None:
    labels, predictions = (np.array(column) for column in zip(*pairs, strict=True))
    got = scores(labels, predictions, classes=5, slow=slow)
    per_class = []
    for c in range(5):
        hits = pairs.count((c, c))
        precision = hits / max(1, sum(guess == c for _, guess in pairs))
        recall = hits / max(1, sum(label == c for label, _ in pairs))
        per_class.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    assert got["accuracy"] == pytest.approx(sum(label == guess for label, guess in pairs) / len(pairs))
    assert got["f1"] == pytest.approx(sum(per_class) / 5)
    assert [got[f"f1_{c}"] for c in range(5)] == pytest.approx(per_class)
    for key, chosen in (("f1_slow", slow), ("f1_fast", set(range(5)) - slow)):
        expected = sum(per_class[c] for c in chosen) / len(chosen) if chosen else math.nan
        assert got[key] == pytest.approx(expected, nan_ok=True)


def test_scores_are_those_of_scikit_learn() -> None:
    """What scikit-learn 1.9.1 gives with ``zero_division=0``; the last class neither occurs nor is guessed."""
    labels, predictions = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 3]), np.array([0, 1, 0, 1, 3, 3, 3, 3, 0, 2])
    got = scores(labels, predictions, classes=5, slow={3})
    assert got["accuracy"] == pytest.approx(0.5)
    assert [got[f"f1_{c}"] for c in range(5)] == pytest.approx([0.666666666667, 0.5, 0.0, 0.5, 0.0])


def test_the_digits_are_those_of_scikit_learn() -> None:
    """The bytes of ``load_digits()``, scaled and split as they were when scikit-learn was asked for them."""
    train, test = digit_images()
    digests = [hashlib.sha256(array.tobytes()).hexdigest()[:16] for array in (*train, *test)]
    assert digests == ["b47943876e17c527", "c31c6c9a4b0b3e6a", "d1e39879765df041", "706323aadbd0629c"]


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


def test_flat_module_keeps_the_layout_it_was_given() -> None:
    network = cnn(channels=(3, 4))
    images, labels = torch.randn(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
    expected = {name: p.detach().clone() for name, p in network.named_parameters()}
    functional = torch.nn.functional
    functional.cross_entropy(network(images), labels).backward()
    wanted = {name: p.grad.clone() for name, p in network.named_parameters()}
    assert network[3].weight.stride() != network[3].weight.contiguous().stride()
    flat = FlatModule(network)
    assert network[3].weight.is_contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(flat.x.detach())
    flat.gradient(flat.x.detach(), lambda m: functional.cross_entropy(m(images), labels), out)
    for (name, _), view in zip(network.named_parameters(), flat.views(out), strict=True):
        assert torch.equal(view, wanted[name]), name
    assert all(torch.equal(value, expected[name]) for name, value in flat.state_dict().items())


def tiny_mnist(name: str, folder: str | None = None) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    for part, count in (("train", 300), ("test", 50)):
        labels = draw.integers(10, size=count)
        images = draw.integers(0, 120, (count, 28, 28)) + 12 * labels[:, None, None]
        made |= {f"{part}_images": images.astype(np.uint8), f"{part}_labels": labels}
    return made


@pytest.mark.parametrize("data", ["digits", "mnist"])
def test_logistic_is_convex_and_its_minimum_certified(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[Logistic.__module__], "load", tiny_mnist)
    problem = Logistic(data=data, images=200, radius=2.0)
    size = problem.minimiser.numel()
    assert float(problem.minimiser.norm()) <= 2.0 + 1e-9
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):  # no point of the ball is lower
        other = torch.randn(size, generator=draw, dtype=torch.float64)
        near = problem.minimiser + 0.01 * other / other.norm()
        for point in (2.0 * other / other.norm(), near * min(1.0, 2.0 / float(near.norm()))):
            assert problem.objective(point) >= problem.minimum - 1e-7
    x = torch.randn(size, generator=draw, dtype=torch.float64) / 10
    model, batch, out = problem.model(0), problem.batch(5, 1), torch.empty(size, dtype=torch.float64)
    assert problem.gradient(x, batch, out)
    with torch.no_grad():
        model.weight.copy_(x.view_as(model.weight))
    problem.loss(model, batch).backward()
    torch.testing.assert_close(out, model.weight.grad.flatten())
    assert set(batch[1].tolist()) == {9}  # group 1 is the slow class
    result = problem.evaluate(model)
    assert result["excess"] == pytest.approx(problem.objective(x) - problem.minimum)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Logistic(data="letters"), ValueError, "Invalid data value: 'letters'"),
        (lambda: Logistic(images=3), ValueError, "Invalid images value: 3"),
        (lambda: Digits(network="rnn"), ValueError, "Invalid network value: 'rnn'"),
        (lambda: Digits(slow_class=10), ValueError, "Invalid slow_class value: 10"),
        (lambda: Digits(batch_size=0), ValueError, "Invalid batch_size value: 0"),
        (lambda: Quadratic(dimensions=0), ValueError, "Invalid dimensions value: 0"),
        (lambda: Quadratic(curvature=(0.0, 1.0)), ValueError, "Invalid curvature value: 0"),
        (lambda: Quadratic(centres=(0.0,)), ValueError, "Got 1 centres for 2 shares"),
        (lambda: FlatModule(torch.nn.ReLU()), ValueError, "no parameters to train"),
        (
            lambda: FlatModule(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, device="meta"))),
            ValueError,
            "must share one device",
        ),
    ],
)
def test_bad_problems(make, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_the_validation_digits_are_neither_trained_on_nor_tested_on() -> None:
    (train, _), (held, labels) = digit_images("validation")
    rows = {part.tobytes() for part in train}
    test = {part.tobytes() for part in digit_images()[1][0]}
    own = {part.tobytes() for part in held}
    assert not own & rows
    assert not own & test
    assert set(labels) == set(range(10))
    with pytest.raises(ValueError, match="Invalid split value: 'train'"):
        Digits(split="train")
    assert repr(Digits()) == "Digits(network='cnn', cubic=True, slow_class=9, batch_size=16)"
    assert "split='validation'" in repr(Digits(split="validation"))


def test_losses_of_groups_average_to_the_loss() -> None:
    digits = Digits(network="mlp")
    model = digits.model(0)
    with torch.no_grad():
        fast, slow = digits.losses_by_group(model)
        share = np.isin(digits._test_labels, [9]).mean()
        assert (1 - share) * fast + share * slow == pytest.approx(digits.evaluate(model)["loss"], rel=1e-5)
    quadratic = Quadratic(dimensions=2, curvature=(1.0, 1.0), centres=(0.0, 3.0), start=5.0)
    assert quadratic.losses_by_group(quadratic.model(0)) == (25.0, 4.0)


def test_few_images_are_spread_over_the_split() -> None:
    images, labels = np.arange(10), np.arange(10)
    assert some_of((images, labels), None)[1] is labels
    assert some_of((images, labels), 4)[1].tolist() == [0, 3, 6, 9]
    with pytest.raises(ValueError, match="Invalid evaluated value: 0"):
        some_of((images, labels), 0)
