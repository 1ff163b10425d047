"""What is defined in the cells of a notebook is trained by real worker processes."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from pages import ROOT

CELLS = (
    """
import torch
import latecomer as lc

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x)

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        x = torch.randn(3, generator=torch.Generator().manual_seed(index))
        return x, x.sum()[None]
""",
    """
model = Net()
run = lc.fit(
    model,
    lambda net, batch: (net(batch[0]) - batch[1]).square().mean(),
    Squares(),
    lr=0.05,
    steps=150,
    evaluate=lambda net: {"off": float((net.layer.weight - 1).abs().max())},
)
assert run.final["off"] < 0.05
""",
    "run",
)


def test_a_class_and_a_lambda_of_a_cell_train_on_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (shown,) = notebook.cells[-1].outputs
    assert "<th" in shown["data"]["text/html"]
    assert "final off" in shown["data"]["text/html"]
    assert "final off" in shown["data"]["text/plain"]
