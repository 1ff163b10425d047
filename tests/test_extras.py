"""Everything but reports, Ray and TensorBoard works without the extras, and what needs one says what to type."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from latecomer._util.extras import needs

ROOT = Path(__file__).parent.parent

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        extras = "PIL jinja2 matplotlib mlflow pyarrow ray scipy sklearn tensorboard wandb zmq"
        if name.partition(".")[0] in extras.split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""

GRID = """
name = "tiny"
steps = 10
evaluate_every = 10
seeds = [0]
[problem]
name = "quadratic"
[delays]
name = "constant"
workers = 2
[[grid]]
method = "catch-up"
lr = [0.1]
"""

WORKS = """
import latecomer as lc
from latecomer.__main__ import main

problem = lc.problems.Digits()
trace = lc.delays.DataDependent(workers=3, slow_share=0.1).trace(steps=20, seed=0)
lc.simulate(problem, "catch-up", trace, lr=0.05)
lc.fit(problem, lr=0.05, workers=2, steps=20, engine="inline", record="run.parquet")
assert len(lc.Trace.load("run.parquet").columns["ticket"]) >= 20
lc.report.write_page, lc.paper.preset, lc.data.load, lc.theory.advise, lc.bench, lc.testing
for command in (
    "--help",
    "train --help",
    "trace show run.parquet --figure run.svg",
    "run --steps 10 --set lr=0.05",
    "runs",
    "sweep grid.toml --processes 1",
    "train task.py:task --engine inline --steps 10 --set lr=0.05 --record again.parquet",
    "replay again.parquet --task task.py:task",
):
    sys.argv[1:] = command.split()
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
    assert not code, command
"""

SENTENCES = {
    "import latecomer as lc; lc.report.svg": "Drawing a figure needs matplotlib: pip install 'latecomer[report]'",
    "import latecomer as lc; lc.report.render": "Writing an HTML page needs jinja2: pip install 'latecomer[report]'",
    "from latecomer._util.intervals import mean; mean([1.0, 2.0])": (
        "A confidence interval needs scipy: pip install 'latecomer[report]'"
    ),
    "from latecomer.data import formats; formats.cifar_rows(b'')": (
        "Reading images from PNG files needs pillow: pip install 'latecomer[report]'"
    ),
    "import latecomer as lc; lc.fit(lc.problems.Digits(), lr=0.1, workers=2, steps=5, engine='ray')": (
        "The Ray engine needs ray: pip install 'latecomer[ray]'"
    ),
    "import latecomer.engines.ray.hub": ("Sending tensors over the network needs pyzmq: pip install 'latecomer[ray]'"),
    "import latecomer.engines.ray.link": ("Sending tensors over the network needs pyzmq: pip install 'latecomer[ray]'"),
    "import latecomer as lc; lc.training.WeightsAndBiases()": (
        "Logging to Weights & Biases needs wandb: pip install wandb"
    ),
    "import latecomer as lc; lc.training.MLflow()": "Logging to MLflow needs mlflow: pip install mlflow",
    "import latecomer as lc; lc.fit(lc.problems.Digits(), lr=0.1, steps=5, engine='inline', tensorboard='logs')": (
        "Writing for TensorBoard needs tensorboard: pip install 'latecomer[tensorboard]'"
    ),
}

COMMANDS = {
    "demo": "Writing an HTML page needs jinja2: pip install 'latecomer[report]'",
    "reproduce mnist": "Writing an HTML page needs jinja2: pip install 'latecomer[report]'",
    "report run.parquet": "Writing an HTML page needs jinja2: pip install 'latecomer[report]'",
    "sweep grid.toml --engine ray": "The Ray engine needs ray: pip install 'latecomer[ray]'",
    "train task.py:task --engine ray": "The Ray engine needs ray: pip install 'latecomer[ray]'",
    "train task.py:task --steps 5 --tensorboard logs": (
        "Writing for TensorBoard needs tensorboard: pip install 'latecomer[tensorboard]'"
    ),
}


def without_extras(code: str, folder: Path) -> str:
    """Run Python in a process that finds none of the extras, and return what it printed."""
    (folder / "task.py").write_text("from latecomer.problems import Digits\ntask = Digits()\n")
    (folder / "grid.toml").write_text(GRID)
    command = [sys.executable, "-c", BLOCKED + code]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_core_works_without_the_extras(tmp_path: Path) -> None:
    without_extras(WORKS, tmp_path)


def test_what_needs_an_extra_says_what_to_type(tmp_path: Path) -> None:
    """One process for all of them: importing torch takes longer than the rest."""
    code = f"""
import contextlib, io
from latecomer.cli.main import main

for code in {list(SENTENCES)}:
    try:
        exec(code, {{}})
    except ImportError as error:
        print(error)
for command in {list(COMMANDS)}:
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
        code = main(command.split())
    print(code, stderr.getvalue().strip())
"""
    printed = without_extras(code, tmp_path).splitlines()
    assert printed == [*SENTENCES.values(), *(f"2 latecomer: {words}" for words in COMMANDS.values())]


def test_a_package_that_is_there_and_broken_gives_its_reason() -> None:
    with (
        pytest.raises(ImportError, match=r"^A figure needs x \(numpy is too old\): pip install 'latecomer\[report\]'$"),
        needs("report", "x", "A figure"),
    ):
        raise ImportError("numpy\nis too old")


def test_core_and_extras_are_what_they_are_meant_to_be() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = "torch numpy polars safetensors rich tyro filelock pooch tomli-w cloudpickle"
    assert {Requirement(each).name for each in project["dependencies"]} == set(core.split())
    optional = project["optional-dependencies"].items()
    extras = {extra: {Requirement(each).name for each in given} for extra, given in optional}
    assert extras["report"] == {"jinja2", "matplotlib", "pillow", "scipy"}
    assert extras["ray"] == {"pyzmq", "ray"}
    assert extras["tensorboard"] == {"tensorboard"}
