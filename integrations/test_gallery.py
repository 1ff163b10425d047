"""The examples that need other libraries, and the notebooks."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest

from pages import ROOT, run_as_file

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    ("name", "steps", "printed"),
    [
        ("hugging_face.py", 30, r"long +\d+ +0\.\d+"),
        ("accelerate_loop.py", 200, r"200 arrivals, loss 0\.000"),
        ("lightning_module.py", 200, r"200 arrivals, loss 0\.000"),
    ],
)
def test_an_example_runs_at_a_small_size(name: str, steps: int, printed: str, tmp_path: Path) -> None:
    text = (EXAMPLES / name).read_text().replace("default=300", f"default={steps}")
    run = run_as_file(text, tmp_path, warnings="default")  # those of other libraries are not ours
    assert run.returncode == 0, run.stderr
    assert re.search(printed, run.stdout), run.stdout


@pytest.mark.parametrize("name", ["own_loop.py", "replay_with_another_method.py"])
def test_a_notebook_is_its_script_and_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebooks = runpy.run_path(str(EXAMPLES / "notebooks.py"))
    assert name.removesuffix(".py") in notebooks["NOTEBOOKS"]
    assert notebooks["is_current"](EXAMPLES / name), "run python examples/notebooks.py"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    done = notebooks["executed"](EXAMPLES / name, tmp_path)
    printed = "".join(each["text"] for cell in done["cells"] for each in cell.get("outputs", []))
    assert "catch-up" in printed
