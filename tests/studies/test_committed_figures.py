"""Every committed figure of the studies is what its committed rows draw."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from studies.stable_and_fair.__main__ import main as stable_and_fair
from studies.theory.__main__ import main as theory

DOCS = Path(__file__).parents[2] / "docs"
STUDIES = {"theory": theory, "research": stable_and_fair}
FIGURES = [path.relative_to(DOCS) for folder in STUDIES for path in sorted((DOCS / folder).glob("*.svg"))]


def texts(svg: str) -> list[str]:
    """Return the titles, labels and legends, which are in comments because glyphs are drawn as paths."""
    return re.findall(r"<!-- (.*?) -->", svg, flags=re.DOTALL)


def numbers(svg: str) -> list[float]:
    """Return the coordinates of all lines, markers and glyphs."""
    paths = re.findall(r'\b(?:d|x|y|transform)="(.*?)"', svg, flags=re.DOTALL)
    return [float(number) for path in paths for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", path)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    for name, main in STUDIES.items():
        (folder / name).mkdir()
        for path in (DOCS / name).glob("*.csv"):
            shutil.copy(path, folder / name)
        assert main(["draw", "--out", str(folder / name)]) == 0
    return folder


@pytest.mark.parametrize("figure", FIGURES, ids=str)
def test_a_committed_figure_is_what_its_rows_draw(figure: Path, drawn: Path) -> None:
    committed, again = ((folder / figure).read_text(encoding="utf-8") for folder in (DOCS, drawn))
    assert texts(again) == texts(committed)
    assert numbers(again) == pytest.approx(numbers(committed), abs=0.1)  # of a point: other processors round otherwise


@pytest.mark.parametrize("name", STUDIES)
def test_nothing_to_draw(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert STUDIES[name](["draw", "--out", str(tmp_path)]) == 2
    assert "There " in capsys.readouterr().err
