"""The repo keeps its own rules: documented examples, no machine's paths, files of one idea."""

from __future__ import annotations

import ast
import doctest
import inspect
import os
import pkgutil
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

import latecomer
from pages import PAGES, blocks, run_as_file, scripts
from studies.stable_and_fair import tables

ROOT = Path(__file__).parent.parent
PUBLIC = [getattr(latecomer, name) for name in latecomer.__all__ if inspect.ismodule(getattr(latecomer, name))]


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


RETURNED = {"NonConvex", "CatchUp", "Convex", "Subset", "Interval", "Constants", "TraceError", "Comparison", "Results"}
RETURNED |= {"Reached", "WorkShares", "Plan", "Prediction"}
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
    for name in ("CITATION.cff", "CHANGELOG.md", "README.md"):
        assert latecomer.__version__ in (ROOT / name).read_text()


def test_the_example_of_the_readme_runs_as_a_file_in_an_empty_folder(tmp_path: Path) -> None:
    (file,) = scripts(ROOT / "README.md")
    assert len([line for line in file.splitlines() if line]) <= 12
    run = run_as_file(file, tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert float(run.stdout.split("loss:")[-1]) < 1e-3
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


EXTEND = ROOT / "docs" / "extend.md"
IN_TURN = [p for p in PAGES if p.name != "README.md" and p != EXTEND and blocks(p)]


@pytest.mark.parametrize("page", IN_TURN, ids=lambda p: p.name)
def test_the_examples_of_the_guides_run(page: Path) -> None:
    """All in this process, file after file; ``make integrations`` starts each as a file of its own."""
    for text in scripts(page):
        exec(compile(text, str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("block", blocks(EXTEND), ids=lambda block: block.split("\n")[0][2:])
def test_every_block_about_extending_is_a_file_that_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: dict[str, object]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / block.split("\n")[0].removeprefix("# ")
    assert file.suffix == ".py"
    file.write_text(block)
    runpy.run_path(str(file), run_name="__main__")


def test_the_readme_is_short() -> None:
    prose = re.sub(r"^```.*?^```", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= 800


def test_the_page_of_the_methods_has_all_of_them() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    assert [name for name in latecomer.optim.METHODS if f"`{name}`" not in page] == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
                # The site consists of docs/: what leads out of it is a broken link there.
                # The scripts of the gallery are downloads.
                whole = (page.parent / target).resolve()
                inside = any(whole.is_relative_to(ROOT / folder) for folder in ("docs", "examples"))
                assert page.name == "README.md" or inside, f"{page.name} links to {target}"


def sentences(text: str) -> list[str]:
    """Return the sentences of a page, without code, tables, comments and headings."""
    text = re.sub(r"^( *)```.*?^ *```", "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^ *(?:\||#).*$", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^ *(?:[-*>]|\d+\.) +", "\n\n", text, flags=re.MULTILINE)
    paragraphs = (" ".join(each.split()) for each in re.split(r"\n\s*\n", text))
    return [each for paragraph in paragraphs for each in re.split(r"(?<=[.!?:;])\s+", paragraph) if each]


def test_no_sentence_occurs_twice_on_a_page() -> None:
    assert sentences("A. One\ntwo.\n\n- One two.\n| One two. |\n```\nOne two.\n```\n") == ["A.", "One two.", "One two."]
    found = {}
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        counted = Counter(each for each in sentences(page.read_text()) if len(each) > 40 and each[-1] in ".!?:;")
        found |= {f"{page.name}: {each}": count for each, count in counted.items() if count > 1}
    assert found == {}


QUOTED = {
    ("README.md", "docs/demo/results.md", "In words"),
    ("choosing.md", "demo/results.md", "Table"),
    ("choosing.md", "research/pareto-standard.md", "In short"),
    ("gallery.md", "gallery/late_episodes.md", None),
    ("rivals.md", "rivals/ringmaster.md", None),
    ("rivals.md", "results/many_workers.md", None),
    ("compare.md", "results/compare/comparison.md", "In words"),
    ("compare.md", "rivals/rates.md", None),
    ("plan.md", "results/plan.md", None),
    *(("plan.md", "results/plan-text.md", part) for part in ("Advice", "Table")),
    *(("research.md", "research/pareto-standard.md", part) for part in ("Stability", "Lead", "Fairness")),
    ("research.md", "research/pareto-standard.md", "Stability within its kind"),
    ("research.md", "research/pareto-standard.md", "At their best learning rate"),
    *(("research.md", "research/hard-standard.md", part) for part in ("Stability", "Fairness")),
    ("research.md", "research/real.md", None),
    *(
        ("rate-free.md", "results/rate-free/index.md", part)
        for part in (
            "Verdicts",
            "Relative influence of slow samples",
            "The counter-example to Theorem 1",
            "What a sweep costs",
            "Harder settings",
        )
    ),
    ("rate-free.md", "results/rate-free/transformer.md", None),
    *(
        ("balanced.md", "research/adamw-standard.md", part)
        for part in ("Digits", "MNIST", "Text", "Differences", "Far")
    ),
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


def test_the_range_over_numbers_of_workers_is_that_of_its_table() -> None:
    table = (ROOT / "docs" / "results" / "many_workers.md").read_text()
    heads, _, *rows = [line.split(" | ") for line in table.splitlines() if line.startswith("|")]
    ratios = [float(row[heads.index("10,000 over 10")]) for row in rows]
    words = f"takes {min(ratios):.2f} to {max(ratios):.2f} times as long with 10,000 workers as with 10"
    assert words in (ROOT / "docs" / "speed.md").read_text()


def test_measured_tables_of_the_research_are_their_numbers() -> None:
    folder = ROOT / "docs" / "research"
    for name, parts in (
        ("pareto-standard", tables.pareto_parts),
        ("hard-standard", tables.hard_parts),
        ("real", tables.real_parts),
        ("adamw-standard", tables.adamw_parts),
    ):
        page = (folder / f"{name}.md").read_text()
        for part in parts(pl.read_csv(folder / f"{name}.csv")):
            assert "\n".join(part.lines()) in page, f"{name}.md is not what {name}.csv says: {part.title}"


def test_the_paper_map_leads_to_code_and_tests_that_exist() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    sources: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):  # several folders may have a file of one name
        sources[path.name] = sources.get(path.name, "") + path.read_text()
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


def defined(path: Path) -> set[str]:
    """Return the functions, classes and methods that a file defines: ``fit``, ``Server``, ``Server.issue``."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return names


NOT_CODE = {"t", "k", "x_t", "x_1", "latecomer"}
"""What stands in code font on the architecture page and is neither a file nor a symbol."""


def test_the_architecture_page_names_files_and_symbols_that_exist() -> None:
    text, source = (ROOT / "docs" / "architecture.md").read_text(), ROOT / "src" / "latecomer"
    everywhere = set().union(*map(defined, source.rglob("*.py")))
    shape = (
        r"!\[[^]]*\]\([^)]*\)|`(make \w+|[\w.-]+=)`|`arrival-[\w.-]+`"  # pictures, targets and arguments, file names
    )
    spans = re.findall(r"`([^`\n]+)`", re.sub(shape, "", text))
    assert len(spans) > 100
    for span in set(spans) - NOT_CODE - {"evaluate_every"}:
        if re.search(r"/|\.(?:py|toml)$", span):
            assert (source / span).exists() or (ROOT / span).exists(), f"the architecture page names {span}"
        else:
            assert span in everywhere, f"the architecture page names {span}"
    pairs = re.findall(r"`([\w.]+)`\s+\(`([\w/]+\.py)`\)", text)
    assert len(pairs) > 40
    for symbol, file in pairs:
        assert symbol in defined(source / file), f"the architecture page looks for {symbol} in {file}"


def test_the_diagrams_are_what_their_script_draws_of_code_that_exists() -> None:
    folder = ROOT / "docs" / "architecture"
    module = runpy.run_path(str(folder / "diagrams.py"))
    page = (ROOT / "docs" / "architecture.md").read_text()
    for name, (title, bands) in module["DIAGRAMS"].items():
        assert (folder / f"{name}.svg").read_text() == module["draw"](title, bands), "run diagrams.py"
        steps = [step for band in bands for step in band.steps]
        for number, step in enumerate(steps, 1):
            assert step.call in defined(ROOT / "src" / "latecomer" / step.file), f"{name}.svg names {step.call}"
            assert any(line.startswith(f"{number}. ") and step.call in line for line in page.splitlines()), step.call


def test_make_targets_named_on_the_pages_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"`make (\w+)`", page.read_text()):
            assert target in targets, f"{page.name} names make {target}"


def test_the_versions_of_ci_are_those_of_the_classifiers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), flags=re.MULTILINE)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    pythons = re.search(r"python: \[(.*)\]", workflow)
    assert pythons is not None
    assert re.findall(r"3\.\d+", pythons[1]) == stated
    assert project["requires-python"] == f">={stated[0]}"
    assert ".ci/run" in workflow
    assert ".ci/matrix.py" in workflow


def test_the_matrix_tests_files_that_exist() -> None:
    matrix = runpy.run_path(str(ROOT / ".ci" / "matrix.py"))
    assert all((ROOT / path).exists() for path in matrix["TESTS"])
    assert matrix["oldest_supported"]() == {"torch": "2.12", "python": "3.11"}
    assert matrix["version"]("2.13.0+cpu") == (2, 13, 0)


def test_ci_is_make_browser_and_make_test(tmp_path: Path) -> None:
    """Run it with a make that only writes down how it was called, and fails."""
    fake = tmp_path / "make"
    fake.write_text('#!/bin/sh\necho "$PWD: $*" >> "$CALLS"\nexit 3\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}
    assert subprocess.run([ROOT / ".ci" / "run"], cwd=tmp_path, env=environment, timeout=60).returncode == 3
    assert (tmp_path / "calls").read_text() == f"{ROOT}: browser\n{ROOT}: test\n"


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        ({}, "there is no apt-get here: install the package chromium"),
        (
            {"apt-get": "exit 0", "id": "echo 1000", "sudo": "exit 1"},
            "installing needs root; type: sudo sh -c 'apt-get",
        ),
        ({"apt-get": "exit 100", "id": "echo 0"}, "apt-get could not install chromium"),
        ({"apt-get": "exit 0", "id": "echo 0"}, "chromium is installed but does not start"),
        ({"chromium": "echo Chromium 1"}, ""),
    ],
    ids=["no apt-get", "no root", "apt-get fails", "does not start", "is there"],
)
def test_make_browser_says_what_to_type(tools: dict[str, str], sentence: str, tmp_path: Path) -> None:
    """With nothing on the path but these tools, and what the script itself needs."""
    for name in ("bash", "sh", "env", "timeout"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    for name, does in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    command = [str(tmp_path / "bash"), str(ROOT / ".ci" / "browser")]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == (1 if sentence else 0)
    assert sentence in done.stderr


def test_what_was_skipped_ends_the_tests_with_the_command_that_changes_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n@pytest.mark.skipif(True, reason='no Chromium on this machine')\n"
        "def test_a(): ...\n\ndef test_b(): pytest.skip('the moon')\n\ndef test_c(): ...\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "-c",
        os.devnull,
    ]
    command += ["--confcutdir", str(tmp_path), "-p", "conftest", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 test was skipped: no Chromium on this machine. To run it: make browser\n" in done.stdout
    assert "1 test was skipped: the moon\n" in done.stdout
