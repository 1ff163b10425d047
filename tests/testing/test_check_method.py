"""`check_method` passes what is right, and names what is wrong in a sentence."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import latecomer as lc
from latecomer.optim import Arrival, AsyncOptimizer, Method
from latecomer.policy import Decision, Policy, Ticket
from latecomer.testing import RULES, MethodError, check_method
from support import EVERY, OPTIONS


@pytest.mark.parametrize("name", EVERY)
def test_every_method_of_the_library_keeps_every_rule(name: str) -> None:
    declared = lc.optim.METHODS[name].weight is not None
    assert check_method(name, **OPTIONS[name]) == [RULES[rule] for rule in RULES if declared or rule != "influence"]


@pytest.mark.filterwarnings("ignore:.*applies gradients as they come")
@pytest.mark.parametrize(
    "method",
    [torch.optim.AdamW, torch.optim.Adagrad, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True)],
    ids=["AdamW", "Adagrad", "function"],
)
def test_optimizers_of_torch_keep_every_rule_but_declare_no_influence(method: Any) -> None:
    assert check_method(method) == [text for name, text in RULES.items() if name != "influence"]


# ---- rules that are broken on purpose, each in one way --------------------------------------------------------------


class Rule(AsyncOptimizer):
    """``x -= lr·g``, to be spoiled."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {}, lr=lr)

    def _update(self, group: Any, params: list[Any], grads: list[Any], arrival: Arrival) -> None:
        if not arrival.zero:
            for p, g in zip(params, grads, strict=True):
                p.sub_(self.changed(p, g, arrival), alpha=group["lr"])

    def changed(self, p: Any, g: Any, arrival: Arrival) -> Any:
        return g


class Unmoved(Rule):
    def _update(self, group: Any, params: list[Any], grads: list[Any], arrival: Arrival) -> None:
        params[:] = [p - group["lr"] * g for p, g in zip(params, grads, strict=True)]  # not in place, so it is lost


class Unsaved(Rule):
    mean = 0.0

    def changed(self, p: Any, g: Any, arrival: Arrival) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * g.mean().item()
        return g - self.mean


class GlobalNoise(Rule):
    def changed(self, p: Any, g: Any, arrival: Arrival) -> Any:
        return g + 0.1 * torch.randn_like(g)


class Draws(Rule):
    def changed(self, p: Any, g: Any, arrival: Arrival) -> Any:
        random.random()
        return g


class MutatesGradients(Rule):
    def changed(self, p: Any, g: Any, arrival: Arrival) -> Any:
        return g.clamp_(-1.0, 1.0)


class KeepsGradients(Rule):
    def changed(self, p: Any, g: Any, arrival: Arrival) -> Any:
        last = self.state[p].get("last", g)
        self.state[p]["last"] = g
        return (g + last) / 2


class ReadsZeros(Rule):
    def _update(self, group: Any, params: list[Any], grads: list[Any], arrival: Arrival) -> None:
        for p, g in zip(params, grads, strict=True):
            p.sub_(g, alpha=group["lr"])


class MovesParameters(Rule):
    def changed(self, p: Any, g: Any, arrival: Arrival) -> Any:
        p.data = p.data.clone()
        return g


class ForgetsToCount(Rule):
    def _advance(self, arrival: Arrival, grads: Any) -> None:
        super()._advance(arrival, grads)
        if arrival.delay > 3:
            for group in self.param_groups:
                group["t"] -= 1


class TouchesEverything(Rule):
    def _apply(self, work: Any, arrival: Arrival) -> None:
        super()._apply(work, arrival)
        for p in self._all_params():
            p.mul_(0.99)


class ChangesAtOnce(Rule):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        with torch.no_grad():
            for p in self._all_params():
                p.zero_()


class Explodes(Rule):
    def changed(self, p: Any, g: Any, arrival: Arrival) -> Any:
        return g / max(0, 20 - arrival.delay)


class SendsSomethingElse(Rule):
    def contribution(self, grads: Any, previous_grads: Any, version: int) -> Any:
        return [g if g is None else g.sign() for g in grads]


class KnowsStepOnly(Rule):
    def step(self, closure: Any = None, **given: Any) -> Any:
        for group in self.param_groups:
            group["lr"] *= 0.99
        return super().step(closure, **given)


class OddWorkersCountLess(Rule):
    """Its weight depends on who sends a gradient, not only on its delay."""

    def changed(self, p: Any, g: Any, arrival: Arrival) -> Any:
        return g * (0.5 if arrival.worker in (1, 3) else 1.0)


class HoldsOutside(Policy):
    """Counts in an attribute, which no checkpoint has."""

    name = "holds-outside"

    def __init__(self) -> None:
        super().__init__()
        self._n = 0

    def __repr__(self) -> str:
        return "HoldsOutside()"

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        self._n += 1
        return Decision("apply" if self._n % 3 else "drop")


def half(delay: int) -> float:
    return 0.5**delay


def full(delay: int) -> float:
    return 1.0


def two(delay: int) -> float:
    return 2.0


