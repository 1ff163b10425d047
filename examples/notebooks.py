"""Make the notebooks of this folder from their scripts, and execute them.

    python examples/notebooks.py [--check]

A cell begins at `# %%`, one with text at `# %% [markdown]`; the docstring is the first. So a notebook says what its
script says, and the script is what is edited and tested. It needs nbclient and ipykernel.
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
NOTEBOOKS = ("own_loop", "replay_with_another_method")


def cells(script: Path) -> list[nbformat.NotebookNode]:
    """Return the cells of a script."""
    text = script.read_text()
    title, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
    found = [nbformat.v4.new_markdown_cell(f"# {title}\n{rest}")]
    for kind, body in re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", text, flags=re.MULTILINE | re.DOTALL):
        if kind:
            found.append(nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            found.append(nbformat.v4.new_code_cell(body.strip()))
    for number, cell in enumerate(found):
        cell["id"] = f"cell-{number}"  # the same every time, so that only changes show
    return found


def is_current(script: Path) -> bool:
    """Return whether the notebook beside a script has its cells."""
    kept = nbformat.read(script.with_suffix(".ipynb"), as_version=4)["cells"]
    return [(cell["cell_type"], cell["source"]) for cell in kept] == [
        (cell["cell_type"], cell["source"]) for cell in cells(script)
    ]


def executed(script: Path, folder: Path) -> nbformat.NotebookNode:
    """Return the notebook of a script, executed in a folder."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=cells(script), metadata=kernel)
    NotebookClient(
        notebook, timeout=300, coalesce_streams=True, resources={"metadata": {"path": str(folder)}}
    ).execute()
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)  # when, to the microsecond
    notebook["metadata"].pop("language_info", None)
    return notebook


def main() -> None:
    """Write the notebooks, or with --check only say whether they are those of their scripts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="execute nothing; fail if a notebook has other cells")
    options = parser.parse_args()
    for name in NOTEBOOKS:
        script, target = FOLDER / f"{name}.py", FOLDER / f"{name}.ipynb"
        if options.check:
            if not is_current(script):
                raise SystemExit(f"{target.name} is not what {script.name} says: run python examples/notebooks.py")
        else:
            nbformat.write(executed(script, FOLDER), target)
            print(f"Wrote {target}")


if __name__ == "__main__":
    main()
