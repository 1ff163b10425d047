"""Help and version come without the heavy packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "polars", "numpy", "matplotlib", "sklearn", "ray", "pyarrow")
CODE = """
import sys
from latecomer.__main__ import main
sys.argv = ["latecomer", *{argv}]
try:
    code = main()
except SystemExit as stop:
    code = stop.code
print(code, sorted(set({heavy}) & sys.modules.keys()), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["--version"], ["-V"], [], ["train", "--help"], ["trace", "--help"], ["trace", "show", "--help"],
     ["run", "--help"], ["trian"], ["train", "--wokers", "3"]],
    ids=" ".join,
)  # fmt: skip
def test_nothing_heavy_is_imported(argv: list[str]) -> None:
    code = CODE.format(argv=argv, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    expected = 2 if argv in (["trian"], ["train", "--wokers", "3"]) else 0
    assert done.stderr.splitlines()[-1] == f"{expected} []"
    assert (done.stdout == "") == (expected == 2)


def test_importing_the_package_imports_none_of_its_parts() -> None:
    code = "import latecomer, sys; print([m for m in sys.modules if m in ('torch', 'numpy') or 'latecomer.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
