"""Simulation: replays a trace through a server in one process."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from .._util.checks import checked_flag, plain_numbers, whole_number
from .._util.interrupts import interrupts_between_arrivals
from .._util.memory import check_memory
from ..core.callbacks import Callback, ProgressLike, all_callbacks
from ..core.checkpoint import RunFolder, checkpoint_options, loading
from ..core.devices import check_available, checked_device, use_device
from ..core.faults import FaultLog
from ..core.flat import FlatModule
from ..core.gradient import Contributor, evaluated
from ..core.groups import ParamGroups
from ..core.history import History
from ..core.result import Run
from ..core.rng import kept_generators
from ..core.state import Driver, RunState
from ..optim import Method, MethodLike
from ..optim.methods import method_and_policy
from ..policy import Async, Policy, PolicyLike, Ticket
from ..problems.base import Problem
from ..trace import Trace
from .replayer import Replayer

__all__ = ["Simulation", "check_problem", "simulate"]

_WORKER_BYTES = 200  # what the server keeps for a worker without a ticket


class Simulation(Driver):
    """A simulation in progress: `advance` receives one arrival, `evaluate` adds a row to the history.

    Args:
        problem: What to train on.
        method: The method, or its name.
        trace: The schedule.
        options: Hyper-parameters of the method.
        seed: Initialises the model.
        policy: The policy the trace was made with.
        scheduler: Function of the optimizer that returns a learning-rate scheduler, or None.
        param_groups: A function of the model that returns torch's groups, or a mapping from name patterns to options.
        bf16: Round points and contributions to bfloat16.
        device: Where gradients are computed.
        server_device: Where the parameters and the optimizer's state are.
        callbacks: The callbacks.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method | str,
        trace: Trace,
        options: Mapping[str, Any],
        *,
        seed: int = 0,
        policy: Policy | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        param_groups: ParamGroups | None = None,
        bf16: bool = False,
        device: str = "cpu",
        server_device: str = "cpu",
        callbacks: Sequence[Callback] = (),
    ) -> None:
        header = trace.header
        problem = problem.with_seed(header.seed)
        self.problem, self.trace, self.steps, self._bf16 = problem, trace, len(trace), bf16
        self.state = RunState(
            problem,
            method,
            options,
            workers=header.workers - len(header.joined),
            policy=policy or Async(),
            seed=seed,
            sample_seed=header.seed,
            groups=header.groups,
            clock=header.clock,
            scheduler=scheduler,
            param_groups=param_groups,
            device=server_device,
        )
        self.server, self.optimizer = self.state.server, self.state.optimizer
        self.callbacks = tuple(callbacks)
        self.history, self.faults = History(), FaultLog()
        self.loss = math.nan
        self.stopped = False
        place = torch.device(device)
        use_device(place)
        if place == self.state.flat.device:
            self._compute = Contributor(problem, self.state.flat, self.optimizer.points, bf16, self.state.averages)
        else:  # a second model, as a worker has it
            model = FlatModule(problem.model(seed), place)
            self._compute = Contributor(problem, model, self.optimizer.points, bf16)
        own = self._compute.averages is self.state.averages
        self._seen = None if own else self._compute.averages.from_last_job
        self._gradient = torch.zeros_like(self.state.flat.x, requires_grad=False)
        self._replayer = Replayer(self.server, trace)
        self._given_up = frozenset(header.given_up)
        self._group, self._end = trace.columns["group"], trace.columns["end"]
        self._check_groups = problem.own_groups and len(header.groups) > 1

    @property
    def now(self) -> float | None:
        """The trace's clock at the last arrival; None if it has none."""
        if self.trace.header.clock == "none":
            return None
        arrivals = self.server.arrivals
        return float(self._end[self.trace.rows[arrivals - 1]]) if arrivals else 0.0

    @property
    def over(self) -> bool:
        """Whether the simulation has ended."""
        return self.stopped or self.server.arrivals >= self.steps or self.state.diverged_at is not None

    def stop(self) -> None:
        """End the run after this arrival."""
        self.stopped = True

    def advance(self) -> None:
        """Do everything before the next arrival, and receive it."""
        server = self.server
        ticket = self._replayer.next()
        row = self.trace.rows[server.arrivals]
        group, at = int(self._group[row]), float(self._end[row])
        self.loss = math.nan
        if ticket.number in self._given_up:
            outcome = server.give_up(ticket, group=group, at=at)
        else:
            outcome = server.receive(ticket, lambda: self._contribution(ticket, group), group=group, at=at)
        self.state.after_arrival(ticket, outcome, self._seen)
        self.history.count(self.loss, outcome.delay)
        for callback in self.callbacks:
            callback.arrived(self, ticket, outcome, self.loss)

    def _contribution(self, ticket: Ticket, group: int) -> list[Tensor]:
        """Compute the contribution now, at the point that was stored when the ticket was issued."""
        if self._check_groups:
            own = self.problem.group_of(ticket.number, ticket.sample)
            if own != group:
                raise ValueError(
                    f"Ticket {ticket.number} is of group {group} in the trace, and its batch of group {own} in the "
                    "task, so delays would not follow the data: make the trace with lc.delays.SampleCost(workers, "
                    "cost, task=task) or MeasuredDurations.of(trace, task=task) and the same task, or with a model "
                    "without groups, such as lc.delays.WorkerSpeeds(durations)"
                )
        points = self.state.slots.memory(ticket.number)
        job = (ticket.number, ticket.sample, group, ticket.version)
        self.loss = self._compute(points, self._gradient, *job, *self.optimizer.coefficients(ticket.version))
        return self.state.arriving(self._gradient)

    def evaluate(self) -> None:
        """Add a row to the history."""
        state, arrivals, compute = self.state, self.server.arrivals, self._compute
        if self._seen is not None:
            state.averages.store(self._seen)
            compute.averages.load(self._seen)
        metrics = evaluated(self.problem, compute.flat, compute.here([state.flat.x.detach()])[0])
        row = self.history.begin(self.optimizer.t, arrivals, self.now) | metrics
        self.history.add(row)
        if state.diverged_at is None and not (math.isfinite(metrics.get("loss", 0.0)) and state.finite):
            state.diverged_at = arrivals
        for callback in self.callbacks:
            callback.evaluated(self, row)

    def describe(self) -> dict[str, Any]:
        """Return what identifies the run, so that a checkpoint of another run is refused."""
        return self.state.describe() | {"trace": self.trace.digest, "bf16": self._bf16}

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs."""
        return {"state": self.state.state_dict(), "history": self.history.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state dict."""
        self.state.load_state_dict(state["state"])
        self.history.load_state_dict(state["history"])
        self._replayer = Replayer(self.server, self.trace)

    def result(self, resumed_at: int = 0) -> Run:
        """Return the result so far."""
        self._replayer.fill_gap()  # tickets issued after the last arrival belong to the trace too
        state, trace = self.state, self.server.trace(self.trace.header.model)
        return Run(
            method=state.method,
            options=state.options,
            history=self.history.table(),
            state=state.flat.state_dict(),
            output=state.output(),
            trace=trace,
            server=self.server,
            given_up=trace.given_up,
            non_finite=self.server.non_finite,
            diverged_at=state.diverged_at,
            resumed_at=resumed_at,
        )


