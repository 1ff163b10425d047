"""What all asynchronous optimizers share: counting arrivals, delays, state dicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._util.checks import AT_LEAST_ZERO, Range, whole_number
from ._arrival import Arrival
from ._light import LightOptimizer
from ._loading import check_shapes, state_dict_of_groups

__all__ = ["Arrival", "AsyncOptimizer", "Grads", "Params", "copied"]

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
Grads = Sequence[Tensor | None]
Group = dict[str, Any]
Work = list[tuple[Group, list[Tensor], list[Tensor]]]
"""Per param group: the group, its parameters that have a gradient, and what arrived for them."""


def copied(p: Tensor) -> Tensor:
    """Return a copy of a parameter, not a parameter itself, as the start of a buffer."""
    return p.detach().clone()


class AsyncOptimizer(LightOptimizer):
    """Base of the update rules: a `torch.optim.Optimizer` whose `step` takes the delay of the gradient.

    The iterate just before arrival ``t`` is ``x_t``; `version` is the index of the iterate that the parameters hold
    now. Read it when a gradient computation starts; the delay at arrival is the difference. Every optimizer has the
    arguments below; most have more.

    Examples:
        >>> import latecomer as lc
        >>> x = torch.nn.Parameter(torch.zeros(2))
        >>> opt = lc.optim.AsyncSGD([x], lr=0.5)
        >>> late = opt.version                          # a gradient computation starts here ...
        >>> x.grad = torch.ones(2); opt.step()
        >>> x.grad = torch.ones(2); opt.step(delay=opt.version - late)   # ... and arrives here
        >>> x.tolist(), opt.t
        ([-1.0, -1.0], 2)

    Args:
        params: Parameters, named parameters or param groups, as for any torch optimizer.
        lr: Learning rate, the paper's eta.
        weight_decay: Decoupled weight decay (as in AdamW), multiplied by the learning rate of the update.
        output: ``"last"``, or ``"uniform"`` to keep one iterate drawn uniformly from x_1..x_T, as Algorithm 1 does, at
            the cost of one copy of the parameters; see `output_parameters`.
        output_seed: Seeds the draw of ``output="uniform"``.
    """

    method: ClassVar[str] = ""
    """Name of the rule in `latecomer.optim.METHODS`; a state dict of another rule is refused."""
    points: ClassVar[int] = 1
    """Number of points at which a worker evaluates its sample: 2 for the rules that need g'."""
    first_version_once: ClassVar[bool] = False
    """Whether late gradients of version 1 count as zero, as in Algorithm 1."""
    ranges: ClassVar[Mapping[str, Range]] = {"lr": AT_LEAST_ZERO, "weight_decay": AT_LEAST_ZERO}
    """Allowed range of each numeric hyper-parameter of a param group."""

    reads_point: ClassVar[bool] = False
    """Whether the rule needs `Arrival.point`, the parameters that a late gradient was computed at."""
    holds: ClassVar[bool] = False
    """Whether the rule keeps what a policy holds, by `hold`; else the server averages it."""

    identity: ClassVar[tuple[str, ...]] = ("method",)
    """Entries of a param group that must agree for a checkpoint to match."""
    bookkeeping: ClassVar[frozenset[str]] = frozenset(
        {"method", "t", "kept", "keep_next", "runs", "m_scale", "params", "moves"}
    )
    """Entries of a param group that are internal, and not shown."""
    own_shapes: ClassVar[frozenset[str]] = frozenset()
    """State tensors that have another shape than their parameter."""

    _delay: int = 0
    _own_attributes: ClassVar[tuple[str, ...]] = ("_delay",)

    def __init__(
        self,
        params: Params,
        options: dict[str, Any],
        *,
        lr: float,
        weight_decay: float = 0.0,
        output: str = "last",
        output_seed: int = 0,
    ) -> None:
        if output not in ("last", "uniform"):
            raise ValueError(f"Invalid output value: {output!r} (expected 'last' or 'uniform')")
        output_seed = whole_number("output_seed", output_seed, most=2**63 - 1)
        shared = {"output": output, "output_seed": output_seed, "kept": 0, "keep_next": 1}
        shared |= {"method": self.method or type(self).__name__, "t": 0}
        defaults = {"lr": lr, "weight_decay": weight_decay, **options, **shared}
        for name, allowed in self.ranges.items():
            allowed.check(name, defaults[name])
        super().__init__(params, defaults)

    # ---- counting -------------------------------------------------------------------------------------------

    @property
    def t(self) -> int:
        """Number of arrivals counted so far."""
        t: int = self.param_groups[0]["t"]
        return t

    @property
    def version(self) -> int:
        """Index of the iterate that the parameters hold now: ``t + 1``."""
        t: int = self.param_groups[0]["t"]
        return t + 1

    @property
    def delay(self) -> int:
        """The delay of the next `step`, for wrappers that drop keyword arguments; reset to 0 by that step.

        Examples:
            >>> import latecomer as lc
            >>> x = torch.nn.Parameter(torch.zeros(1))
            >>> opt = lc.optim.OrderedMomentum([x], lr=1.0, beta=0.5)
            >>> x.grad = torch.zeros(1); opt.step()
            >>> x.grad = torch.zeros(1); opt.step()
            >>> opt.delay = 1
            >>> x.grad = torch.ones(1); opt.step(); x.item()     # -lr · beta(1-beta)
            -0.25
            >>> opt.delay
            0
        """
        return self._delay

    @delay.setter
    def delay(self, value: int) -> None:
        self._delay = whole_number("delay", value)

    # ---- the step -------------------------------------------------------------------------------------------

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        delay: int = 0,
        previous_grads: Grads | None = None,
        arrival: Arrival | None = None,
    ) -> Any:
        """Count one arrival and update the parameters with the gradients in ``p.grad``.

        A call that raises for its arguments leaves parameters and state as they were. Gradients are only read.

        Args:
            closure: Evaluates the loss at the current iterate, calls backward and returns the loss. Rules with two
                points call it a second time at the previous iterate, with the same random numbers.
            delay: Number of updates since the iterate at which the gradients were computed.
            previous_grads: For rules with two points, the gradients of the same sample at the iterate before, one
                per parameter in the order of the param groups.
            arrival: Passed by a server instead of ``delay``; ``p.grad`` then holds the result of `contribution`.
        """
        if closure is not None and not callable(closure):
            raise TypeError(
                f"Invalid closure: {closure!r} (expected a function; a delay is a keyword: step(delay=...))"
            )
        arrived = self._place(delay, arrival)
        self._check(arrived)
        with torch.no_grad():
            loss = None
            if closure is not None:
                if arrival is not None:
                    raise ValueError(
                        "closure and arrival exclude each other: with an arrival, p.grad has the gradients"
                    )
                loss, previous_grads = self._evaluate(closure, arrived, previous_grads)
            self._advance(arrived, self._received(arrived, arrival is not None, previous_grads))
        self._delay = 0
        return loss

    def receive(self, arrival: Arrival, grads: Grads) -> None:
        """Count one arrival and update the parameters; for a server, which has checked and combined the gradients.

        Args:
            arrival: The arrival.
            grads: The result of `contribution`, one per parameter; any tensors for an arrival of weight zero.
        """
        self._check(arrival)
        with torch.no_grad():
            self._advance(arrival, grads)

    def _check(self, arrival: Arrival) -> None:
        """Raise for invalid hyper-parameters, which a user may have changed, and arrivals that this rule cannot use."""
        for group in self.param_groups:
            self._check_group(group)
        self._check_arrival(arrival)

    def _advance(self, arrival: Arrival, grads: Grads) -> None:
        self._keep(arrival.t)
        # Parameters whose learning rate has always been 0 keep their bits, which arithmetic alone does not grant: a
        # rule may average two equal numbers, or add zero to a negative zero.
        still = [group for group in self.param_groups if not group.get("moves", True) and not self._moves(group)]
        before = [p.clone() for group in still for p in group["params"]]
        self._apply(self._split(grads), arrival)
        if before:
            torch._foreach_copy_([p for group in still for p in group["params"]], before)
        for group in self.param_groups:
            group["t"] = arrival.t

    def _moves(self, group: Group) -> bool:
        """Whether a group has a learning rate now; if so, from now on its parameters are the rule's."""
        group["moves"] = bool(group["lr"] != 0.0)
        return bool(group["moves"])

    def _received(self, arrived: Arrival, combined: bool, previous_grads: Grads | None) -> Grads:
        """Return what arrived for every parameter; ``combined`` if `contribution` has run on a worker."""
        grads: list[Tensor | None] = [p.grad for p in self._all_params()]
        for g in grads:
            if g is not None and g.layout is not torch.strided:
                raise TypeError(f"Gradients must be dense, got layout {g.layout}: create embeddings with sparse=False")
        if not combined:
            return self.contribution(grads, previous_grads, arrived.version)
        if previous_grads is not None:
            raise ValueError(
                "previous_grads and arrival exclude each other: with an arrival p.grad already holds the result of "
                "opt.contribution(grads, previous_grads, version)"
            )
        return grads

    def _place(self, delay: int, arrival: Arrival | None) -> Arrival:
        """Return which arrival this is and which version it belongs to."""
        t = self.t + 1
        delay = whole_number("delay", delay)
        if self._delay:
            if delay not in (0, self._delay):
                raise ValueError(f"step(delay={delay}) contradicts opt.delay = {self._delay}: pass the delay once")
            delay = self._delay
        if arrival is not None:
            if not isinstance(arrival, Arrival):
                raise TypeError(f"Invalid arrival value: {arrival!r} (expected a latecomer.optim.Arrival)")
            version, workers = whole_number("version", arrival.version), arrival.workers
            if workers is not None:
                whole_number("workers", workers, least=1)
            arrival = replace(arrival, t=whole_number("t", arrival.t), version=version)
            if arrival.t != t:
                raise ValueError(
                    f"Arrival t={arrival.t} does not follow: this optimizer has counted {t - 1} arrivals and expects "
                    f"t={t}; load the state_dict that belongs to the server's state"
                )
            if delay and delay != arrival.delay:
                raise ValueError(
                    f"delay={delay} contradicts an arrival with delay {arrival.delay}: pass only the arrival"
                )
        elif delay:
            arrival = Arrival(t, t - delay)
        else:
            return Arrival(t, t)
        if not 1 <= arrival.version <= t:
            raise ValueError(
                f"Invalid delay value: {arrival.delay} at arrival {t} means version {arrival.version} (expected "
                f"0 <= delay <= {t - 1}); versions start at 1, so a resumed run needs opt.load_state_dict first"
            )
        return arrival

    def _check_group(self, group: Group) -> None:
        for name, allowed in self.ranges.items():
            value = group[name]
            # The common cases, inlined: this runs at every update.
            if type(value) is not float or not (
                allowed.low < value < allowed.high or (value == allowed.low and not allowed.low_open)
            ):
                allowed.check(name, value)

    def _check_arrival(self, arrival: Arrival) -> None:
        """Raise for an arrival that this rule cannot use, before anything has changed."""

    def _evaluate(
        self, closure: Callable[[], Any], arrival: Arrival, previous_grads: Grads | None
    ) -> tuple[Any, Grads | None]:
        with torch.enable_grad():
            return closure(), previous_grads

    def _apply(self, work: Work, arrival: Arrival) -> None:
        for group, params, grads in work:
            self._update(group, params, grads, arrival)

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor], arrival: Arrival) -> None:
        """Apply the rule to the parameters of one group that have a gradient."""
        raise TypeError(f"{type(self).__name__} has no update rule: subclass AsyncOptimizer and define _update")

    # ---- parameters and their state -------------------------------------------------------------------------

    def _all_params(self) -> list[Tensor]:
        groups = self.param_groups
        return groups[0]["params"] if len(groups) == 1 else [p for group in groups for p in group["params"]]

    def _split(self, grads: Grads) -> Work:
        """Split one list for all parameters into the groups, without parameters that have no gradient."""
        work, start = [], 0
        for group in self.param_groups:
            params: list[Tensor] = group["params"]
            mine = [g for g in grads[start : start + len(params)] if g is not None]
            if len(mine) < len(params):
                params = [p for p, g in zip(params, grads[start:], strict=False) if g is not None]
            start += len(group["params"])
            if mine:
                work.append((group, params, mine))
        return work

    def _buffers(self, params: list[Tensor], key: str, start: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Return the state tensors named ``key``; ``start(p)`` creates a missing one."""
        buffers = []
        for p in params:
            state = self.state[p]
            buffer = state.get(key)
            if buffer is None:
                buffer = state[key] = start(p)
            buffers.append(buffer)
        return buffers

    def _keep(self, t: int) -> None:
        """Reservoir sampling of one iterate: keep x_t with probability 1/t.

        Given that x_t is kept, the next kept index exceeds n with probability t/n; drawing that index at once costs
        O(log T) random numbers per run and needs two integers to resume.
        """
        first = self.param_groups[0]
        if first["output"] != "uniform" or t != first["keep_next"]:
            return
        params = self._all_params()
        torch._foreach_copy_(self._buffers(params, "x_out", torch.empty_like), params)
        u = 1.0 - random.Random((int(first["output_seed"]) << 64) + t).random()
        for group in self.param_groups:
            group["kept"], group["keep_next"] = t, int(t / u) + 1

    def output_parameters(self) -> list[Tensor]:
        """Return the output of the run, one tensor per parameter: the iterate chosen by ``output``.

        ``"last"`` returns the parameters themselves; ``"uniform"`` the one kept out of ``x_1..x_t``.

        Examples:
            >>> import latecomer as lc
            >>> x = torch.nn.Parameter(torch.zeros(1))
            >>> opt = lc.optim.AsyncSGD([x], lr=1.0, output="uniform", output_seed=3)
            >>> for _ in range(10):
            ...     x.grad = -torch.ones(1); opt.step()
            >>> x.item(), opt.output_parameters()[0].item(), opt.param_groups[0]["kept"]
            (10.0, 3.0, 4)
        """
        return [self.state[p].get("x_out", p) if p in self.state else p for p in self._all_params()]

    def needs(self, arrival: Arrival) -> bool:
        """Return whether the rule reads the values of this arrival; if not, its gradient need not be computed.

        Examples:
            >>> import latecomer as lc
            >>> opt = lc.optim.DelayFilteredSGD([torch.nn.Parameter(torch.ones(2))], lr=1.0, threshold=3)
            >>> opt.needs(Arrival(t=9, version=6)), opt.needs(Arrival(t=9, version=5))
            (True, False)
        """
        if self.first_version_once and arrival.version == 1 and arrival.t > 1:  # Algorithm 1: "Use g = 0"
            return False
        return not arrival.zero

    def hold(self, arrival: Arrival, grads: Grads) -> None:
        """Keep a contribution that the policy holds; only called if `holds`. The parameters must stay as they are."""
        raise TypeError(f"{type(self).__name__} says that it holds contributions: define hold")

    def drops(self, arrival: Arrival) -> bool:
        """Return whether the rule drops this arrival, instead of counting its values as zero."""
        return False

    # ---- on the worker --------------------------------------------------------------------------------------

    def query(self, out: Sequence[Sequence[Tensor]], worker: int | None = None) -> None:
        """Write the points that ``worker`` has to evaluate into ``out``: one sequence of tensors per point.

        Args:
            out: `points` sequences with one tensor per parameter each; the iterate comes first, the one before it
                second.
            worker: The worker, for rules with different points per worker.

        Examples:
            >>> import latecomer as lc
            >>> x = torch.nn.Parameter(torch.ones(2))
            >>> here = [torch.empty(2)]
            >>> lc.optim.AsyncSGD([x], lr=1.0).query([here])
            >>> here[0].tolist()
            [1.0, 1.0]
        """
        params = self._all_params()
        if len(out) != self.points or any(len(tensors) != len(params) for tensors in out):
            raise ValueError(
                f"query needs {self.points} sequences of {len(params)} tensors, got {[len(tensors) for tensors in out]}"
            )
        with torch.no_grad():
            self._write_points([list(tensors) for tensors in out], params)

    def point_version(self, worker: int | None = None) -> int | None:
        """Return the version of the points that `query` writes now, or None if they are this worker's alone.

        A simulation stores the points of a version once. A rule that defines a `query` of its own may define this too.
        """
        return self.version if type(self).query is AsyncOptimizer.query else None

    def _write_points(self, out: list[list[Tensor]], params: list[Tensor]) -> None:
        for tensors, point in zip(out, self._points(params), strict=True):
            torch._foreach_copy_(tensors, point)

    def _points(self, params: list[Tensor]) -> list[list[Tensor]]:
        return [params]

    def contribution(self, grads: Grads, previous_grads: Grads | None, version: int) -> Grads:
        """Turn the gradients of one sample into what the worker sends; this runs on the worker.

        Args:
            grads: Gradients at the iterate ``version``, one per parameter, None where there is none.
            previous_grads: Gradients of the same sample at the iterate before, for rules with two points.
            version: Index of the iterate.
        """
        if previous_grads is not None:
            raise ValueError(f"{type(self).__name__} evaluates one point: call it without previous_grads")
        return grads

    def coefficients(self, version: int) -> tuple[float, float]:
        """Return the factors of a worker's gradients: at the iterate ``version``, and at the iterate before it."""
        return 1.0, 0.0

    # ---- torch.optim.Optimizer --------------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters; they start at the current arrival, with buffers at zero."""
        if isinstance(param_group, dict) and "momentum" in param_group:
            raise ValueError(
                "There is no option momentum; beta is the weight of the new gradient: momentum=0.9 is beta=0.1"
            )
        # A copy: the counters in it belong to this optimizer, even if the dict is used for another one too.
        super().add_param_group(dict(param_group) if isinstance(param_group, dict) else param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        first = self.defaults if len(self.param_groups) == 1 else self.param_groups[0]
        for key in ("method", "t", "output", "output_seed", "kept", "keep_next"):
            group[key] = first[key]
        group["moves"] = False
        if group["kept"]:  # a parameter added later is kept as it was when added
            self._buffers(group["params"], "x_out", copied)
        self._start_group(group)

    def _start_group(self, group: Group) -> None:
        """Add the internal entries of this rule to a new param group."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict`, so that the run continues bit for bit; raise if it does not match.

        Examples:
            >>> import latecomer as lc
            >>> x = torch.nn.Parameter(torch.ones(2))
            >>> opt, resumed = (lc.optim.Momentum([x], lr=0.1, beta=0.1) for _ in range(2))
            >>> x.grad = torch.ones(2); opt.step()
            >>> resumed.load_state_dict(opt.state_dict())
            >>> resumed.t
            1
        """
        state_dict = state_dict_of_groups(state_dict, self.param_groups, self.identity)
        for group in state_dict["param_groups"]:
            whole_number("t in the state_dict", group.get("t"))
            self._check_group({**self.defaults, **group})
        check_shapes(state_dict, self._all_params(), self.own_shapes)
        super().load_state_dict(state_dict)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}, {self.t} arrivals"]
        for group in self.param_groups:
            shown = {key: value for key, value in group.items() if key not in self.bookkeeping}
            lines.append(f"  {len(group['params'])} parameters: " + ", ".join(f"{k}={v}" for k, v in shown.items()))
        return "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        # torch pickles and copies only what is in a state_dict; delays, projections and weights are kept beside it.
        own = {name: getattr(self, name) for name in self._own_attributes}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for key, value in self.defaults.items():
                if key != "differentiable":  # torch's own addition to the defaults, which no group needs
                    group.setdefault(key, value)
