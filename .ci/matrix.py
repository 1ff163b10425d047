"""Run the tests of optimizers, server and simulator on the oldest and the newest supported torch and Python.

Each pair gets a virtual environment of its own under ``.venv-matrix/``, which later calls reuse. A version that cannot
be had here gets one line and is left out. The exit code is 1 if a test has failed, 2 if no pair could be tested.
Only the standard library is imported, so any Python from 3.11 on runs this file.

Other pairs can be named: ``python .ci/matrix.py --python 3.12 --torch 2.14`` (both options may be repeated).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-matrix"
TESTS = (
    "tests/optim",
    "tests/test_server.py",
    "tests/test_any_order.py",
    "tests/simulation",
    "tests/test_golden_results.py",
)
TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Wheels without CUDA. Those of PyPI do not import without its libraries, which take gigabytes."""
GIGABYTE = 1 << 30


class Row(NamedTuple):
    """What one pair of versions gave."""

    python: str
    torch: str
    build: str
    passed: int
    failed: int
    skipped: int
    seconds: float


def version(text: str) -> tuple[int, ...]:
    """Return a version as numbers; what follows them, such as ``+cpu``, is left out."""
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0]))


def package(pin: str) -> str:
    """Return the normalised name of the package in a line ``name==version``."""
    return re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower()


def pyproject() -> dict[str, Any]:
    """Return the project table of pyproject.toml."""
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def dependencies() -> list[str]:
    """Return what the library needs."""
    return list(pyproject()["dependencies"])


def oldest_supported() -> dict[str, str]:
    """Return the oldest supported Python and torch, as pyproject.toml has them."""
    torch = next(line for line in dependencies() if re.match(r"torch\b", line))
    lowest = re.search(r">=\s*([\d.]+)", torch)
    python = re.search(r">=\s*([\d.]+)", pyproject()["requires-python"])
    if lowest is None or python is None:
        sys.exit("pyproject.toml has no lower bound for torch or Python")
    return {"torch": lowest[1], "python": python[1]}


def name_of(python: str) -> str:
    """Return an interpreter's version as ``3.12``, or "" if it does not work."""
    asked = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([python, "-c", asked], capture_output=True, text=True)
    return "" if answer.returncode else answer.stdout.strip()


def interpreters() -> dict[tuple[int, ...], str]:
    """Return one working interpreter per Python version: this one, those of pyenv, those on PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = (shutil.which(f"python3.{minor}") for minor in range(11, 40))
    found: dict[tuple[int, ...], str] = {}
    for path in (sys.executable, *sorted(map(str, pyenv.glob("*/bin/python"))), *filter(None, on_path)):
        name = name_of(path)
        if name:
            found.setdefault(version(name), path)
    return found


def interpreter(asked: str) -> str:
    """Return the interpreter that a version such as ``3.12``, a command or a path names."""
    by_version = re.fullmatch(r"\d+\.\d+", asked)
    found = interpreters().get(version(asked)) if by_version else shutil.which(asked)
    if found is None or not name_of(found):
        sys.exit(f"There is no working Python {asked} here")
    return found


def releases(python: str) -> list[str]:
    """Return the releases of torch that pip offers this Python, oldest first."""
    listed = subprocess.run([python, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True)
    line = re.search(r"^Available versions: (.*)$", listed.stdout, flags=re.MULTILINE)
    return sorted({each.strip().split("+")[0] for each in line[1].split(",")} if line else (), key=version)


def call(*command: str) -> str:
    """Run a command quietly; return "" or, if it fails, the last line it printed about an error."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if not done.returncode:
        return ""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [f"exit code {done.returncode}"])[-1][:160]


