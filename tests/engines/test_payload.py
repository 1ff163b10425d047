"""What worker processes get: functions and classes by name or by value, large arrays in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import latecomer as lc
from engine_tasks import data, network
from latecomer.engines.payload import Payload

ROOT = Path(__file__).parent.parent.parent


def test_what_cannot_be_copied_raises_with_the_remedy() -> None:
    lock = threading.Lock()

    def inner(model: nn.Module, batch: Any) -> torch.Tensor:
        with lock:
            return model(batch[0]).sum()

    with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object.*create it where it is used.*'inline'"):
        lc.fit(network(), inner, data(), lr=0.1, steps=5)
    lc.fit(network(), inner, data(), lr=0.001, steps=5, engine="inline")


def test_what_workers_are_sent_is_what_was_there() -> None:
    big = nn.Sequential(*(nn.Linear(128, 128) for _ in range(6)))
    tied = torch.randn(300, 100)
    sent = {"model": big, "a": tied, "b": tied, "half": tied.bfloat16(), "part": tied[:, :50], "one": torch.tensor(3.0)}
    sent |= {"array": np.arange(10_000), "words": np.array(["x"] * 5000, dtype=object)}
    payload = Payload(sent)
    got = payload.load()
    payload.close()
    assert all(torch.equal(a, b) for a, b in zip(big.parameters(), got["model"].parameters(), strict=True))
    assert got["a"] is got["b"]
    assert all(torch.equal(got[key], sent[key]) for key in ("a", "half", "part", "one"))
    assert np.array_equal(got["array"], sent["array"])
    assert np.array_equal(got["words"], sent["words"])
    got["a"].zero_()  # private pages: no other process sees it
    assert tied.abs().sum() > 0


SCRIPT = """
import enum
import torch
import latecomer as lc

SCALE = 2.0
Kind = enum.Enum("Kind", "slow fast")

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * SCALE

    @staticmethod
    def backward(ctx, grad):
        return grad * SCALE

class Net(torch.nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.layer, self.kind = torch.nn.Linear(3, 1), Kind.slow

    def forward(self, x):
        assert self.kind is Kind.slow
        return Scaled.apply(self.layer(x))

print("script")
x = torch.randn(8000, 3)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
score = lambda model: {"error": float((model(x) - data.tensors[1]).square().mean())}
task = lc.Task(Net(), lambda model, batch: (model(batch[0]) - batch[1]).square().mean(), data, evaluate=score)
run = lc.fit(task, lr=0.02, workers=2, steps=120, record="run.parquet")
assert run.final["error"] < 1e-3, run.final
assert lc.training.replay("run.parquet", task).difference == 0.0
"""


@pytest.mark.parametrize("how", ["file", "console"])
def test_a_script_needs_no_guard_and_its_classes_and_lambdas_are_sent(how: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, *(["script.py"] if how == "file" else ["-c", SCRIPT])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert (run.returncode, run.stdout, run.stderr) == (0, "script\n", "")  # it ran once, not in every worker


def test_a_module_that_calls_fit_when_it_is_imported_is_one_sentence(tmp_path: Path) -> None:
    """Workers import a module by its name, and would train again."""
    (tmp_path / "careless.py").write_text(
        "import latecomer as lc\nclass Own(lc.problems.Quadratic): pass\nlc.fit(Own(), lr=0.1, workers=1, steps=5)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "latecomer", "train", "careless.py:Own"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert run.returncode == 2
    assert "put the call under `if __name__ == '__main__':`" in run.stderr
    assert run.stderr.count("\n") == 1
