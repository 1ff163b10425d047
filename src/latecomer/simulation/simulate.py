"""Replay a trace through a server, in one process: deterministic, resumable, one gradient an arrival."""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from .._util.checks import whole_number
from .._util.files import atomic
from .._util.naming import stable_name
from ..core.gradient import Contributor, counts, evaluated
from ..core.state import Trainee
from ..optim import known_method
from ..policy import Async, Policy, Ticket
from ..problems.base import Problem
from ..server import Server
from ..trace import Trace
from .replayer import Replayer

__all__ = ["Run", "interrupts_between_arrivals", "simulate"]


@dataclass(frozen=True)
class Run:
    """What a simulation returns.

    Attributes:
        method: Name of the method.
        options: Its hyper-parameters.
        history: One row an evaluation: ``update``, ``time`` (the trace's clock, if it has one) and the metrics.
        state: The trained model's state dict.
        output: The state dict of the iterate that ``output=`` asked for; the same as `state` by default.
        trace: The schedule as the server recorded it, with what became of every ticket.
        diverged_at: The arrival at which the run was given up, or None.
        non_finite: How many contributions had a NaN or an infinity and counted as zero.

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.DataDependent(workers=3, slow_share=0.1).trace(steps=100, seed=0)
        >>> run = lc.simulate(lc.problems.quadratic(), "ordered-momentum", trace, lr=0.05)
        >>> run.history.columns
        ['update', 'time', 'loss', 'squared_gradient']
        >>> run.final["update"], run.diverged_at
        (100, None)
    """

    method: str
    options: Mapping[str, Any]
    history: pl.DataFrame
    state: Mapping[str, Tensor]
    output: Mapping[str, Tensor]
    trace: Trace
    diverged_at: int | None = None
    non_finite: int = 0

    @property
    def final(self) -> dict[str, Any]:
        """The last row of the history."""
        return self.history.row(-1, named=True)


