"""The Python blocks of the pages, as a reader would save them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "reference").glob("*.md"))]


def blocks(path: Path) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def scripts(path: Path) -> list[str]:
    """Return the files that a reader would make of a page's blocks.

    A block that imports latecomer begins a file, any other continues the file of the block before it.
    """
    files: list[str] = []
    for block in blocks(path):
        if re.search(r"^(?:import|from) latecomer\b", block, flags=re.MULTILINE):
            files.append(block)
        else:
            files[-1] += "\n" + block
    return files


def run_as_file(text: str, folder: Path, warnings: str = "error") -> subprocess.CompletedProcess[str]:
    """Save a script in an empty folder and start it there, as a user would."""
    (folder / "script.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": warnings}
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
