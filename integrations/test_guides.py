"""Every Python block of the guides runs as a file in an empty folder, started as a reader would."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import PAGES, run_as_file, scripts

FILES = [(page, number) for page in PAGES if page.name != "README.md" for number in range(len(scripts(page)))]


@pytest.mark.parametrize(("page", "number"), FILES, ids=lambda value: getattr(value, "name", str(value)))
def test_a_block_runs_as_a_file(page: Path, number: int, tmp_path: Path) -> None:
    run = run_as_file(scripts(page)[number], tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