@dataclass
class _Simulation:
    """A run in progress."""

    problem: Problem
    method: str
    trace: Trace
    options: dict[str, Any]
    seed: int
    policy: Policy
    schedule: Callable[[Any], Any] | None = None
    bf16: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    t: int = 0

    def __post_init__(self) -> None:
        header = self.trace.header
        self.trainee = Trainee(self.problem, self.method, self.options, self.seed, self.schedule)
        self.flat, self.optimizer = self.trainee.flat, self.trainee.optimizer
        self.server = Server(
            self.optimizer,
            workers=header.workers - len(header.joined),
            policy=self.policy,
            seed=header.seed,
            groups=header.groups,
            clock=header.clock,
        )
        self.compute = Contributor(self.problem, self.flat, self.optimizer.points, self.bf16)
        self.gradient = torch.zeros_like(self.flat.x, requires_grad=False)
        self.replay = Replayer(self.server, self.trace)
        self.given_up = frozenset(header.given_up)

    @property
    def diverged_at(self) -> int | None:
        """The arrival at which the run was given up, or None."""
        return self.trainee.diverged_at

    def advance(self) -> None:
        """Do what happened before the next arrival, and receive it."""
        ticket = self.replay.next()
        group, at = self._of_arrival("group"), self._of_arrival("end")
        if ticket.number in self.given_up:
            outcome = self.server.give_up(ticket, group=group, at=at)
        else:
            outcome = self.server.receive(ticket, lambda: self._contribution(ticket, group), group=group, at=at)
        self.t += 1
        if counts(ticket, outcome):
            self.compute.statistics.merge()
        self.trainee.counted(outcome)

    def _of_arrival(self, name: str) -> Any:
        """Look a column up for the next arrival, without a sorted copy of it."""
        return self.trace.columns[name][self.trace.rows[self.t]].item()

    def _contribution(self, ticket: Ticket, group: int) -> Tensor:
        """Compute the gradient now, at the point that was stored when the ticket went out."""
        points = [point[0] for point in self.server.point(ticket)]
        what = (ticket.number, ticket.sample, group, ticket.version)
        self.compute(points, self.gradient, *what, *self.optimizer.coefficients(ticket.version))
        return self.gradient

    def evaluate(self) -> None:
        """Add a row to the history."""
        metrics = evaluated(self.problem, self.flat.at(self.flat.x))
        time = None
        if self.trace.header.clock != "none":
            time = self.trace.columns["end"][self.trace.rows[self.t - 1]].item() if self.t else 0.0
        self.rows.append({"update": self.optimizer.t, "time": time, **metrics})
        loss = metrics.get("loss", 0.0)
        if self.diverged_at is None and not (math.isfinite(loss) and self.trainee.finite):
            self.trainee.diverged_at = self.t

    def fingerprint(self) -> str:
        """Say which run this is, so that a checkpoint of another one is not taken for it."""
        options = {name: stable_name(value) for name, value in sorted(self.options.items())}
        values = [repr(self.problem), self.method, options, self.seed, self.trace.digest, repr(self.policy)]
        if self.schedule is not None:
            values.append(stable_name(self.schedule))
        if self.bf16:
            values.append("bf16")
        return json.dumps(values)

    def save(self, path: Path) -> None:
        """Write a checkpoint; an older one is replaced in one go or not at all."""
        state = {
            "run": self.fingerprint(),
            "t": self.t,
            "rows": self.rows,
            "trainee": self.trainee.state_dict(),
            "server": self.server.state_dict(),
        }
        with atomic(path) as temporary, temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint of the same run."""
        try:
            state = torch.load(path, weights_only=True)
            run = state["run"]
        except Exception as error:  # torch raises whatever its readers do
            raise ValueError(f"{path} is damaged or no checkpoint: remove it to start again") from error
        if run != self.fingerprint():
            raise ValueError(f"{path} is the checkpoint of another run: choose another path, or remove it")
        self.server.load_state_dict(state["server"])
        self.replay = Replayer(self.server, self.trace)
        self.trainee.load_state_dict(state["trainee"])
        self.t, self.rows = state["t"], state["rows"]

    def result(self) -> Run:
        """Return what there is."""
        self.replay.fill_gap()  # what went out after the last arrival is in the record too
        chosen = self.optimizer.output_parameters()[0]
        output = {name: value.clone() for name, value in self.flat.at(chosen).state_dict().items()}
        return Run(
            method=self.method,
            options=dict(self.options),
            history=pl.DataFrame(self.rows, infer_schema_length=None, schema_overrides={"time": pl.Float64}),
            state=self.flat.state_dict(),
            output=output,
            trace=self.server.trace(self.trace.header.model),
            diverged_at=self.diverged_at,
            non_finite=self.server.non_finite,
        )


def simulate(
    problem: Problem,
    method: str,
    trace: Trace,
    *,
    seed: int = 0,
    evaluate_every: int | None = None,
    policy: Policy | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[Server], None] | None = None,
    schedule: Callable[[Any], Any] | None = None,
    bf16: bool = False,
    **options: Any,
) -> Run:
    """Train a method on a problem along a schedule.

    Each gradient is computed when it arrives, at the point that was stored when its ticket went out; one that will be
    dropped is never computed. The same problem, method, trace, seed and options give the same bits.

    Args:
        problem: What to train on.
        method: A name in `latecomer.optim.METHODS`.
        trace: Who arrives when, from which version, on which sample.
        seed: Initialises the model, and nothing else: samples are drawn by the trace's seed.
        evaluate_every: Evaluate after so many arrivals; a fiftieth of the run by default. The start and the end are
            always evaluated.
        policy: The policy the trace was made with, if it is not the paper's.
        checkpoint: A file to save the run to; if it exists, the run goes on from it with identical bits.
        checkpoint_every: Save after so many arrivals; at every evaluation by default. An interrupt saves too.
        progress: Called with the arrivals so far and their total, at every evaluation.
        watch: Called with the server after every arrival; it may look, and must not touch.
        schedule: Makes a torch learning-rate scheduler out of the optimizer, for example
            ``lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)``; it steps with every update.
        bf16: Round points and contributions to bfloat16, as an engine with a wire of half the width does.
        **options: Hyper-parameters of the method: lr, beta, ...

    Examples:
        >>> import latecomer as lc
        >>> trace = lc.delays.DataDependent(workers=3, slow_share=0.1).trace(steps=400, seed=0)
        >>> run = lc.simulate(lc.problems.digits(network="mlp", cubic=False), "momentum", trace, lr=0.1, beta=0.1)
        >>> run.final["accuracy"] > 0.8
        True
    """
    known_method(method)
    _check_arguments(problem, trace, policy, progress, watch, schedule)
    policy = copy.deepcopy(policy) if policy is not None else Async()  # its counters belong to one run
    if trace.header.policy != policy.name:
        raise ValueError(f"The trace was made with policy {trace.header.policy!r}, not {policy.name!r}: pass that one")
    if int(trace.columns["group"].max()) >= problem.groups:
        raise ValueError(f"The trace has {len(trace.header.groups)} groups, the problem {problem.groups}")
    steps = len(trace)
    every = whole_number("evaluate_every", max(1, steps // 50) if evaluate_every is None else evaluate_every, least=1)
    save_every = whole_number("checkpoint_every", every if checkpoint_every is None else checkpoint_every, least=1)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and (not path.name or path.is_dir()):
        raise ValueError(f"Invalid checkpoint: {str(checkpoint)!r} is a folder (expected the path of a file)")

    run = _Simulation(problem, method, trace, options, whole_number("seed", seed), policy, schedule, bf16)
    if path is not None and path.exists():
        run.restore(path)
    else:
        run.evaluate()
    with interrupts_between_arrivals() as interrupted, torch.random.fork_rng(devices=[]):
        while run.t < steps and run.diverged_at is None:
            run.advance()
            if watch is not None:
                watch(run.server)
            if run.t % every == 0 or run.t == steps or run.diverged_at is not None:
                run.evaluate()
                if progress is not None:
                    progress(run.t, steps)
            if path is not None and (run.t % save_every == 0 or run.t == steps or interrupted):
                run.save(path)
            if interrupted:
                raise KeyboardInterrupt
    return run.result()


def _check_arguments(problem: Any, trace: Any, policy: Any, *callables: Any) -> None:
    if not isinstance(problem, Problem):
        kind = "a class, not an instance" if isinstance(problem, type) else type(problem).__name__
        raise TypeError(f"Invalid problem: {kind} (expected an instance of a subclass of latecomer.problems.Problem)")
    if not isinstance(trace, Trace):
        raise TypeError(f"Invalid trace: {type(trace).__name__} (expected a latecomer.Trace; Trace.load reads a file)")
    if policy is not None and not isinstance(policy, Policy):
        raise TypeError(f"Invalid policy: {policy!r} (expected an instance of latecomer.policy.Policy)")
    for function in callables:
        if function is not None and not callable(function):
            raise TypeError(f"progress, watch and schedule must be functions, got {function!r}")
    whole_number("the problem's number of groups", problem.groups, least=1)


@contextmanager
def interrupts_between_arrivals() -> Iterator[list[int]]:
    """Collect Ctrl-C in a list, so that it never falls into the middle of an update.

    Examples:
        >>> with interrupts_between_arrivals() as interrupted:
        ...     signal.raise_signal(signal.SIGINT)
        ...     len(interrupted)
        1
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)
