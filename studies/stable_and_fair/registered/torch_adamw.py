"""``torch.optim.AdamW`` that takes gradients as they come, registered as a method: what an untreated run would use."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from latecomer.optim import METHODS, TorchOptimizer, register

__all__ = ["NAME"]

NAME = "torch-adamw"


def as_it_comes(params: Any, lr: float, beta: float = 0.1) -> TorchOptimizer:
    """Make the optimizer; ``beta`` is the weight of the new gradient, as elsewhere."""
    with warnings.catch_warnings():  # that nothing corrects for delays is what is compared here
        warnings.simplefilter("ignore", UserWarning)
        return TorchOptimizer(torch.optim.AdamW(params, lr=lr, betas=(1.0 - beta, 0.999)))


def full(delay: int) -> float:
    """1 at any delay."""
    return 1.0


if NAME not in METHODS:
    register(NAME, as_it_comes, influence=full, source="torch")
