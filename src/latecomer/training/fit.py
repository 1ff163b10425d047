"""Asynchronous training on real workers."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._util.checks import POSITIVE, Range, plain_numbers, whole_number
from .._util.defaults import default_method, too_few
from .._util.files import writable_file
from .._util.interrupts import interrupts_between_arrivals
from .._util.naming import stable_name
from .._util.suggest import did_you_mean
from .._util.warn import warn
from ..core.callbacks import Callback, ProgressLike, all_callbacks
from ..core.checkpoint import checkpoint_options
from ..core.devices import AUTO, check_available, checked_device, device_kind
from ..core.flat import uncompiled
from ..core.gradient import one_thread
from ..core.groups import ParamGroups
from ..core.loggers import TensorBoard
from ..core.result import Run, RunWarning
from ..core.structure import structure
from ..engines import Engine
from ..optim import MethodLike, as_method
from ..optim.methods import method_and_policy
from ..policy import PolicyLike
from ..policy.base import options_of
from ..problems.base import Problem
from .loop import TrainingLoop
from .record import check_outputs, write_record
from .run import JournaledRun
from .saver import Saver
from .task import NOT_GIVEN, Task

__all__ = ["fit", "make_engine"]


def fit(
    model: nn.Module | Callable[[], nn.Module] | Problem,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    dataset: Any = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    method: MethodLike | None = None,
    policy: PolicyLike | None = None,
    workers: int = 2,
    engine: str | Engine = "local",
    device: str | torch.device | None = None,
    server_device: str | torch.device = "cpu",
    threads: int = 1,
    prefetch: int = 0,
    batch_size: int = NOT_GIVEN,
    collate_fn: Callable[[list[Any]], Any] | None = NOT_GIVEN,
    sampler: Any = NOT_GIVEN,
    batch_fn: Callable[[int], Any] | None = NOT_GIVEN,
    group_fn: Callable[[Any], int] | None = NOT_GIVEN,
    groups: Sequence[str] = NOT_GIVEN,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = NOT_GIVEN,
    accumulate: int = NOT_GIVEN,
    autocast: str | torch.dtype | None = NOT_GIVEN,
    clip_norm: float | None = NOT_GIVEN,
    clip_value: float | None = NOT_GIVEN,
    scheduler: Callable[[Any], Any] | None = None,
    param_groups: ParamGroups | None = None,
    sync: bool = False,
    seed: int = 0,
    evaluate_every: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    keep: int | None = None,
    record: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: ProgressLike = False,
    tensorboard: str | os.PathLike[str] | None = None,
    attempts: int = 3,
    give_up_limit: float = 0.5,
    timeout: float | None = None,
    min_workers: int | None = None,
    max_workers: int | None = None,
    **options: Any,
) -> Run:
    """Train a model with workers that do not wait for each other; the model holds the result afterwards.

    Args:
        model: The module, a function that returns it, a `Task`, or any `latecomer.problems.Problem`. A task or problem
            has its own data and loss.
        loss_fn: A torch loss, or ``loss_fn(model, batch)``; None if the model returns its loss. See `Task`.
        dataset: Map-style dataset or `DataLoader`; see `Task`.
        steps: Contributions to count. With ``sync=True`` an update takes ``workers`` of them.
        epochs: Instead of ``steps``: how often to go through the dataset, rounded up to whole batches.
        method: A name in `latecomer.optim.METHODS`, an optimizer class, a function of the parameters that returns an
            optimizer (and has the hyper-parameters in it), or a `latecomer.optim.Method`. None for ``"rate-free"``,
            which needs no learning rate, or, if an ``lr`` is given, here or in all param groups, for
            ``"balanced-catch-up"``.
        policy: What the server does with an arrival, instead of the method's own policy: an instance or a class of
            `latecomer.policy.Policy`, or a name in `latecomer.policy.POLICIES`.
        workers: Number of workers; on one machine at most one per core. With twice the
            workers, use half the beta of a momentum method.
        engine: ``"local"`` for processes, ``"inline"`` for this process, ``"ray"`` for Ray on this machine, or an
            `Engine`, such as ``latecomer.engines.ray.RayEngine("auto")`` for a cluster.
        device: Where workers compute: a device of torch, such as ``"cuda:0"``, or ``"auto"``: on Ray the one that Ray
            has assigned, else one accelerator of the machine after the other. Batches are moved there. None for the
            device that the model is on.
        server_device: Where the server keeps the parameters and the optimizer's state.
        threads: Torch threads per worker, and of this process while it serves them. Other numbers round otherwise; a
            replay uses the recorded one.
        prefetch: Number of batches that each worker draws ahead, in a process of its own, for tickets that it is likely
            to get. Results do not depend on it.
        batch_size: Samples per batch, 32 by default.
        collate_fn: Combines a list of samples into a batch.
        sampler: None for epochs, ``"independent"``, or a torch sampler.
        batch_fn: Instead of a dataset, a function that returns the batch for a ticket's sample seed.
        group_fn: Returns the group of a batch.
        groups: Names of the groups.
        evaluate: ``evaluate(model)`` returns metrics; it runs in a separate process while training goes on.
        accumulate: Micro-batches per contribution, 1 by default; the worker sends the mean of their gradients.
        autocast: ``"bfloat16"`` to compute the loss under ``torch.autocast``.
        clip_norm: Scale every gradient down to this norm.
        clip_value: Clamp every entry of a gradient to ``[-clip_value, clip_value]``.
        scheduler: Function of the optimizer that returns a torch learning-rate scheduler; it steps with every update.
        param_groups: Options per parameter: a mapping from name patterns (`fnmatch`) to options, of which the first
            that matches counts, such as ``{"*bias": {"weight_decay": 0.0}, "*": {}}``; or a function of the model that
            returns torch's param groups. What a group has replaces what `fit` was given. Every trainable parameter is
            in exactly one group. A ``method`` that is a function gets the groups instead of the parameters.
        sync: Wait for all workers before every update, for comparison: the same as ``policy="synchronous"``.
        seed: Draws the samples; it also initialises a problem's model.
        evaluate_every: Contributions between evaluations; a tenth of the run by default.
        checkpoint: A folder; if it has a checkpoint of this run, the run resumes from it.
        checkpoint_every: Contributions between checkpoints; as often as evaluations by default.
        keep: Number of checkpoints to keep; 3 by default.
        record: A file for the trace, ``something.parquet``, for `latecomer.training.replay` and ``latecomer replay``;
            the final parameters are written beside it.
        callbacks: Called after arrivals and evaluations.
        progress: True or a rich `Console` to show a line of progress; or a function of (contributions so far, total),
            called at every evaluation. If it raises, the run ends.
        tensorboard: A folder for TensorBoard; needs ``latecomer[tensorboard]``.
        attempts: How often a ticket may kill its worker or raise before it counts with weight zero.
        give_up_limit: The run ends with an error when more than this share of the tickets has failed so often, once
            there have been 20 tickets. The checkpoint and the record are kept. With 1 only a task that
            fails on all of its first tickets ends a run.
        timeout: Seconds after which a job counts as hung; its worker is killed and the ticket issued again. Set it well
            above the longest job.
        min_workers: Number of workers that must be ready before the run begins; all of them by default.
        max_workers: Largest number of workers. Those beyond ``workers`` are requested at the start and join when ready,
            on a cluster when it has room. The first ticket of a worker that joins later has weight zero, so that
            no version counts twice. A lost worker is replaced as soon as there is room.
        **options: Hyper-parameters of the method: lr, beta, ...; none is needed if no method is named.

    Examples:
        >>> import latecomer as lc
        >>> x = torch.randn(256, 3, generator=torch.Generator().manual_seed(0))
        >>> data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        >>> model = nn.Linear(3, 1)
        >>> run = fit(model, nn.functional.mse_loss, data, method="catch-up", lr=0.05, workers=2, steps=200)
        >>> nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item() < 0.01
        True
    """
    _check_arguments(scheduler, sync, policy, {"checkpoint": checkpoint, "record": record, "tensorboard": tensorboard})
    workers = whole_number("workers", workers, least=1)
    options = plain_numbers({name: value for name, value in options.items() if name != "lr" or value is not None})
    if param_groups is None and isinstance(model, Task):
        param_groups = model.param_groups
    by_default = method is None
    if method is None:
        method = default_method(options, group_options(model, param_groups))
    _check_names(method, options)
    decision = "synchronous" if sync else policy
    rule, decides = method_and_policy(method, decision, workers, options, param_groups is not None)
    attempts, seed = whole_number("attempts", attempts, least=1), whole_number("seed", seed)
    least = workers if min_workers is None else whole_number("min_workers", min_workers, least=1)
    most = workers if max_workers is None else whole_number("max_workers", max_workers, least=workers)
    if least > most or (sync and (least, most) != (workers, workers)):
        raise ValueError(f"Invalid min_workers or max_workers: {least}, {most} (min <= max; equal if sync)")
    Range(0, 1).check("give_up_limit", give_up_limit)
    if timeout is not None:
        POSITIVE.check("timeout", timeout)
    task_arguments = {
        "batch_size": batch_size, "collate_fn": collate_fn, "sampler": sampler, "batch_fn": batch_fn,
        "group_fn": group_fn, "groups": groups, "evaluate": evaluate, "accumulate": accumulate, "autocast": autocast,
        "clip_norm": clip_norm, "clip_value": clip_value,
    }  # fmt: skip
    problem = _problem(model, loss_fn, dataset, {k: v for k, v in task_arguments.items() if v is not NOT_GIVEN})
    if isinstance(problem, Task):
        problem, scheduler = problem.with_seed(seed), scheduler or problem.scheduler
    steps = _steps(steps, epochs, problem)
    if by_default and (advice := too_few(rule.name, steps)):
        warn(advice)
    threads = whole_number("threads", threads, least=1, most=1024)
    prefetch = whole_number("prefetch", prefetch, most=1024)
    every = max(1, steps // 10) if evaluate_every is None else whole_number("evaluate_every", evaluate_every, least=1)
    save_every, kept = checkpoint_options(checkpoint, checkpoint_every, keep, every)
    path = None if record is None else Path(record)
    if path is not None:
        folders = {"checkpoint": checkpoint, "tensorboard": tensorboard}
        check_outputs(path, **{name: None if folder is None else Path(folder) for name, folder in folders.items()})
        writable_file(path)
    chosen = make_engine(engine)
    chosen.check_workers(most)
    place, keeper = _devices(device, server_device, problem, chosen)
    state = JournaledRun(
        problem, rule, options, min(least, workers), decides, seed, scheduler, param_groups, device=keeper
    )
    every_callback = all_callbacks(callbacks, progress, steps)
    if tensorboard is not None:
        every_callback.append(TensorBoard(tensorboard))
    loop = TrainingLoop(
        state, chosen, workers=workers, steps=steps, min_workers=least, max_workers=most,
        evaluate_every=every, attempts=attempts, give_up_limit=give_up_limit, timeout=timeout,
        device=place, threads=threads, prefetch=prefetch, callbacks=every_callback,
    )  # fmt: skip
    rounded: dict[str, Any] = {"bf16": True} if loop.engine.bf16 else {}
    rounded |= {"threads": threads} if threads != 1 else {}
    about = {"method": rule.name, "options": options, "seed": seed, "start": state.start, **rounded}
    about |= {"torch": torch.__version__, "problem": repr(problem), "scheduler": stable_name(scheduler)}
    about |= {
        "workers": workers,
        "policy": repr(decides),
        "policy_options": options_of(decides),
        "optimizer": state.optimizer_inside,
    }
    about |= {"model": structure(state.flat.module), "evaluate_every": every}
    if state.arrangement.groups is not None:
        about["param_groups"] = [group.as_json() for group in state.arrangement.groups]
    saver = None
    if checkpoint is not None:  # last, because it locks the folder
        saver = Saver(
            checkpoint,
            every=save_every,
            keep=kept,
            run=state.describe() | {"workers": workers} | rounded,
        )
        state.journal = saver.journal
    result = _run(loop, saver, path, about)
    if result.trouble:
        warn(result.trouble, RunWarning)
    if isinstance(model, nn.Module):
        uncompiled(model).load_state_dict(dict(result.state))
    return result


def group_options(model: Any, param_groups: ParamGroups | None) -> list[Mapping[str, Any]]:
    """Return the options of all param groups, to see whether one has a learning rate.

    Args:
        model: What `fit` got: a module, a function that makes one, or a problem.
        param_groups: A mapping from name patterns to options, or a function of the model.

    Examples:
        >>> group_options(nn.Linear(2, 1), {"bias": {"lr": 0.0}, "*": {}})
        [{'lr': 0.0}, {}]
    """
    if isinstance(param_groups, Mapping):
        found: Any = param_groups.values()
    elif callable(param_groups):
        module = model.model(0) if isinstance(model, Problem) else model if isinstance(model, nn.Module) else model()
        found = param_groups(module)
    else:
        found = ()
    return [group for group in found if isinstance(group, Mapping)] if isinstance(found, Iterable) else []


_MEANT = {
    "optimizer": "pass it as method=",
    "criterion": "pass it as loss_fn=",
    "loss": "pass it as loss_fn=",
    "learning_rate": "did you mean lr?",
    "num_workers": "did you mean workers?",
}
"""Names that other libraries have for arguments of `fit`."""


def _check_names(method: MethodLike, options: Mapping[str, Any]) -> None:
    """Refuse a mistyped argument of `fit`, which looks like an option of the method."""
    rule = as_method(method)
    for name in rule.unknown_options(options):
        hint = _MEANT.get(name) or did_you_mean(name, [*rule.arguments, *inspect.signature(fit).parameters])
        if hint:
            raise ValueError(f"{rule.name} has no option {name!r}, and fit has no such argument: {hint}")


def _problem(model: Any, loss_fn: Any, dataset: Any, given: Mapping[str, Any]) -> Problem:
    """Return the user's task or problem, or a task made of the arguments."""
    if not isinstance(model, Problem):
        return Task(model, loss_fn, dataset, **given)
    if loss_fn is not None or dataset is not None:
        raise ValueError("A task or a problem has its own loss and data: leave out loss_fn and dataset")
    if given:
        raise ValueError(f"{next(iter(given))} belongs to the task or problem: pass it there, not to fit")
    return model


