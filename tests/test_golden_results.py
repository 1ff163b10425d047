"""No method's result changes by accident: its bits where the kernels are the same, else loss and norm."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

import golden_results
import latecomer as lc

GOLDEN = golden_results.stored()
KERNELS = golden_results.kernels()
HASHES = next((each["hashes"] for each in GOLDEN["kernels"] if KERNELS.items() <= each.items()), None)
"""Those of this processor and torch."""


def test_every_method_has_golden_results() -> None:
    assert set(golden_results.OPTIONS) == set(lc.optim.METHODS)
    cases = {" ".join(case) for case in golden_results.CASES}
    assert set(GOLDEN["results"]) == cases
    assert all(set(each["hashes"]) == cases for each in GOLDEN["kernels"])


@pytest.mark.filterwarnings("default:golden results")
@pytest.mark.parametrize("case", golden_results.CASES, ids=" ".join)
def test_result_is_the_golden_one(case: tuple[str, str, str]) -> None:
    name = " ".join(case)
    golden = GOLDEN["results"][name]
    found = golden_results.result(*case, golden["columns"])
    assert found["loss"] == pytest.approx(golden["loss"], rel=golden_results.CLOSE)
    assert found["norm"] == pytest.approx(golden["norm"], rel=golden_results.CLOSE)
    if HASHES is not None:
        assert [found["parameters"], found["history"]] == HASHES[name]
        return
    warnings.warn("golden results: other torch or other kernels, so only loss and norm are compared", stacklevel=1)


def test_hashes_of_other_kernels_are_kept_only_beside_close_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, file = ("async-sgd", "quadratic", "simulate"), tmp_path / "results.json"
    other = {**KERNELS, "processor": "another", "hashes": {" ".join(case): ["a", "b"]}}
    monkeypatch.setattr(golden_results, "CASES", [case])
    monkeypatch.setattr(golden_results, "FILE", file)
    monkeypatch.chdir(tmp_path)
    golden_results.write()
    first = json.loads(file.read_text())
    file.write_text(json.dumps({**first, "kernels": [other, *first["kernels"]]}))
    golden_results.write(add=True)
    assert json.loads(file.read_text()) == {**first, "kernels": [other, *first["kernels"]]}
    file.write_text(json.dumps(first).replace(str(first["results"][" ".join(case)]["loss"]), "1.5"))
    with pytest.raises(SystemExit, match="The loss of async-sgd quadratic simulate is"):
        golden_results.write(add=True)
    file.write_text(json.dumps({**first, "results": {}}))
    with pytest.raises(SystemExit, match="no results of async-sgd quadratic simulate"):
        golden_results.write(add=True)
    golden_results.write()
    assert json.loads(file.read_text()) == first
