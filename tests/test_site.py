"""The documentation site: built without a warning, complete, and readable without a network."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import zlib
from importlib import import_module
from pathlib import Path

import pytest

import latecomer
from pages import ROOT

HOMES = ("latecomer.core.result", "latecomer.engines.ray", "latecomer.optim.reference", "latecomer.server")
"""Modules whose names are public, beside those that ``latecomer`` exports."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(folder / "trees")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    built = subprocess.run(
        [*command, str(ROOT / "docs"), str(folder / "site")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "site"


def documented(site: Path) -> set[str]:
    """Return the Python names of the inventory, which other projects link to."""
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(packed).decode().splitlines()
    return {line.split(" ")[0] for line in lines if line.split(" ")[1].startswith("py:")}


def test_every_public_name_is_in_the_inventory(site: Path) -> None:
    exported = [f"latecomer.{name}" for name in latecomer.__all__ if inspect.ismodule(getattr(latecomer, name))]
    wanted = {f"{home}.{name}" for home in ("latecomer", *exported, *HOMES) for name in import_module(home).__all__}
    assert {"latecomer.fit", "latecomer.optim.METHODS", "latecomer.engines.ray.RayEngine"} <= wanted
    assert wanted - documented(site) == set()


def test_pages_load_nothing_from_a_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    loaded = re.compile(r"<(?:script|img|iframe|source)[^>]+src=\"(?:https?:)?//|<link[^>]+href=\"(?:https?:)?//")
    assert [page.name for page in pages if loaded.search(page.read_text())] == []
    assert [style.name for style in site.rglob("*.css") if re.search(r"url\((?:https?:)?//", style.read_text())] == []


def test_formulas_are_drawn_by_the_browser(site: Path) -> None:
    text = (site / "theory.html").read_text()
    assert text.count("<math ") > 50
    assert not re.search(r"\$\$|\\\(|\\frac", re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL))


def test_pages_that_the_library_has_written_link_back(site: Path) -> None:
    for name in ("demo/index.html", "results/paper/evidence.html"):
        (home,) = re.findall(r'<a href="([^"]*)">Documentation of Latecomer</a>', (site / name).read_text())
        assert (site / name).parent.joinpath(home).resolve() == (site / "index.html").resolve()
