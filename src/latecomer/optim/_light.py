"""torch's optimizer base class without the import of torch's compiler, which takes seconds."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["LightOptimizer"]

# torch wraps these methods so that the first call imports torch._dynamo, one to two seconds per process.
_add_param_group: Callable[[Optimizer, dict[str, Any]], None] = inspect.unwrap(Optimizer.add_param_group)
_state_dict: Callable[[Optimizer], dict[str, Any]] = inspect.unwrap(Optimizer.state_dict)
_zero_grad: Callable[[Optimizer, bool], None] = inspect.unwrap(Optimizer.zero_grad)
_load_state_dict: Callable[[Optimizer, dict[str, Any]], None] = inspect.unwrap(Optimizer.load_state_dict)


class LightOptimizer(Optimizer):
    """`torch.optim.Optimizer` with the unwrapped methods."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters."""
        _add_param_group(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients to None, or to zero."""
        _zero_grad(self, set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return buffers and param groups; lists and dicts in these are copies, so rules may change theirs in place."""
        packed = _state_dict(self)
        for group in packed["param_groups"]:
            group.update({key: copy.copy(value) for key, value in group.items() if isinstance(value, (list, dict))})
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict`; every state keeps its dtype, where torch casts it to that of its parameter."""
        _load_state_dict(self, state_dict)
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        for i, p in zip(ids, (p for group in self.param_groups for p in group["params"]), strict=True):
            for key, saved in state_dict["state"].get(i, {}).items():
                if isinstance(saved, Tensor) and saved.dtype is not self.state[p][key].dtype:
                    self.state[p][key] = saved.detach().clone().to(self.state[p][key].device)
