"""Torch's optimizer without its compiler: a process that trains need not import what it never uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

__all__ = ["LightOptimizer"]

# Torch's own import torch._dynamo when first called, a second or two for every process; this is what they wrap.
_add_param_group: Callable[[Optimizer, dict[str, Any]], None] = inspect.unwrap(Optimizer.add_param_group)
_state_dict: Callable[[Optimizer], dict[str, Any]] = inspect.unwrap(Optimizer.state_dict)
_zero_grad: Callable[[Optimizer, bool], None] = inspect.unwrap(Optimizer.zero_grad)
_load_state_dict: Callable[[Optimizer, dict[str, Any]], None] = inspect.unwrap(Optimizer.load_state_dict)


class LightOptimizer(Optimizer):
    """What `torch.optim.Optimizer` is, with methods that are not shielded from a compiler that nobody has called.

    Examples:
        >>> import torch
        >>> opt = LightOptimizer([torch.nn.Parameter(torch.ones(2))], {"lr": 0.1})
        >>> opt.state_dict()["param_groups"]
        [{'lr': 0.1, 'params': [0]}]
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters."""
        _add_param_group(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of the gradients, or fill them with zeros."""
        _zero_grad(self, set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return buffers and param groups."""
        return _state_dict(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        _load_state_dict(self, state_dict)