def _devices(device: Any, server_device: Any, problem: Problem, engine: Engine) -> tuple[str, str]:
    """Return where workers compute and where the server keeps the parameters."""
    if device is None:
        own = problem.device if isinstance(problem, Task) else torch.device("cpu")
        device = AUTO if own.type == "cpu" and getattr(engine, "gpus", False) else own
    place, keeper = checked_device("device", device, auto=True), checked_device("server_device", server_device)
    check_available("server_device", keeper)
    if engine.on_this_machine:
        check_available("device", place)
    return place, keeper


def _steps(steps: int | None, epochs: float | None, problem: Problem) -> int:
    """Return the number of contributions, given directly or by the number of epochs."""
    if (steps is None) == (epochs is None):
        raise ValueError(
            "fit needs either steps=, the number of contributions, or epochs=, how often to go through the dataset; "
            f"got {'neither' if steps is None else 'both'}"
        )
    if epochs is None:
        return whole_number("steps", steps, least=1)
    if not isinstance(problem, Task):
        raise ValueError(f"epochs= needs a dataset, and {problem.name} has none: pass steps=")
    return problem.steps_of(epochs)


def _check_arguments(scheduler: Any, sync: Any, policy: Any, paths: Mapping[str, Any]) -> None:
    if scheduler is not None and not callable(scheduler):
        raise TypeError(f"Invalid scheduler: {scheduler!r} (expected a function of the optimizer)")
    if not isinstance(sync, bool):
        raise TypeError(f"Invalid sync: {sync!r} (expected True or False)")
    if sync and policy is not None:
        raise ValueError(f"sync=True is policy='synchronous', and policy={policy!r} is given: pass one of the two")
    for name, path in paths.items():
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"Invalid {name}: {path!r} (expected a path)")
        if path is not None and not os.fspath(path):
            raise ValueError(
                f"Invalid {name}: {path!r} (expected the name of a {'file' if name == 'record' else 'folder'})"
            )