def test_a_rule_that_moves_nothing_is_found() -> None:
    with pytest.raises(
        MethodError, match="expected other parameters after the arrivals, changed in place, found a par"
    ):
        check_method(Unmoved)


BROKEN = {
    "saved": (Unsaved, "after a load at arrival 1, found parameters up to"),
    "repeated": (GlobalNoise, "expected the same bits twice, found parameters up to"),
    "generators": (Draws, "expected the global generator of random as it was, found that the rule drew from it"),
    "zero": (ReadsZeros, "expected the same bits whatever the values of arrivals that needs"),
    "skipped": (TouchesEverything, "expected a parameter without p.grad as it was, found parameters up to"),
    "made": (ChangesAtOnce, "expected the parameters as they were, found others"),
    "sent": (SendsSomethingElse, "expected 1 times the gradient and 0 times the one before it, found something else"),
    "alone": (KnowsStepOnly, r"expected the bits of receive\(\), which a server calls, found parameters up to"),
}


@pytest.mark.parametrize(("rule", "method", "words"), [(name, *rest) for name, rest in BROKEN.items()])
def test_a_broken_rule_is_named_with_what_was_expected_and_found(rule: str, method: Any, words: str) -> None:
    """Every rule before it is kept: the error is about what is wrong."""
    sentence = rf'\.{method.__name__} breaks the rule "{re.escape(RULES[rule])}": .*{words}'
    with pytest.raises(MethodError, match=sentence):
        check_method(method)


@pytest.mark.parametrize(
    ("rule", "method", "words"),
    [
        ("read", MutatesGradients, "expected gradients as they were passed, found changed ones after arrival 1"),
        ("read", KeepsGradients, "expected the bits of a run whose gradients are not overwritten afterwards"),
        ("orders", MovesParameters, "expected the parameters in their memory, changed in place, found new memory"),
        ("orders", ForgetsToCount, r"expected t = \d+ after arrival \d+, found t = \d+|expected no error, found"),
        ("orders", Explodes, r"expected finite parameters .*, found NaN or infinity after arrival 31"),
        ("influence", Method("m", Rule, weight=half), "expected 0.5 for arrival 2 with delay 1, as declared, found 1"),
        ("influence", Method("m", Rule, weight=two), r"expected an influence of 1 without delay, found .*\(0\) = 2"),
        ("influence", Method("m", OddWorkersCountLess, weight=full), r"expected 1 for arrival \d+ .*, found 0.5"),
        ("resumed", Method("m", Rule, policy=HoldsOutside), "expected .*, found"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_other_ways_to_break_a_rule_are_caught_too(rule: str, method: Any, words: str) -> None:
    with pytest.raises(MethodError, match=f'breaks the rule "{re.escape(RULES[rule])}": .*({words})'):
        check_method(method)


def test_the_rule_that_was_spoiled_is_right_before() -> None:
    assert len(check_method(Rule)) == len(RULES) - 1
    assert len(check_method(Method("m", Rule, weight=full))) == len(RULES)


class Fresh(Policy):
    name = "fresh"

    def __init__(self, workers: int, oldest: int) -> None:
        super().__init__()
        self.workers, self.oldest = workers, oldest

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        n = self.state["n"] = self.state.get("n", 0) + 1
        return Decision("flush" if n % 2 == 0 else "hold")

    def cancel(self, in_flight: Sequence[Ticket], version: int) -> list[Ticket]:
        return [t for t in in_flight if version - t.version > self.oldest]


def test_a_method_with_a_policy_is_checked_with_it() -> None:
    assert len(check_method(Method("m", Rule, policy=Fresh), oldest=2)) == len(RULES) - 1
    with pytest.raises(ValueError, match="m needs a value for 'oldest'"):
        check_method(Method("m", Rule, policy=Fresh))


def test_bad_arguments_are_errors_of_their_own() -> None:
    with pytest.raises(ValueError, match=r"Unknown rules: nan \(expected some of made, orders"):
        check_method("momentum", only=["nan"])
    with pytest.raises(ValueError, match="momentum has no option 'gamma'"):
        check_method("momentum", gamma=1)


def test_a_broken_engine_is_named_by_the_rule_it_breaks() -> None:
    class Blind(lc.engines.inline.InlineEngine):
        def events(self, timeout: float | None = None) -> Any:
            from dataclasses import replace

            return [replace(e, finite=True) if hasattr(e, "finite") else e for e in super().events(timeout)]

    class Silent(lc.engines.inline.InlineEngine):
        def kill(self, seat: int) -> None:
            raise KeyError(seat)

    rule = (
        'Blind breaks the rule "NaN is reported": expected Done with finite=False for a gradient of NaN, found finite=T'
    )
    with pytest.raises(lc.testing.EngineError, match=rule):
        lc.testing.check_engine(Blind, processes=False, only=["nan"])
    with pytest.raises(lc.testing.EngineError, match=r'Silent breaks the rule "an idle worker can be .*": KeyError: 1'):
        lc.testing.check_engine(Silent, processes=False, only=["killed"])
