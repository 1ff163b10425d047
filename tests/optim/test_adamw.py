"""What AdamW with catch-up promises beyond equality with its twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import latecomer as lc
from latecomer.optim import BalancedAdamW, CatchUpAdamW
from support import feed, flat, like, parameters, relative

RULES = [CatchUpAdamW, BalancedAdamW]


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 10**6), beta=st.floats(0.01, 0.99), beta2=st.floats(0.001, 0.5))
def test_zero_delay_is_torch_adamw(rule: type[CatchUpAdamW], seed: int, beta: float, beta2: float) -> None:
    ours, theirs = parameters(seed=seed), parameters(seed=seed)
    opt = rule(ours, lr=0.01, beta=beta, beta2=beta2, weight_decay=0.1)
    peer = torch.optim.AdamW(theirs, lr=0.01, betas=(1 - beta, 1 - beta2), weight_decay=0.1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        for p, q, g in zip(ours, theirs, like(ours, generator), strict=True):
            p.grad, q.grad = g, g.clone()
        opt.step()
        peer.step()
        assert relative(flat(ours), flat(theirs)) < 1e-10


@pytest.mark.parametrize("rule", RULES)
def test_the_defaults_are_those_of_torch_adamw(rule: type[CatchUpAdamW]) -> None:
    ours, theirs = parameters(), parameters()
    opt, peer = rule(ours), torch.optim.AdamW(theirs)
    for p, q in zip(ours, theirs, strict=True):
        p.grad = q.grad = torch.ones_like(p)
    opt.step()
    peer.step()
    assert relative(flat(ours), flat(theirs)) < 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_slow_samples_have_their_influence(rule: type[CatchUpAdamW]) -> None:
    """Gradients of one size: the denominator is the same for all, and the rule is linear in what arrives."""
    trace = lc.delays.DataDependent(workers=7, slow_share=0.1).trace(steps=3000, seed=0)
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = rule([x], lr=1.0, beta=0.1, weight_decay=0.0)
    signs = np.where(trace.group == 1, 1.0, -1.0)
    for delay, sign in zip(trace.delay.tolist(), signs.tolist(), strict=True):
        feed(opt, [torch.tensor([sign], dtype=torch.float64)], delay=delay)
    assert x.item() / -signs.sum() == pytest.approx(1.0, abs=0.004)


def test_a_group_whose_gradients_come_later_starts_later() -> None:
    """As in torch, where every parameter counts its own steps."""
    pairs = [[torch.nn.Parameter(torch.zeros(1)) for _ in range(2)] for _ in range(2)]
    ours, theirs = ([{"params": [p]} for p in pair] for pair in pairs)
    opt, peer = CatchUpAdamW(ours, lr=0.1), torch.optim.AdamW(theirs, lr=0.1)
    for t in range(60):
        for pair in pairs:
            pair[0].grad = torch.ones(1)
            pair[1].grad = torch.ones(1) if t > 40 else None
        opt.step()
        peer.step()
    for p, q in zip(*pairs, strict=True):
        torch.testing.assert_close(p, q)


def test_a_huge_gradient_neither_moves_far_nor_stays_in_the_denominator() -> None:
    """What the clip is for: without it v is so large afterwards that ordinary gradients move nothing."""
    moved = {}
    for rule in RULES:
        x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        opt = rule([x], lr=0.01, beta=0.1, beta2=0.01, weight_decay=0.0)
        for t in range(300):
            size = 1e4 if t == 100 else 1.0
            feed(opt, [torch.tensor([size], dtype=torch.float64)], delay=t % 3 if t > 3 else 0)
            if t == 110:
                after = x.item()
        moved[rule] = after - x.item()
    assert moved[BalancedAdamW] == pytest.approx(189 * 0.01, rel=0.05)  # every gradient agrees: steps of lr
    assert moved[CatchUpAdamW] < 0.1 * moved[BalancedAdamW]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("beta2", 1.5, r"Invalid beta2 value: 1.5 \(expected 0 < beta2 <= 1\); beta2 is the weight of the new square"),
        ("eps", -1.0, "Invalid eps value: -1"),
    ],
)
def test_bad_options(option: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CatchUpAdamW(parameters(), **{option: value})
