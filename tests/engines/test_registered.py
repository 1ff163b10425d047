"""Registered methods are known in worker processes: looked up there, loaded only then."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import latecomer as lc
from engine_tasks import data
from latecomer.engines import WorkerSpec
from latecomer.engines.registered import RegisteredMethods
from latecomer.optim import METHODS, Method, Momentum, register


def looks_up(name: str) -> Any:
    """Return a loss and an evaluation that look a name up and use what they find."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        rule = METHODS[name]([nn.Parameter(torch.zeros(1))], lr=0.5)
        return nn.functional.mse_loss(model(batch[0]), batch[1]) * rule.param_groups[0]["lr"]

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"known": float(METHODS[name].influence(3)), "length": float(len(METHODS))}

    return loss, evaluate


def fitted(engine: Any, name: str = "mine") -> lc.Run:
    loss, evaluate = looks_up(name)
    return lc.fit(
        nn.Linear(3, 1), loss, data(), method="momentum", lr=0.01, steps=12, workers=2, engine=engine, evaluate=evaluate
    )


def by_value(factor: float) -> Any:
    """Return a rule that no other process can import."""

    class Mine(Momentum):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, lr=lr * factor)

    return Mine


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_the_code_of_a_worker_finds_a_registered_name(engine: str, registry: dict[str, Any]) -> None:
    register("mine", by_value(2.0), influence=lambda delay: 1.0 + delay)
    final = fitted(engine).final
    assert (final["known"], final["length"]) == (4.0, len(METHODS))


def test_only_who_looks_up_what_cannot_be_sent_is_told(registry: dict[str, Any]) -> None:
    lock = threading.Lock()
    register("locked", lambda params, lr: Momentum(params, lr=lr * (2 if lock.locked() else 1)))
    register("mine", by_value(2.0), influence=lambda delay: 1.0)
    assert fitted("local").final["known"] == 1.0
    with pytest.raises(ValueError, match=r"'locked' could not be sent to this process \(.*_thread.lock.*define it in"):
        fitted("local", "locked")


def test_nothing_is_sent_if_nothing_was_registered(registry: dict[str, Any]) -> None:
    spec = WorkerSpec(lc.problems.quadratic(), size=10, dtype=torch.float64)
    plain = len(pickle.dumps(spec))
    register("plain", Momentum)
    assert plain < len(pickle.dumps(spec)) < plain + 1000
    del registry["plain"]
    assert len(pickle.dumps(spec)) == plain
    assert b"momentum" not in pickle.dumps(RegisteredMethods())


def test_a_sent_method_is_loaded_when_it_is_looked_up(registry: dict[str, Any]) -> None:
    method = register("mine", Momentum, source="here")
    sent = pickle.dumps(RegisteredMethods())
    pickle.loads(sent)
    assert METHODS["mine"] is method  # what is known already stays
    del registry["mine"]
    pickle.loads(sent)
    assert "mine" not in registry
    assert ("mine" in METHODS, list(METHODS)[-1], len(METHODS)) == (True, "mine", len(registry) + 1)
    assert METHODS["mine"] == method
    assert registry["mine"] is METHODS["mine"] is METHODS.get("mine")
    del registry["mine"]
    pickle.loads(sent)
    again = register("mine", lc.optim.AsyncSGD)  # the file that registers it is imported there too
    assert METHODS["mine"] is again
    assert list(METHODS).count("mine") == 1


IMPORTED = """
import latecomer as lc

class Twice(lc.optim.Momentum):
    def __init__(self, params, lr):
        super().__init__(params, lr=2 * lr)

lc.optim.register("twice", Twice, influence=lambda delay: 7.0)
"""


def test_a_method_of_an_imported_file_is_found_too(tmp_path: Path, registry: dict[str, Any]) -> None:
    from latecomer._util.imports import import_file

    (tmp_path / "rules_to_send.py").write_text(IMPORTED)
    import_file(tmp_path / "rules_to_send.py")
    assert fitted("local", "twice").final["known"] == 7.0


def test_a_method_can_be_pickled() -> None:
    for method in METHODS.values():
        again = pickle.loads(pickle.dumps(method))
        assert again == method
        assert again.options == method.options
        with pytest.raises(TypeError):
            again.options["x"] = 1
    made = Method("own", Momentum, options={"beta": 0.5})
    assert pickle.loads(pickle.dumps(made))([nn.Parameter(torch.zeros(1))], lr=1.0).param_groups[0]["beta"] == 0.5
