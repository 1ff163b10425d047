"""What Weights & Biases (offline) and MLflow (a folder) hold of a real run is what the run says."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import mlflow
import pytest
from wandb.proto.wandb_internal_pb2 import Record

import latecomer as lc
from latecomer.testing import KillAt
from latecomer.training import MLflow, WeightsAndBiases

BLOCK, FULL, LAST = 32768, 1, 4
OPTIONS: dict[str, Any] = {"method": "catch-up", "lr": 0.02, "workers": 2, "steps": 60, "evaluate_every": 20}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def written(folder: Path) -> list[Record]:
    """Return what an offline run has written, once it ends with an exit: its own process writes it, and may lag."""
    deadline = time.monotonic() + 60
    while not (found := scanned(folder)) or not found[-1].HasField("exit"):
        assert time.monotonic() < deadline, f"no exit among {len(found)} records"
        time.sleep(0.1)
    return found


def scanned(folder: Path) -> list[Record]:
    """Return what an offline run of Weights & Biases has written: LevelDB's log format, after a header of 7 bytes."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    raw, at, whole, found = file.read_bytes(), 7, b"", list[Record]()
    assert raw.startswith(b":W&B")
    while at + 7 <= len(raw):
        if BLOCK - at % BLOCK < 7:  # no record begins so close to the end of a block
            at += BLOCK - at % BLOCK
        length, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
        if at + 7 + length > len(raw):
            break
        whole += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            found.append(Record())
            found[-1].ParseFromString(whole)
            whole = b""
    return found


def names(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def test_weights_and_biases_has_the_history_the_options_and_the_faults(tmp_path: Path) -> None:
    logger = WeightsAndBiases(project="p", mode="offline", dir=str(tmp_path), config={"note": "mine"})
    run = lc.fit(lc.problems.two_centres(), callbacks=[logger, KillAt((1, 20))], **OPTIONS)
    records = written(tmp_path)
    rows = [{names(item): json.loads(item.value_json) for item in r.history.item} for r in records if r.history.item]
    assert [row["_step"] for row in rows] == run.history["update"].to_list() == [0, 20, 40, 60]
    assert [row["loss"] for row in rows] == run.history["loss"].to_list()
    assert [row.get("train_loss") for row in rows] == run.history["train_loss"].to_list()
    config = {names(i): json.loads(i.value_json) for r in records for i in [*r.config.update, *r.run.config.update]}
    assert {"method", "lr", "workers", "steps", "note"} <= config.keys()
    assert (config["method"], config["lr"], config["note"]) == ("catch-up", 0.02, "mine")
    summary = {names(i): json.loads(i.value_json) for r in records for i in r.summary.update}
    assert summary["deaths"] == run.deaths == 1
    assert [r.exit.exit_code for r in records if r.HasField("exit")] == [0]


def test_mlflow_has_the_history_the_options_and_the_faults(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    logger = MLflow("e", tracking_uri=uri, run_name="first")
    run = lc.fit(lc.problems.two_centres(), callbacks=[logger, KillAt((1, 20))], **OPTIONS)
    client = mlflow.MlflowClient(tracking_uri=uri)
    found = client.get_run(logger.run_id or "")
    assert (found.info.status, found.info.run_name) == ("FINISHED", "first")
    assert found.data.params == {"method": "catch-up", "lr": "0.02", "workers": "2", "steps": "60"}
    loss = client.get_metric_history(found.info.run_id, "loss")
    assert [each.step for each in loss] == run.history["update"].to_list()
    assert [each.value for each in loss] == run.history["loss"].to_list()
    assert found.data.metrics["deaths"] == run.deaths == 1
    again = MLflow("e", tracking_uri=uri)
    lc.simulate(
        lc.problems.two_centres(), "momentum", lc.delays.Constant(2, 0.1).trace(20, 0), lr=0.01, callbacks=[again]
    )
    assert again.run_id != logger.run_id
    assert client.get_run(again.run_id or "").info.experiment_id == found.info.experiment_id


class Stop(lc.training.Callback):
    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == 10:
            raise RuntimeError("stopped")


def test_a_run_that_fails_is_marked_so(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    loggers = [MLflow("e", tracking_uri=uri), WeightsAndBiases(mode="offline", dir=str(tmp_path))]
    with pytest.raises(RuntimeError, match="stopped"):
        lc.fit(lc.problems.quadratic(), lr=0.1, engine="inline", steps=20, callbacks=[*loggers, Stop()])
    assert mlflow.MlflowClient(tracking_uri=uri).get_run(loggers[0].run_id).info.status == "FAILED"
    assert [r.exit.exit_code for r in written(tmp_path) if r.HasField("exit")] == [1]


def test_a_nan_is_logged_as_it_is(tmp_path: Path) -> None:
    def evaluate(model: Any) -> dict[str, float]:
        return {"loss": math.nan, "f1 (slow)": 1.0}

    uri = (tmp_path / "store").as_uri()
    logger = MLflow("e", tracking_uri=uri)
    import torch

    data = torch.utils.data.TensorDataset(torch.ones(8, 3), torch.ones(8, 1))
    task = lc.Task(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, data, batch_size=4, evaluate=evaluate)
    lc.fit(task, lr=0.1, engine="inline", steps=10, evaluate_every=10, callbacks=[logger])
    metrics = mlflow.MlflowClient(tracking_uri=uri).get_run(logger.run_id or "").data.metrics
    assert math.isnan(metrics["loss"])
    assert metrics["f1 _slow_"] == 1.0


def test_a_service_that_fails_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    logger = MLflow("e", tracking_uri=(tmp_path / "store").as_uri())
    monkeypatch.setattr(mlflow.MlflowClient, "log_metric", broken)
    with pytest.warns(UserWarning, match=r"Nothing more is logged to MLflow \(.*No space left.*\); the run goes on"):
        run = lc.fit(lc.problems.quadratic(), lr=0.1, engine="inline", steps=20, callbacks=[logger])
    assert len(run.trace) == 20


def test_a_store_that_cannot_be_used_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    with pytest.raises(ValueError, match=r"^MLflow cannot begin a run: .*maintenance mode"):
        lc.fit(
            lc.problems.quadratic(), lr=0.1, engine="inline", steps=20,
            callbacks=[MLflow(tracking_uri=(tmp_path / "store").as_uri())],
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"^Weights & Biases cannot begin a run: "):
        lc.fit(
            lc.problems.quadratic(), lr=0.1, engine="inline", steps=20, callbacks=[WeightsAndBiases(mode="sideways")]
        )
