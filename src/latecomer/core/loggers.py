"""Callbacks that write the history of a run for others: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import contextlib
import os
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from .._util.extras import needs
from .._util.warn import warn
from .._util.wording import in_short
from .callbacks import Callback, LiveRun
from .result import Run

__all__ = ["MLflow", "TensorBoard", "WeightsAndBiases"]

_NOT_LOGGED = ("update", "arrival", "time")


class HistoryLogger(Callback):
    """Writes the numbers of every row of the history, one step per update.

    If writing fails during the run, a warning says so, nothing more is written, and the run goes on.
    """

    _service = ""
    _failed = False

    def evaluated(self, run: LiveRun, row: Mapping[str, Any]) -> None:
        """Write the numbers of a row."""
        numbers = {
            name: float(value)
            for name, value in row.items()
            if name not in _NOT_LOGGED and isinstance(value, (int, float))
        }
        self._safely(self._write, numbers, int(row["update"]))

    @abstractmethod
    def _write(self, numbers: Mapping[str, float], update: int) -> None:
        """Write numbers by name."""

    def _safely(self, function: Any, *arguments: Any) -> None:
        if self._failed:
            return
        try:
            function(*arguments)
        except Exception as error:  # a service that is gone, a full disk
            self._failed = True
            with contextlib.suppress(Warning):  # where warnings are errors, this one is none
                warn(f"Nothing more is logged to {self._service} ({in_short(error)}); the run goes on")


class TensorBoard(HistoryLogger):
    """Writes the history to TensorBoard, one step per update.

    Args:
        folder: Folder of the event files.

    Examples:
        >>> import latecomer as lc, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     callbacks = [TensorBoard(folder)]
        ...     _ = lc.fit(lc.problems.quadratic(), lr=0.1, engine="inline", steps=20, callbacks=callbacks)
        ...     len(list(pathlib.Path(folder).glob("events.*")))
        1
    """

    _service = "TensorBoard"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        with needs("tensorboard", "tensorboard", "Writing for TensorBoard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer: Any = SummaryWriter(str(folder))

    def _write(self, numbers: Mapping[str, float], update: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, update)

    def closed(self) -> None:
        """Close the file."""
        self._writer.close()


class _RunLogger(HistoryLogger):
    """A logger of a service that knows runs: each has a configuration, results, and ends well or not."""

    _result: Run | None = None

    @staticmethod
    def _configuration(run: LiveRun) -> dict[str, Any]:
        """Return what the run was started with."""
        given = {"method": run.method, "workers": run.server.workers, "steps": run.steps, **run.options}
        return {name: value if isinstance(value, (bool, int, float)) else str(value) for name, value in given.items()}

    @staticmethod
    def _outcome(result: Run) -> dict[str, float]:
        """Return numbers about the whole run that no row of the history has."""
        found: dict[str, float] = {"deaths": result.deaths, "failures": result.failures, "reissued": result.reissued}
        return found | {"given_up": len(result.given_up), "non_finite": result.non_finite, "seconds": result.seconds}

    def ended(self, run: LiveRun, result: Run) -> None:
        """Keep the result for the end."""
        self._result = result


class WeightsAndBiases(_RunLogger):
    """Logs the history to Weights & Biases: one run per run, with method, options and faults.

    Needs ``pip install wandb``. With ``mode="offline"`` nothing is sent: ``wandb sync`` does that later.

    Args:
        **settings: Arguments of ``wandb.init``, such as ``project``, ``name``, ``dir`` and ``mode``.

    Examples:
        >>> callbacks = [WeightsAndBiases(project="digits", mode="offline")]         # doctest: +SKIP

    References:
        https://docs.wandb.ai/ref/python/init
    """

    _service = "Weights & Biases"

    def __init__(self, **settings: Any) -> None:
        with needs(None, "wandb", "Logging to Weights & Biases"):
            import wandb
        self._init, self._settings = wandb.init, settings
        self._run: Any = None

    def started(self, run: LiveRun) -> None:
        """Begin a run there."""
        self._result, self._failed = None, False
        given = {"reinit": "create_new", **self._settings}
        given["config"] = {**self._configuration(run), **dict(self._settings.get("config") or {})}
        try:
            self._run = self._init(**given)
        except Exception as error:
            raise ValueError(f"Weights & Biases cannot begin a run: {in_short(error)}") from error

    def _write(self, numbers: Mapping[str, float], update: int) -> None:
        self._run.log(dict(numbers), step=update)

    def closed(self) -> None:
        """End the run there: with exit code 1 if it did not end as planned."""
        if self._run is None:
            return
        if self._result is not None:
            self._safely(self._run.summary.update, self._outcome(self._result))
        failed = self._result is None or bool(self._result.trouble)
        self._failed = False  # whatever was lost, the run there should end
        self._safely(self._run.finish, int(failed))
        self._run = None


class MLflow(_RunLogger):
    """Logs the history to MLflow: one run per run, with method, options and faults.

    Needs ``pip install mlflow``, or ``mlflow-skinny``. Newer releases (3.17 is tested) take a folder as address only
    if ``MLFLOW_ALLOW_FILE_STORE=true`` is set in the environment.

    Args:
        experiment: Name of the experiment; it is created if there is none.
        tracking_uri: Address of the store or server; MLflow's own setting if None.
        run_name: Name of the run; MLflow chooses one if None.

    Attributes:
        run_id: MLflow's name of the run.

    Examples:
        >>> callbacks = [MLflow("digits", tracking_uri="sqlite:///mlflow.db")]       # doctest: +SKIP

    References:
        https://mlflow.org/docs/latest/ml/tracking
    """

    _service = "MLflow"

    def __init__(
        self, experiment: str = "latecomer", tracking_uri: str | None = None, run_name: str | None = None
    ) -> None:
        with needs(None, "mlflow", "Logging to MLflow"):
            import mlflow
        self._make, self._uri = mlflow.MlflowClient, tracking_uri
        self._experiment, self._run_name = experiment, run_name
        self.run_id: str | None = None

    def started(self, run: LiveRun) -> None:
        """Begin a run there."""
        self._result, self._failed, self._open = None, False, False
        try:
            self._client: Any = self._make(tracking_uri=self._uri)
            found = self._client.get_experiment_by_name(self._experiment)
            number = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
            self.run_id = self._client.create_run(number, run_name=self._run_name).info.run_id
            self._open = True
            for name, value in self._configuration(run).items():
                self._client.log_param(self.run_id, _allowed(name), str(value)[:5000])
        except Exception as error:
            raise ValueError(f"MLflow cannot begin a run: {in_short(error)}") from error

    def _write(self, numbers: Mapping[str, float], update: int) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self.run_id, _allowed(name), value, step=update)

    def closed(self) -> None:
        """End the run there: as FAILED if it did not end as planned."""
        if self.run_id is None or not self._open:
            return
        if self._result is not None:
            self._safely(self._write, self._outcome(self._result), self._result.server.optimizer.t)
        failed = self._result is None or bool(self._result.trouble)
        self._failed = False  # whatever was lost, the run there should end
        self._safely(self._client.set_terminated, self.run_id, "FAILED" if failed else "FINISHED")
        self._open = False


def _allowed(name: str) -> str:
    """Return a name of the characters that MLflow allows.

    Examples:
        >>> _allowed("f1 (slow)/all%")
        'f1 _slow_/all_'
    """
    return re.sub(r"[^\w\-. /]", "_", name)
