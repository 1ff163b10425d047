"""The state of a run: everything that changes when an arrival is counted, simulated or on real workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .._util.naming import stable_name
from .._util.places import user_code
from .._util.warn import warn
from ..optim import AsyncOptimizer, Method, as_method
from ..optim._kernels import is_finite
from ..policy import Policy, Ticket
from ..problems.base import Problem
from ..server import Outcome, Server
from ..slots import FlatSlots, VersionSlots
from .batchnorm import RunningAverages
from .devices import Crossing
from .flat import FlatModule, digest
from .groups import Arrangement, ParamGroups
from .structure import structure, structure_digest

__all__ = ["NON_FINITE_LIMIT", "Driver", "RunState", "hyper_parameters"]

NON_FINITE_LIMIT = 100
"""Number of consecutive non-finite contributions that ends a run."""
_REMEMBERED = ("m", "v", "d", "q", "exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum")
"""State of optimizers that stays zero as long as all gradients are: ours and torch's."""
_MUST_HAVE_MOVED = 100  # number of applied contributions after which unchanged parameters give a warning


class RunState:
    """Model, optimizer, learning-rate scheduler, server and batch-normalisation statistics of a run.

    The simulator and the training loop only decide *when* something arrives. The server makes the update, and
    `after_arrival` does the rest.

    Args:
        problem: What to train on.
        method: The method, or its name.
        options: Its hyper-parameters.
        workers: Number of workers at the start.
        policy: Decides what the server does with an arrival.
        seed: Initialises the model.
        sample_seed: Draws the samples; ``seed`` by default.
        groups: Names of the groups, for the trace.
        clock: ``"none"``, ``"virtual"`` or ``"real"``.
        scheduler: Function of the optimizer that returns a learning-rate scheduler, or None. It steps per update.
        param_groups: A function of the model that returns torch's groups, or a mapping from name patterns to options.
        device: Device of the parameters and of the optimizer's state.
        slots: Memory for the points of tickets in flight; tensors of this process by default.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method | str,
        options: Mapping[str, Any],
        *,
        workers: int,
        policy: Policy,
        seed: int = 0,
        sample_seed: int | None = None,
        groups: Sequence[str] = ("all",),
        clock: str = "none",
        scheduler: Callable[[Any], Any] | None = None,
        param_groups: ParamGroups | None = None,
        device: torch.device | str = "cpu",
        slots: FlatSlots | None = None,
    ) -> None:
        rule = as_method(method)
        self.problem, self.method, self.options, self.seed = problem, rule.name, dict(options), seed
        self.flat = FlatModule(problem.model(seed), device)
        self.start = digest(self.flat.x)
        self.averages = RunningAverages(self.flat.module)
        self.arrangement = Arrangement(self.flat, rule, param_groups)
        self.optimizer = self.arrangement.optimizer(options)
        # A function has its hyper-parameters in it, so they are read off the optimizer.
        self.optimizer_inside = None if rule.takes_options else hyper_parameters(self.optimizer)
        self._scheduler_name = stable_name(scheduler)
        self.scheduler = None if scheduler is None else _made_scheduler(scheduler, self.optimizer)
        # The slots of an engine are in the memory of this machine, not of a device.
        elsewhere = slots is not None and self.flat.device.type != "cpu"
        self._arriving = torch.empty_like(self.flat.x, requires_grad=False) if elsewhere else None
        self.slots = VersionSlots(self._new_points) if slots is None else slots
        self._cross = Crossing()
        self.slots.arrange(self.arrangement.split, self._new_points() if elsewhere else [], self._cross)
        self.server = Server(
            self.optimizer,
            workers=workers,
            policy=policy,
            seed=seed if sample_seed is None else sample_seed,
            groups=groups,
            clock=clock,
            slots=self.slots,
        )
        self.diverged_at: int | None = None
        self._bad_in_a_row = self._applied = 0
        self._updates = self.optimizer.t

    def _new_points(self) -> list[Tensor]:
        return [torch.empty_like(self.flat.x, requires_grad=False) for _ in range(self.optimizer.points)]

    def arriving(self, contribution: Tensor) -> list[Tensor]:
        """Return a flat contribution as the optimizer takes it: on its device, in its shapes."""
        if self._arriving is not None:
            contribution = self._cross(self._arriving, contribution)
        return self.arrangement.split(contribution)

    @property
    def finite(self) -> bool:
        """Whether the parameters are free of NaN and infinities."""
        return is_finite(self.flat.x.detach())

    def after_arrival(self, ticket: Ticket, outcome: Outcome, seen: Tensor | None = None) -> None:
        """Update running statistics, learning rate and divergence check after an arrival that the server has counted.

        Args:
            ticket: The ticket that arrived.
            outcome: What the server did with it.
            seen: Batch-normalisation statistics of its job; by default those of the last job in this process.
        """
        applied = outcome.status == "applied"
        if self.averages.size and outcome.finite and not ticket.zero and (applied or outcome.status == "held"):
            # Held contributions count too: their samples are part of the mean that is applied later.
            if seen is not None:
                self.averages.from_last_job.copy_(seen)
            self.averages.merge()
        if self.scheduler is not None and self.optimizer.t > self._updates:
            self._updates = self.optimizer.t
            # Else torch warns that the scheduler has stepped before the optimizer.
            self.optimizer._opt_called = True  # type: ignore[attr-defined]
            self.scheduler.step()
        if applied:
            self._bad_in_a_row = 0
            self._applied += 1
            if self._applied == _MUST_HAVE_MOVED:
                self._warn_if_unmoved()
        elif not outcome.finite:
            self._bad_in_a_row += 1
            if self._bad_in_a_row >= NON_FINITE_LIMIT or not self.finite:
                self.diverged_at = outcome.arrival

    def _warn_if_unmoved(self) -> None:
        if digest(self.flat.x) == self.start or self._only_decayed():
            rates = sorted({float(group["lr"]) for group in self.optimizer.param_groups})
            warn(
                f"After {_MUST_HAVE_MOVED} applied contributions no parameter has changed by a gradient (lr is now "
                f"{', '.join(f'{lr:g}' for lr in rates)}). Usual reasons: lr is 0 or too small for the parameters' "
                "dtype, the loss does not depend on the parameters, or those it depends on have requires_grad=False",
            )

    def _only_decayed(self) -> bool:
        """Whether the parameters have moved by weight decay alone: every gradient that was remembered is zero."""
        if not any(group.get("weight_decay") for group in self.optimizer.param_groups):
            return False
        states = [state for state in self.optimizer.state.values() if isinstance(state, dict)]
        remembered = [state[key] for state in states for key in _REMEMBERED if isinstance(state.get(key), Tensor)]
        return bool(remembered) and not any(bool(buffer.any()) for buffer in remembered)

    def describe(self) -> dict[str, Any]:
        """Return what identifies the run, so that a checkpoint of another run is refused."""
        options = {name: stable_name(value) for name, value in sorted(self.options.items())}
        if self.optimizer_inside is not None:
            options["optimizer"] = self.optimizer_inside
        known = {"problem": repr(self.problem), "method": self.method, "options": options, "seed": self.seed}
        known["model"] = structure_digest(structure(self.flat.module))
        if self.arrangement.groups is not None:
            known["param_groups"] = self.arrangement.describe()
        return known | {"policy": repr(self.server.policy), "scheduler": self._scheduler_name}

    def state_dict(self) -> dict[str, Any]:
        """Return everything, with tensors copied."""
        return _copied(  # type: ignore[no-any-return]
            {
                "server": self.server.state_dict(),
                "buffers": dict(self.flat.module.named_buffers()),
                "scheduler": None if self.scheduler is None else dict(self.scheduler.state_dict()),
                "bad_in_a_row": self._bad_in_a_row,
                "applied": self._applied,
                "start": self.start,
                "diverged_at": self.diverged_at,
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state dict."""
        self.server.load_state_dict(state["server"])
        for name, buffer in self.flat.module.named_buffers():
            buffer.copy_(state["buffers"][name])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._bad_in_a_row, self.diverged_at = state["bad_in_a_row"], state["diverged_at"]
        self._applied, self.start = state["applied"], state["start"]
        self._updates = self.optimizer.t

    def output(self) -> dict[str, Tensor]:
        """Return the state dict of the iterate chosen by the optimizer's ``output=``."""
        chosen = self.arrangement.joined(self.optimizer.output_parameters())
        return {name: value.detach().to("cpu", copy=True) for name, value in self.flat.at(chosen).state_dict().items()}


