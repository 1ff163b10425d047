"""The repo keeps its own rules: documented examples, no machine's paths, files of one idea."""

from __future__ import annotations

import doctest
import inspect
import os
import pkgutil
import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

import latecomer
from studies.stable_and_fair import tables

ROOT = Path(__file__).parent.parent
PUBLIC = [getattr(latecomer, name) for name in latecomer.__all__ if inspect.ismodule(getattr(latecomer, name))]


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


RETURNED = {"NonConvex", "CatchUp", "Convex", "Subset", "Interval", "Constants", "TraceError"}
"""What a function returns or raises has its example there."""


@pytest.mark.parametrize("module", [latecomer, *PUBLIC], ids=lambda m: m.__name__)
def test_what_users_call_has_an_example_that_runs(module: ModuleType) -> None:
    """pytest --doctest-modules runs them; here it is enough that they are there."""
    assert module.__all__, f"{module.__name__} says what is public"
    finder = doctest.DocTestFinder(recurse=False)
    for name in set(module.__all__) - RETURNED:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            tests = finder.find(thing, name)
            assert any(test.examples for test in tests), f"{module.__name__}.{name} has no example"


def test_no_source_file_is_longer_than_500_lines() -> None:
    assert [path for path in tracked("*.py") if len(path.read_text().splitlines()) > 500] == []


def test_no_absolute_path_of_a_machine_in_the_tree() -> None:
    own = re.compile(r"(?<![\w.])/(?:home|root|Users|work)/\w")
    pages = tracked("*.py", "*.md", "*.toml", "*.txt", "*.yml", "*.cff", "Makefile", ".ci/*")
    assert [path for path in pages if own.search(path.read_text())] == []


def test_the_pinned_set_fits_the_ranges() -> None:
    from packaging.requirements import Requirement

    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pins = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    for requirement in (each for each in map(Requirement, wanted) if each.name != "latecomer"):
        assert requirement.specifier.contains(pins[requirement.name]), requirement
    assert pins["torch"] == "2.13.0"


def test_the_version_is_written_once_and_quoted_right() -> None:
    for name in ("CITATION.cff", "CHANGELOG.md"):
        assert latecomer.__version__ in (ROOT / name).read_text()


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [p for p in PAGES if p.exists() and blocks(p)], ids=lambda p: p.name)
def test_the_examples_on_the_pages_run(page: Path) -> None:
    """All Python blocks of a page, one after the other in one namespace, as a reader would type them."""
    namespace: dict[str, object] = {}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), namespace)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


QUOTED = {
    ("README.md", "docs/research/pareto-standard.md", "In short"),
    *(("research.md", "research/pareto-standard.md", part) for part in ("Stability", "Lead", "Fairness")),
    ("research.md", "research/pareto-standard.md", "Stability within its kind"),
    ("research.md", "research/pareto-standard.md", "At their best learning rate"),
    *(("research.md", "research/hard-standard.md", part) for part in ("Stability", "Fairness")),
    ("research.md", "research/real.md", None),
}


def test_tables_quoted_on_pages_are_the_measured_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import quoted_tables

    found = set()
    for page in PAGES:
        text = page.read_text()
        found |= {(page.name, each["file"], each["title"]) for each in quoted_tables.QUOTE.finditer(text)}
        assert quoted_tables.filled(page) == text, f"python benchmarks/quoted_tables.py would change {page.name}"
    assert found == QUOTED


def test_measured_tables_of_the_research_are_their_numbers() -> None:
    folder = ROOT / "docs" / "research"
    for name, parts in (
        ("pareto-standard", tables.pareto_parts),
        ("hard-standard", tables.hard_parts),
        ("real", tables.real_parts),
    ):
        page = (folder / f"{name}.md").read_text()
        for part in parts(pl.read_csv(folder / f"{name}.csv")):
            assert "\n".join(part.lines()) in page, f"{name}.md is not what {name}.csv says: {part.title}"


def test_the_paper_map_leads_to_code_and_tests_that_exist() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    sources = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) > 10
    for row in rows:
        for symbol in re.findall(r"`((?:optim|delays|demo|theory|problems)\.[\w.]+)`", row[2]):
            pkgutil.resolve_name(f"latecomer.{symbol}")
    named = re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+)`", text)
    assert len(named) > 10
    file = ""
    for stated, name in named:
        file = stated or file
        assert re.search(rf"^def {name}\(", sources[file], flags=re.MULTILINE), f"{file}::{name}"


def test_make_targets_named_on_the_pages_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"`make (\w+)`", page.read_text()):
            assert target in targets, f"{page.name} names make {target}"


def test_ci_is_make_test(tmp_path: Path) -> None:
    """Run it with a make that only writes down how it was called, and fails."""
    fake = tmp_path / "make"
    fake.write_text('#!/bin/sh\necho "$PWD: $*" >> "$CALLS"\nexit 3\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}
    assert subprocess.run([ROOT / ".ci" / "run"], cwd=tmp_path, env=environment, timeout=60).returncode == 3
    assert (tmp_path / "calls").read_text() == f"{ROOT}: test\n"