def simulate(
    problem: Problem,
    method: MethodLike,
    trace: Trace,
    *,
    policy: PolicyLike | None = None,
    scheduler: Callable[[Any], Any] | None = None,
    param_groups: ParamGroups | None = None,
    seed: int = 0,
    evaluate_every: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    keep: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: ProgressLike = False,
    bf16: bool = False,
    device: str | torch.device = "cpu",
    server_device: str | torch.device = "cpu",
    **options: Any,
) -> Run:
    """Train a method on a problem along a schedule, in one process.

    Each gradient is computed when it arrives, at the point that was stored when its ticket was issued. A gradient that
    will be dropped is never computed. The same problem, method, trace, seed and options give the same bits.

    Args:
        problem: What to train on.
        method: A name in `latecomer.optim.METHODS`, an optimizer class, a function of the parameters that returns an
            optimizer (and has the hyper-parameters in it), or a `latecomer.optim.Method`.
        trace: Who arrives when, from which version, on which sample.
        policy: The policy the trace was made with, if it is not the method's own: an instance, a class, or a name in
            `latecomer.policy.POLICIES`. Most methods apply every arrival.
        scheduler: Function of the optimizer that returns a torch learning-rate scheduler, for example
            ``lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)``; it steps with every update.
        param_groups: Options per parameter: a mapping from name patterns to options, or a function of the model that
            returns torch's param groups; see `latecomer.fit`.
        seed: Initialises the model and nothing else; the trace's seed draws the samples.
        evaluate_every: Arrivals between evaluations; a fiftieth of the run by default. The start and the end are
            always evaluated.
        checkpoint: A folder; if it has a checkpoint of this run, the run resumes from it with identical bits.
        checkpoint_every: Arrivals between checkpoints; as often as evaluations by default. An interrupt saves too.
        keep: Number of checkpoints to keep; 3 by default.
        callbacks: Called after arrivals and evaluations.
        progress: True or a rich `Console` to show a line of progress; or a function of (arrivals so far, total), called
            at every evaluation. If it raises, the run ends.
        bf16: Round points and contributions to bfloat16, as an engine that sends them in bfloat16 does.
        device: Where gradients are computed, a device of torch; batches are moved there.
        server_device: Where the parameters, points in flight and the optimizer's state are.
        **options: Hyper-parameters of the method: lr, beta, ...

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.DataDependent(workers=3, slow_share=0.1).trace(steps=400, seed=0)
        >>> run = lc.simulate(lc.problems.digits(network="mlp", cubic=False), "momentum", trace, lr=0.1, beta=0.1)
        >>> run.final["accuracy"] > 0.8
        True
    """
    _check_arguments(problem, trace, scheduler)
    options = plain_numbers(options)
    method, policy = method_and_policy(method, policy, trace.header.workers, options, param_groups is not None)
    if trace.header.policy != policy.name:
        raise ValueError(
            f"The trace was made with policy {trace.header.policy!r}, not {policy.name!r}: pass that one, or make the "
            "trace with the policy of this run: model.trace(steps, seed, policy=...)"
        )
    if int(trace.columns["group"].max()) >= problem.groups:
        raise ValueError(f"The trace has {len(trace.header.groups)} groups, the problem {problem.groups}")
    workers = trace.header.workers
    check_memory(workers * _WORKER_BYTES, f"{workers:,} workers", "the trace is damaged, or of another run")
    steps = len(trace)
    every = whole_number("evaluate_every", max(1, steps // 50) if evaluate_every is None else evaluate_every, least=1)
    save_every, kept = checkpoint_options(checkpoint, checkpoint_every, keep, every)
    given: dict[str, Any] = {"seed": whole_number("seed", seed), "policy": policy, "scheduler": scheduler}
    given |= {"bf16": checked_flag("bf16", bf16), "param_groups": param_groups}
    for name, place in (("device", device), ("server_device", server_device)):
        given[name] = checked_device(name, place)
        check_available(name, given[name])
    every_callback = all_callbacks(callbacks, progress, steps)
    with ExitStack() as stack:
        for callback in every_callback:
            stack.callback(callback.closed)
        run = Simulation(problem, method, trace, options, **given, callbacks=every_callback)
        for callback in every_callback:
            callback.started(run)
        folder = None
        if checkpoint is not None:
            folder = RunFolder(checkpoint, every=save_every, keep=kept, run=run.describe())
            stack.callback(folder.close)
        saved = None if folder is None else folder.newest()
        if saved is None:
            run.evaluate()
        else:
            with loading():
                run.load_state_dict(saved)
        resumed_at, server = run.server.arrivals, run.server
        interrupted = stack.enter_context(interrupts_between_arrivals())
        stack.enter_context(kept_generators())
        while not run.over:
            run.advance()
            if server.arrivals % every == 0 or run.over:
                run.evaluate()
            if folder is not None and (server.arrivals % folder.every == 0 or run.over or interrupted):
                folder.write(server.arrivals, run.state_dict())
            if interrupted:
                raise KeyboardInterrupt
        result = run.result(resumed_at)
        for callback in every_callback:
            callback.ended(run, result)
    return result


def check_problem(problem: Any) -> None:
    """Raise unless this is a problem."""
    if not isinstance(problem, Problem):
        kind = "a class, not an instance" if isinstance(problem, type) else type(problem).__name__
        raise TypeError(f"Invalid problem: {kind} (expected an instance of a subclass of latecomer.problems.Problem)")


def _check_arguments(problem: Any, trace: Any, scheduler: Any) -> None:
    check_problem(problem)
    if not isinstance(trace, Trace):
        raise TypeError(f"Invalid trace: {type(trace).__name__} (expected a latecomer.Trace; Trace.load reads a file)")
    if scheduler is not None and not callable(scheduler):
        raise TypeError(f"Invalid scheduler: {scheduler!r} (expected a function of the optimizer)")
    whole_number("the problem's number of groups", problem.groups, least=1)
