"""Train a model on real workers that never wait for each other."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch
from rich.console import Console
from torch import nn

from .._util.checks import POSITIVE, whole_number
from .._util.files import writable_file
from .._util.naming import stable_name
from ..engines import Engine
from ..optim import known_method
from ..policy import Async, Policy, Synchronous
from ..problems.base import Problem
from ..simulation.simulate import interrupts_between_arrivals
from .callbacks import Bar, Callback, TensorBoard
from .checkpoint import Saver
from .loop import TrainingLoop
from .record import digest, write_record
from .result import Result
from .run import Books
from .task import Task

__all__ = ["fit", "make_engine"]


def fit(
    model: nn.Module | Callable[[], nn.Module] | Problem,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    dataset: Any = None,
    *,
    steps: int,
    optimizer: str = "even-catch-up",
    workers: int = 2,
    engine: str | Engine = "local",
    batch_size: int = 32,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    sampler: Any = None,
    batch_fn: Callable[[int], Any] | None = None,
    group_fn: Callable[[Any], int] | None = None,
    groups: Sequence[str] = ("all",),
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    evaluate_every: int | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    scheduler: Callable[[Any], Any] | None = None,
    sync: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    keep: int = 3,
    record: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | Console = False,
    tensorboard: str | os.PathLike[str] | None = None,
    attempts: int = 3,
    timeout: float | None = None,
    min_workers: int | None = None,
    max_workers: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Result:
    """Train a model with workers that never wait for each other; it holds the result afterwards.

    Args:
        model: The module, a function that makes it, a `Task`, or any `latecomer.problems.Problem`; with the latter two
            everything about data and loss is theirs.
        loss_fn: A loss of torch, or ``loss_fn(model, batch)``; see `Task`.
        dataset: Map-style dataset; see `Task`.
        steps: Contributions to count. With ``sync=True`` an update takes ``workers`` of them.
        optimizer: A name in `latecomer.optim.METHODS`; even catch-up is stable and fair to slow samples.
        workers: How many; on one machine no more than it has cores. Raise beta's inverse along with it.
        engine: ``"local"`` for processes, ``"inline"`` for this process, ``"ray"`` for Ray on this machine, or an
            `Engine`, such as ``latecomer.engines.ray.RayEngine("auto")`` for a cluster.
        batch_size: Samples a batch.
        collate_fn: Makes a batch of a list of samples.
        sampler: None for epochs, ``"independent"``, or a torch sampler.
        batch_fn: Instead of a dataset, the batch of a ticket by its seed.
        group_fn: Which group a batch belongs to.
        groups: Names of the groups.
        evaluate: ``evaluate(model)`` returns metrics; it runs in a process of its own while training goes on.
        evaluate_every: Contributions between evaluations; a tenth of the run by default.
        clip_norm: Scale every gradient down to this norm.
        clip_value: Clamp every entry of a gradient to this size.
        scheduler: Makes a torch learning-rate scheduler out of the optimizer; it steps with every update.
        sync: Wait for all workers before every update, for comparison.
        checkpoint: A folder; if it has a checkpoint of this run, the run goes on from it.
        checkpoint_every: Contributions between checkpoints; as often as evaluations by default.
        keep: How many checkpoints to keep.
        record: A file for the trace, which `latecomer.training.replay` and ``latecomer replay`` take; what the run
            ended with goes beside it.
        callbacks: Who is told about arrivals and evaluations.
        progress: Show a line of progress.
        tensorboard: A folder for TensorBoard; needs ``latecomer[tensorboard]``.
        attempts: How often a ticket may kill its worker, or raise, before it counts with weight zero.
        timeout: Seconds after which a job counts as hung; its worker is killed and the ticket issued again. Set it well
            above the longest job.
        min_workers: How many workers must be ready before the run begins; all of them if left out.
        max_workers: How many there may be. Seats past ``workers`` are asked for at once and join when somebody takes
            them, on a cluster when there is room; the first ticket of who joins later weighs nothing, so that no
            version counts twice. A seat whose worker is lost stays, for whoever comes next.
        seed: Draws the samples; a problem's model is initialised by it too.
        **options: Hyper-parameters of the method: lr, beta, ...

    Examples:
        >>> import latecomer as lc
        >>> x = torch.randn(256, 3, generator=torch.Generator().manual_seed(0))
        >>> data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        >>> model = nn.Linear(3, 1)
        >>> result = fit(model, nn.functional.mse_loss, data, optimizer="catch-up", lr=0.05, workers=2, steps=200)
        >>> nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item() < 0.01
        True
    """
    known_method(optimizer).check(options)
    _check_arguments(
        scheduler, sync, callbacks, {"checkpoint": checkpoint, "record": record, "tensorboard": tensorboard}
    )
    steps, workers = whole_number("steps", steps, least=1), whole_number("workers", workers, least=1)
    attempts, seed = whole_number("attempts", attempts, least=1), whole_number("seed", seed)
    least = workers if min_workers is None else whole_number("min_workers", min_workers, least=1)
    most = workers if max_workers is None else whole_number("max_workers", max_workers, least=workers)
    if least > most or (sync and (least, most) != (workers, workers)):
        raise ValueError(f"Invalid min_workers or max_workers: {least}, {most} (min <= max; equal if sync)")
    if timeout is not None:
        POSITIVE.check("timeout", timeout)
    if isinstance(model, Problem):
        if loss_fn is not None or dataset is not None:
            raise ValueError("A task or a problem brings its own loss and data: leave loss_fn and dataset out")
        given = {
            "batch_size": batch_size != 32,
            "collate_fn": collate_fn is not None,
            "sampler": sampler is not None,
            "batch_fn": batch_fn is not None,
            "group_fn": group_fn is not None,
            "groups": tuple(groups) != ("all",),
            "evaluate": evaluate is not None,
            "clip_norm": clip_norm is not None,
            "clip_value": clip_value is not None,
        }
        if any(given.values()):
            name = next(name for name, is_given in given.items() if is_given)
            raise ValueError(f"{name} belongs to the task or problem itself: give it there, not to fit")
        problem = model
    else:
        if loss_fn is None:
            raise ValueError("fit needs a loss_fn: a loss of torch, or a function loss_fn(model, batch)")
        about_data = {"batch_size": batch_size, "collate_fn": collate_fn, "sampler": sampler, "batch_fn": batch_fn}
        about_data |= {"group_fn": group_fn, "groups": groups, "evaluate": evaluate}
        problem = Task(model, loss_fn, dataset, clip_norm=clip_norm, clip_value=clip_value, **about_data)
    if isinstance(problem, Task):
        problem.seed = seed
        scheduler = scheduler or problem.scheduler
    every = max(1, steps // 10) if evaluate_every is None else whole_number("evaluate_every", evaluate_every, least=1)
    policy: Policy = Synchronous(workers) if sync else Async()
    path = None if record is None else Path(record)
    if path is not None:
        writable_file(path)
    books = Books(problem, optimizer, options, min(least, workers), policy, seed, scheduler)
    told = list(callbacks)
    if tensorboard is not None:
        told.append(TensorBoard(tensorboard))
    moves = make_engine(engine)
    driver = TrainingLoop(
        books, moves, workers=workers, steps=steps, min_workers=least, max_workers=most, evaluate_every=every,
        attempts=attempts, timeout=timeout, callbacks=told,
    )  # fmt: skip
    if progress:
        driver.callbacks.append(Bar(steps, progress if isinstance(progress, Console) else None))
    about = {"method": optimizer, "options": options, "seed": seed, "start": digest(books.flat.x)}
    about |= {"torch": torch.__version__, "problem": repr(problem), "scheduler": stable_name(scheduler)}
    rounded = {"bf16": True} if moves.bf16 else {}
    about |= rounded
    saver = None
    if checkpoint is not None:  # last, for it locks the folder
        run = {"task": repr(problem), "method": optimizer, "options": options, "workers": workers} | rounded
        run |= {"policy": policy.name, "seed": seed, "scheduler": stable_name(scheduler)}
        saver = Saver(
            Path(checkpoint), every=every if checkpoint_every is None else checkpoint_every, keep=keep, run=run
        )
        books.journal = saver.journal
    result = _run(driver, saver, path, about)
    if isinstance(model, nn.Module):
        model.load_state_dict(dict(result.state))
    return result


def _check_arguments(scheduler: Any, sync: Any, callbacks: Any, paths: Mapping[str, Any]) -> None:
    if scheduler is not None and not callable(scheduler):
        raise TypeError(f"Invalid scheduler: {scheduler!r} (expected a function of the optimizer)")
    if not isinstance(sync, bool):
        raise TypeError(f"Invalid sync: {sync!r} (expected True or False)")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(f"Invalid callbacks: {callback!r} (expected instances of latecomer.training.Callback)")
    for name, path in paths.items():
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"Invalid {name}: {path!r} (expected a path)")


def make_engine(engine: str | Engine) -> Engine:
    """Return an engine by its name.

    Examples:
        >>> type(make_engine("inline")).__name__
        'InlineEngine'
    """
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


def _run(driver: TrainingLoop, saver: Saver | None, path: Path | None, about: Mapping[str, Any]) -> Result:
    """Start, loop, and leave everything in order however it ends."""
    books, server = driver.books, driver.server
    result: Result | None = None
    with contextlib.ExitStack() as stack, interrupts_between_arrivals() as interrupted:
        stack.callback(_end, driver)
        stack.callback(driver.engine.close)
        if saver is None:
            driver.start()
        else:
            stack.callback(saver.close)
            state, entries = saver.restore()
            driver.listen(interrupted)
            saver.begin(driver.start(state, entries))
            if state is None or entries:  # nothing is counted before the first one is there
                saver.save(server.arrivals, driver.state_dict(), now=state is None)
        begun, before = driver.now, server.arrivals  # the clock starts with the first worker that is ready

        def each() -> None:
            if saver is not None and server.arrivals % saver.every == 0:
                saver.save(server.arrivals, driver.state_dict())

        try:
            driver.run(interrupted, each)
        finally:
            if saver is not None and server.arrivals != saver.saved_at:
                saver.save(server.arrivals, driver.state_dict())
            if path is not None and server.arrivals:
                _record(server.trace("recorded by fit"), path, books, about)
        if interrupted:
            raise KeyboardInterrupt
        trace = server.trace("recorded by fit")
        samples = {row: int(s) for row, s in zip(trace.columns["ticket"], trace.columns["sample"], strict=True)}
        result = Result(
            method=books.method,
            options=books.options,
            history=_table(driver.history.rows),
            state=books.flat.state_dict(),
            trace=trace,
            server=server,
            record=path,
            deaths=driver.deaths,
            failures=driver.failures,
            reissued=driver.reissued,
            given_up={number: samples[number] for number in books.given_up},
            non_finite=server.non_finite,
            ignored=driver.ignored,
            diverged_at=books.diverged_at,
            seconds=driver.now - begun,
            resumed_at=before,
        )
        for callback in driver.callbacks:
            callback.ended(driver, result)
    return result


def _end(driver: TrainingLoop) -> None:
    for callback in driver.callbacks:
        callback.closed()


def _record(trace: Any, path: Path, books: Books, about: Mapping[str, Any]) -> None:
    try:
        write_record(trace, path, books.flat.x, about)
    except OSError as error:
        warnings.warn(f"The record could not be written to {path} ({error.strerror})", stacklevel=2)


def _table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    numbers = {"time": pl.Float64, "train_loss": pl.Float64, "delay": pl.Float64}
    ordered = sorted(rows, key=lambda row: int(row["arrival"]))
    return pl.DataFrame(ordered, infer_schema_length=None, schema_overrides=numbers)
