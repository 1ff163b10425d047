"""Ordinary optimizers of torch as asynchronous ones: gradients are applied as they come."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from .._util.checks import Range
from .._util.warn import warn
from ._light import LightOptimizer
from .base import Arrival, AsyncOptimizer, Group, Work

__all__ = ["TorchOptimizer"]

_warned: set[type] = set()  # classes of optimizers that the warning was given for in this process


class TorchOptimizer(AsyncOptimizer):
    """Applies gradients as they come with an ordinary optimizer of torch: a late one enters as if it were fresh.

    Nothing corrects for the delay, so take a smaller learning rate than without delays, or a rule of
    `latecomer.optim` that corrects for it. ``method=torch.optim.AdamW`` makes one of these. It shares param groups and
    state with the optimizer inside, so learning-rate schedulers, checkpoints and replays work. An arrival of weight
    zero is counted and makes no step.

    Args:
        optimizer: The optimizer; its parameters are those of this one. It must have made no step.

    Examples:
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     opt = TorchOptimizer(torch.optim.SGD([x], lr=0.5))
        >>> x.grad = torch.ones(1); opt.step()
        >>> x.grad = torch.ones(1); opt.step(delay=1)
        >>> x.item(), opt.t
        (-1.0, 2)
    """

    ranges: ClassVar[Mapping[str, Range]] = {}
    _own_attributes: ClassVar[tuple[str, ...]] = ("_delay", "optimizer")

    def __init__(self, optimizer: Optimizer) -> None:
        name = type(optimizer).__name__
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        required = closure is not None and closure.default is inspect.Parameter.empty
        if required or isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                f"{name} evaluates the loss several times per step, and here one gradient arrives at a time: use an "
                "optimizer whose step() needs no closure, such as torch.optim.AdamW"
            )
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise ValueError(f"{name} needs sparse gradients, and workers send dense ones: use torch.optim.Adam")
        if any(float(state.get("step", 0)) > 0 for state in optimizer.state.values()):
            raise ValueError(f"This {name} has made steps already: pass a new one")
        if type(optimizer) not in _warned:
            _warned.add(type(optimizer))
            warn(
                f"{name} applies gradients as they come: a late one enters as if it were fresh, and nothing corrects "
                "for its delay. The rules of latecomer.optim do",
            )
        self.optimizer = optimizer
        counters = {"method": name, "t": 0, "output": "last", "output_seed": 0, "kept": 0, "keep_next": 1}
        LightOptimizer.__init__(self, optimizer.param_groups, {**optimizer.defaults, **counters})
        self.state = optimizer.state  # some have state from the start
        self._share(optimizer, self)

    @staticmethod
    def _share(to: Optimizer, of: Optimizer) -> None:
        to.param_groups, to.state = of.param_groups, of.state

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters; they start at the current arrival."""
        LightOptimizer.add_param_group(self, dict(param_group))
        self.param_groups[-1] |= {"t": self.param_groups[0]["t"], "moves": "lr" not in param_group}

    def _check_group(self, group: Group) -> None:
        """Accept what the optimizer inside has accepted."""

    def _apply(self, work: Work, arrival: Arrival) -> None:
        if arrival.zero:
            return
        params = self._all_params()
        before = [p.grad for p in params]
        for p in params:
            p.grad = None
        for _, own, grads in work:
            for p, g in zip(own, grads, strict=True):
                p.grad = g
        try:
            self.optimizer.step()
        finally:
            for p, grad in zip(params, before, strict=True):
                p.grad = grad

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict`, so that the run continues bit for bit; raise if it belongs to another optimizer."""
        if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
            raise ValueError("Not the state_dict of an optimizer")
        saved, own = (
            [group.get("method") for group in groups] for groups in (state_dict["param_groups"], self.param_groups)
        )
        if saved != own:
            raise ValueError(f"This state_dict belongs to {saved}, this optimizer is {own}")
        # Its own loader, because it knows how to treat its state: step counters, older formats.
        self.optimizer.load_state_dict(state_dict)
        self._share(self, self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return buffers and param groups, as the optimizer inside packs them."""
        return self.optimizer.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "optimizer" in state:
            self._share(self.optimizer, self)
