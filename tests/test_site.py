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
from browser import Tab, needs_chromium
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
    assert re.search(r'<mover accent="true">\s*<mi>s</mi>', text)  # the index of such a letter is not a limit
    assert not re.search(r"<munderover>\s*<mi>", text)


def test_a_number_and_its_percent_sign_stay_on_one_line(site: Path) -> None:
    text = (site / "choosing.html").read_text()
    assert "<p>68\N{NO-BREAK SPACE}%</p>" in text
    assert not re.search(r"\d %", re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL))


@needs_chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_pages_fit_on_a_screen(site: Path, width: int, tmp_path: Path) -> None:
    """Nothing makes a page wider; on a desk no formula is cut either."""
    with Tab(tmp_path, width) as tab:
        for name in ("index", "cluster", "errata", "gallery", "methods", "theory", "demo/index", "reference/training"):
            tab.open((site / f"{name}.html").as_uri())
            tab.wait(f"document.readyState == 'complete' && location.pathname.endsWith('/{name}.html')")
            assert tab.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), name
            cut = "[...document.querySelectorAll('.math')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
            assert width < 500 or tab.value(cut) == 0, name


def test_pages_that_the_library_has_written_link_back(site: Path) -> None:
    for name in ("demo/index.html", "results/paper/evidence.html"):
        (home,) = re.findall(r'<a href="([^"]*)">Documentation of Latecomer</a>', (site / name).read_text())
        assert (site / name).parent.joinpath(home).resolve() == (site / "index.html").resolve()