def install(python: str, torch: str, venv: Path) -> str:
    """Make a virtual environment with this torch and the pinned set of everything else; return what went wrong."""
    shutil.rmtree(venv, ignore_errors=True)
    trouble = call(python, "-m", "venv", str(venv))
    if trouble:
        return trouble
    pip = (str(venv / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    if call(*pip, "--timeout", "10", "--retries", "0", "--index-url", CPU_INDEX, f"torch=={torch}"):
        free = shutil.disk_usage(venv).free
        if free < 12 * GIGABYTE:
            return f"no CPU build, and {free // GIGABYTE} GB of disk are too few for the CUDA libraries PyPI's needs"
        print(f"  no CPU build of torch {torch} within reach: taking PyPI's, with its CUDA libraries", flush=True)
        trouble = call(*pip, "--no-cache-dir", f"torch=={torch}")
        if trouble:
            return trouble
    # What this torch brought stays as it is: it may not accept the pinned version (setuptools, for example).
    frozen = subprocess.run([*pip[:-3], "freeze", "--all"], capture_output=True, text=True, check=True).stdout
    brought = {package(line) for line in frozen.splitlines()}
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if package(line) not in brought]
    constraints = venv / "constraints.txt"
    constraints.write_text("\n".join([*pins, *frozen.splitlines()]) + "\n")
    pinned = (*pip, "-c", str(constraints))
    return call(*pinned, "hatchling", "editables", *TOOLS) or call(*pinned, "--no-build-isolation", "-e", ".")


def run(python: str, name: str, torch: str) -> Row | None:
    """Install and test one pair of versions."""
    venv = FOLDER / f"python{name}-torch{torch}"
    stamp = venv / "lib" / ".installed"
    key = "\n".join([*dependencies(), (ROOT / "constraints.txt").read_text()])
    print(f"Python {name}, torch {torch}: {venv.relative_to(ROOT)}", flush=True)
    if not stamp.exists() or stamp.read_text() != key:
        trouble = install(python, torch, venv)
        if trouble:
            print(f"  cannot be had here: {trouble}", flush=True)
            shutil.rmtree(venv, ignore_errors=True)
            return None
        stamp.write_text(key)
    inside = str(venv / "bin" / "python")
    asked = "import torch; print(torch.__version__)"
    build = subprocess.run([inside, "-c", asked], capture_output=True, text=True)
    if build.returncode:
        print(f"  torch does not import: {build.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    report = venv / "tests.xml"
    report.unlink(missing_ok=True)
    begun = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = ["-q", "-n", "2", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run([inside, "-m", "pytest", *options, *TESTS], cwd=ROOT, env=environment)
    seconds = time.monotonic() - begun
    if not report.exists():
        print(f"  pytest ended with exit code {done.returncode} and no report", flush=True)
        return Row(name, torch, build.stdout.strip(), 0, 1, 0, seconds)
    suite = next(ElementTree.parse(report).iter("testsuite"))
    total, bad, skipped = (int(suite.get(key, 0)) for key in ("tests", "failures", "skipped"))
    bad += int(suite.get("errors", 0))
    return Row(name, torch, build.stdout.strip(), total - bad - skipped, bad, skipped, seconds)


def main() -> int:
    """Test every pair and print a table."""
    oldest = oldest_supported()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", action="append", help="a version or an interpreter; the oldest and the newest found by default"
    )
    parser.add_argument("--torch", action="append", help="a release, 'oldest' or 'newest'; both by default")
    asked = parser.parse_args()
    if asked.python:
        pythons = [interpreter(each) for each in asked.python]
    else:
        supported = {number: path for number, path in interpreters().items() if number >= version(oldest["python"])}
        ends = sorted({min(supported), max(supported)})
        print(f"Interpreters found: {', '.join('.'.join(map(str, each)) for each in sorted(supported))}")
        if min(supported) > version(oldest["python"]):
            print(f"Python {oldest['python']} cannot be had here")
        pythons = [supported[each] for each in ends]
    rows, total = [], 0
    for python in pythons:
        name = name_of(python)
        offered = [each for each in releases(python) if version(oldest["torch"]) <= version(each) < (3,)]
        if not offered:
            print(f"Python {name}: pip offers no torch from {oldest['torch']} on")
            continue
        wanted = [{"oldest": offered[0], "newest": offered[-1]}.get(each, each) for each in asked.torch or ()]
        for torch in wanted or dict.fromkeys((offered[0], offered[-1])):
            total += 1
            row = run(python, name, torch)
            rows += [row] if row else []
    print(f"\n{'Python':<8}{'torch':<16}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for row in rows:
        print(f"{row.python:<8}{row.build:<16}{row.passed:>8}{row.failed:>8}{row.skipped:>9}{row.seconds:>9.0f}")
    if len(rows) < total:
        print(f"{total - len(rows)} of {total} pairs could not be had here, as said above")
    return 2 if not rows else int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