def make_engine(engine: str | Engine) -> Engine:
    """Return the engine with this name."""
    if isinstance(engine, Engine):
        return engine
    if engine == "local":
        from ..engines.local import LocalEngine

        return LocalEngine()
    if engine == "inline":
        from ..engines.inline import InlineEngine

        return InlineEngine()
    if engine == "ray":
        from ..engines.ray.engine import RayEngine

        return RayEngine()
    raise ValueError(f"Unknown engine {engine!r} (expected 'local', 'inline', 'ray' or an Engine)")


def _run(loop: TrainingLoop, saver: Saver | None, path: Path | None, about: Mapping[str, Any]) -> Run:
    """Start the workers, train, and save and close everything, also after an error."""
    state, server = loop.state, loop.server
    # Further threads of this process would spin between updates, on cores that the workers need.
    with contextlib.ExitStack() as stack, one_thread(loop.threads), interrupts_between_arrivals() as interrupted:
        for callback in loop.callbacks:
            stack.callback(callback.closed)
            callback.started(loop)
        stack.callback(loop.engine.close)
        if saver is None:
            loop.start()
        else:
            stack.callback(saver.close)
            saved, entries = saver.restore()
            loop.set_interrupts(interrupted)
            saver.begin(loop.start(saved, entries))
            if saved is None or entries:  # no arrival is counted before the first checkpoint exists
                saver.save(server.arrivals, loop.state_dict(), now=saved is None)
        begun, before = loop.now, server.arrivals  # the clock starts with the first worker that is ready

        def on_arrival() -> None:
            if saver is not None and server.arrivals % saver.every == 0:
                saver.save(server.arrivals, loop.state_dict())

        try:
            loop.run(interrupted, on_arrival)
        finally:
            if saver is not None and server.arrivals != saver.saved_at:
                saver.save(server.arrivals, loop.state_dict())
            if path is not None and server.arrivals:
                _record(loop, path, about)
        if interrupted:
            raise KeyboardInterrupt
        trace = server.trace("recorded by fit")
        result = Run(
            method=state.method,
            options=state.options,
            history=loop.evaluator.history.table(),
            state=state.flat.state_dict(),
            output=state.output(),
            trace=trace,
            server=server,
            record=path,
            deaths=loop.deaths,
            failures=loop.failures,
            reissued=loop.reissued,
            given_up=trace.given_up,
            non_finite=server.non_finite,
            ignored=loop.ignored,
            faults=tuple(loop.faults),
            diverged_at=state.diverged_at,
            seconds=loop.now - begun,
            resumed_at=before,
        )
        for callback in loop.callbacks:
            callback.ended(loop, result)
    return result


def _record(loop: TrainingLoop, path: Path, about: Mapping[str, Any]) -> None:
    try:
        places = {"devices": sorted(loop.devices), "server_device": device_kind(loop.state.flat.device)}
        about = {**about, **places, "threads": loop.threads, "steps": loop.steps, "faults": loop.faults.state_dict()}
        about["diverged_at"] = loop.state.diverged_at
        history = loop.evaluator.history.table()
        write_record(loop.server.trace("recorded by fit"), path, loop.state.flat.x, about, history)
    except OSError as error:
        warn(f"The record could not be written to {path} ({error.strerror})")
