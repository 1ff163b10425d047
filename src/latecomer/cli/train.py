"""``latecomer train``: real workers on a user's own task."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from .._util.checks import AT_LEAST_ZERO
from .._util.defaults import default_method, too_few
from .._util.files import atomic, writable, writable_file
from .._util.imports import named_in_file
from .._util.places import user_code
from ._options import Imports, Pairs, hyper_parameters, import_all, pairs
from ._output import Json, print_text, show

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Train", "load_task"]


@dataclass(frozen=True)
class Train:
    """Train a task of your own with workers that never wait for each other.

    Example: latecomer train path/to/script.py:task --workers 4 --steps 2000
    """

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """A Python file and the name of a Task in it, or of a function that returns one."""
    method: str | None = None
    """Name of the method; rate-free, which needs no learning rate, or balanced-catch-up if --set has an lr."""
    set: Pairs = ()
    """Hyper-parameters of the method, as name=value; a method that needs an lr has 0.02 if left out."""
    imports: Imports = ()
    """A Python file that registers methods of your own; may be repeated."""
    workers: int = 2
    """Number of worker processes."""
    min_workers: int | None = None
    """Number of workers that must be ready for the run to begin; all if left out."""
    max_workers: int | None = None
    """Largest number of workers, if more join later; as many as --workers if left out."""
    engine: Literal["local", "inline", "ray"] = "local"
    """Processes of this machine, this process alone, or a Ray cluster."""
    address: str | None = None
    """Address of the Ray cluster, or auto; Ray on this machine if left out (--engine ray)."""
    cpus: float | None = None
    """CPUs that Ray reserves per worker; 1 if left out (--engine ray)."""
    gpus: float | None = None
    """GPUs that Ray reserves per worker; none if left out (--engine ray)."""
    device: str | None = None
    """Where workers compute: a device of torch such as cuda:0, or auto; where the model is if left out."""
    server_device: str = "cpu"
    """Where the server keeps the parameters and the optimizer's state."""
    threads: int = 1
    """Torch threads per worker."""
    prefetch: int = 0
    """Batches that each worker draws ahead, in a process of its own."""
    bf16: bool = False
    """Send points and gradients as bfloat16, rounded (--engine ray)."""
    data_plane: Literal["zeromq", "object-store"] | None = None
    """How tensors are sent where memory is not shared; zeromq if left out (--engine ray)."""
    steps: int | None = None
    """Length of the run, in contributions; 1000 if neither --steps nor --epochs is given."""
    epochs: float | None = None
    """How often to go through the dataset, instead of --steps."""
    evaluate_every: int | None = None
    """Contributions between evaluations; a tenth of the run if left out."""
    checkpoint: Path | None = None
    """Folder of checkpoints; the run resumes from the newest one in it."""
    checkpoint_every: int | None = None
    """Contributions between checkpoints; as --evaluate-every if left out."""
    record: Path | None = None
    """File for the trace, for latecomer replay."""
    tensorboard: Path | None = None
    """Folder for TensorBoard."""
    live: tyro.conf.FlagCreatePairsOff[bool] = False
    """Serve a page of the run while it trains, and print its address."""
    live_host: str = "127.0.0.1"
    """Address that the page listens on; with any other than this machine's own, the address has a secret token."""
    live_port: int = 0
    """Port of the page; a free one if 0."""
    sync: bool = False
    """Wait for all workers before every update, for comparison."""
    give_up_limit: float = 0.5
    """The run ends with an error if more than this share of the tickets fails again and again."""
    timeout: float | None = None
    """Seconds after which a job counts as hung and its worker is killed; never if left out."""
    save: Path | None = None
    """File for the trained model's state dict, as safetensors."""
    seed: int = 0
    """Draws the samples."""
    json: Json = False
    """Print the evaluations as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Train, print, and list what was written."""
        import_all(self.imports)
        task = load_task(self.task)
        from ..training.record import check_outputs

        check_outputs(self.record, checkpoint=self.checkpoint, tensorboard=self.tensorboard, save=self.save)
        for path in (self.record, self.save):
            if path is not None:
                writable_file(path)
        if self.checkpoint is not None:
            writable(self.checkpoint)
        try:
            with warnings.catch_warnings():
                from ..core.result import RunWarning

                warnings.simplefilter("ignore", RunWarning)  # it becomes the error below
                result = self._fit(task, console)
        except KeyboardInterrupt:
            if self.checkpoint is not None:
                print_text(console, f"Stopped; the same command resumes from {self.checkpoint}")
            raise
        self._show(result, console)
        if self.save is not None:
            from safetensors.torch import save

            with atomic(self.save) as temporary:  # written here, because save_file makes files that only one user reads
                temporary.write_bytes(save({name: value.contiguous() for name, value in result.state.items()}))
            print_text(console, f"Model written to {self.save}")
        if result.trouble:
            raise ValueError(result.trouble)

    def _fit(self, task: Any, console: Console) -> Any:
        from ..training import fit
        from ..training.fit import group_options

        groups = getattr(task, "param_groups", None)
        method = self.method or default_method(pairs(self.set), group_options(task, groups))
        if self.method is None and (advice := too_few(method, self.steps)):
            print_text(console, advice)
        return fit(
            task,
            method=method,
            workers=self.workers,
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            engine=self._engine(),
            device=self.device,
            server_device=self.server_device,
            threads=self.threads,
            prefetch=self.prefetch,
            steps=1000 if self.steps is None and self.epochs is None else self.steps,
            epochs=self.epochs,
            evaluate_every=self.evaluate_every,
            checkpoint=self.checkpoint,
            checkpoint_every=self.checkpoint_every,
            record=self.record,
            tensorboard=self.tensorboard,
            callbacks=self._callbacks(console),
            sync=self.sync,
            give_up_limit=self.give_up_limit,
            timeout=self.timeout,
            seed=self.seed,
            progress=console,
            **hyper_parameters(method, self.set),
        )

    def _callbacks(self, console: Console) -> list[Any]:
        if not self.live:
            if (self.live_host, self.live_port) != ("127.0.0.1", 0):
                raise ValueError("--live-host and --live-port belong to --live: add it, or leave them out")
            return []
        from ..monitor import Live

        return [Live(self.live_host, self.live_port, announce=lambda words: print_text(console, words))]

    def _show(self, result: Any, console: Console) -> None:
        from rich.table import Table

        history = result.history
        shown = history.drop("update") if history["update"].equals(history["arrival"]) else history
        options = result.summary()["options"]
        table = Table(title=f"{result.method} ({options}) on {self.task}, {self.workers} workers")
        for name in shown.columns:
            table.add_column(name.replace("_", "_\n"), justify="right", no_wrap=True)  # a number is never cut
        for row in shown.iter_rows():
            table.add_row(*("" if v is None else f"{v:,}" if isinstance(v, int) else f"{v:.4g}" for v in row))
        counted = len(result.trace) - result.resumed_at
        rate = counted / max(result.seconds, 1e-9)
        found = {
            "method": result.method,
            "options": dict(result.options),
            "workers": self.workers,
            "resumed_at": result.resumed_at,
            "contributions": counted,
            "seconds": result.seconds,
            "mean_delay": result.trace.delay.mean(),
            "deaths": result.deaths,
            "failures": result.failures,
            "reissued": result.reissued,
            "given_up": len(result.given_up or ()),
            "non_finite": result.non_finite,
            "diverged_at": result.diverged_at,
            "checkpoint": self.checkpoint,
            "record": self.record,
            "model": self.save,
        }
        show(console, table, {"rows": result.history.to_dicts(), **found})
        if result.resumed_at:
            print_text(console, f"Resumed from arrival {result.resumed_at:,}, in {self.checkpoint}")
        print_text(
            console,
            f"{counted:,} contributions in {result.seconds:.1f} s ({rate:,.0f} per second), mean delay "
            f"{result.trace.delay.mean():.2f}; {result.deaths} deaths, {result.failures} failures, {result.reissued} "
            f"issued again, {len(result.given_up or ())} given up, {result.non_finite} not finite",
        )
        if self.checkpoint is not None:
            print_text(console, f"Checkpoints in {self.checkpoint}")
        if self.record is not None:
            print_text(console, f"Trace written to {self.record}, the final parameters beside it")
        if self.tensorboard is not None:
            print_text(console, f"TensorBoard files in {self.tensorboard}")

    def _engine(self) -> Any:
        """Return the engine, or its name; what only Ray understands is refused elsewhere."""
        options = {"address": self.address, "cpus": self.cpus, "gpus": self.gpus, "data_plane": self.data_plane}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        given |= {"bf16": True} if self.bf16 else {}
        if self.engine != "ray":
            if given:
                flag = next(iter(given)).replace("_", "-")
                raise ValueError(f"--{flag} belongs to --engine ray, not to {self.engine}")
            return self.engine
        for name in {"cpus", "gpus"} & given.keys():
            AT_LEAST_ZERO.check(f"--{name}", given[name])
        import cloudpickle

        from ..engines.ray.cluster import import_ray
        from ..engines.ray.engine import RayEngine

        # Workers need not find the task's file on their path: Ray brings what is in it along, and methods that this
        # or an imported file registers are pickled before Ray gets them.
        task = Path(self.task.rpartition(":")[0])
        import_ray().cloudpickle.register_pickle_by_value(sys.modules[task.stem])
        for file in (task, *self.imports):
            cloudpickle.register_pickle_by_value(sys.modules[file.stem])
        return RayEngine(**given)


def load_task(words: str) -> Any:
    """Import ``path/to/script.py:name`` and return the task; a function is called."""
    from ..problems import Problem

    task = named_in_file(words, "task")
    if not isinstance(task, Problem):
        with user_code(words):
            task = task() if callable(task) else task
    if not isinstance(task, Problem):
        raise TypeError(
            f"{words} is of type {type(task).__name__} (expected a latecomer.Task, or a function that returns one)"
        )
    return task
