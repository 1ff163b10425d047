"""A page as headless Chromium shows it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: make browser installs it")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-quic"]
PROBE = """
<script>
  window.errors = [];
  window.onerror = message => window.errors.push(String(message));
  window.onload = () => {
    const figures = [...document.querySelectorAll('figure')].map(f => {
      const box = f.querySelector('svg').getBoundingClientRect();
      return [f.id, box.width, box.height];
    });
    const found = document.createElement('pre');
    found.id = 'probe';
    const wide = document.documentElement.scrollWidth;
    found.textContent = JSON.stringify({errors: window.errors, figures, wide, view: window.innerWidth});
    document.body.append(found);
  };
</script></body>"""


def command(address: str, width: int, folder: Path, *flags: str) -> list[str]:
    """Return the command that opens an address and prints the page as it is after its scripts have run."""
    own = [f"--user-data-dir={folder / 'own'}", f"--window-size={width},1000", "--dump-dom"]
    return [str(CHROMIUM), *FLAGS, *own, *flags, address]


def opened(page: Path, width: int, folder: Path) -> dict[str, Any]:
    """Open a page and return its errors, every figure's size, how wide it is and how wide the window."""
    probed = folder / "probed.html"
    probed.write_text(page.read_text().replace("</body>", PROBE))
    done = subprocess.run(command(probed.as_uri(), width, folder), capture_output=True, text=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout.split('<pre id="probe">')[1].split("</pre>")[0])
    return found