def hyper_parameters(optimizer: AsyncOptimizer) -> str:
    """Describe an optimizer by its class and the hyper-parameters of its param groups."""
    groups = [
        {name: stable_name(value) for name, value in sorted(group.items()) if name not in optimizer.bookkeeping}
        for group in optimizer.param_groups
    ]
    inside = getattr(optimizer, "optimizer", optimizer)
    return f"{type(inside).__qualname__} {groups}"


def _made_scheduler(make: Callable[[Any], Any], optimizer: Any) -> Any:
    """Call the user's function; refuse what is no scheduler, and one that needs a metric."""
    with user_code("The scheduler function"):
        scheduler = make(optimizer)
    is_optimizer = isinstance(scheduler, torch.optim.Optimizer)  # which has all three methods
    methods = ("step", "state_dict", "load_state_dict")
    if is_optimizer or not all(callable(getattr(scheduler, name, None)) for name in methods):
        shown = f"the optimizer {type(scheduler).__name__}" if is_optimizer else repr(scheduler)
        raise TypeError(
            f"Invalid scheduler: the function returned {shown} (expected a torch learning-rate scheduler, such "
            "as torch.optim.lr_scheduler.StepLR(optimizer, 100))"
        )
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(
            "ReduceLROnPlateau follows a metric, and here the learning rate follows the updates, so that a run can be "
            "replayed: use a scheduler whose step() needs no argument, such as CosineAnnealingLR"
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError(
            f"The {type(scheduler).__name__} that the scheduler function returned is for another optimizer, so it "
            "would change nothing: use the function's argument, lambda optimizer: StepLR(optimizer, 100)"
        )
    return scheduler


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value


class Driver:
    """What drives a run, and tells callbacks which one it is."""

    state: RunState

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.state.method

    @property
    def options(self) -> Mapping[str, Any]:
        """Its hyper-parameters."""
        return self.state.options
