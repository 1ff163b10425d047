"""A page as headless Chromium shows it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
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


def opened(page: Path, width: int, folder: Path) -> dict[str, Any]:
    """Open a page and return its errors, every figure's size, how wide it is and how wide the window."""
    probed = folder / "probed.html"
    probed.write_text(page.read_text().replace("</body>", PROBE))
    with Tab(folder, width) as tab:
        tab.open(probed.as_uri())
        found: dict[str, Any] = json.loads(tab.wait("document.getElementById('probe')?.textContent"))
    return found


class Tab:
    """A page that stays open, driven through a pipe (the DevTools protocol); for pages that change.

    Args:
        folder: For the browser's own files.
        width: Width of the screen.
    """

    def __init__(self, folder: Path, width: int = 1280) -> None:
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={folder / 'tab'}", "--remote-debugging-pipe"]
        words = ["bash", "-c", f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}', str(CHROMIUM), *flags]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            words, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=(to_browser, from_browser)
        )
        os.close(to_browser)
        os.close(from_browser)
        self._count, self._read, self._session = 0, b"", {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        # A window is never narrower than 500 pixels, a screen of a phone is.
        screen = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": width < 500}
        self._call("Emulation.setDeviceMetricsOverride", **screen)

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            while b"\0" not in self._read:
                ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
                new = os.read(self._from, 1 << 20) if ready else b""
                assert new, f"Chromium does not answer to {method}"
                self._read += new
            line, _, self._read = self._read.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found

    def open(self, address: str) -> None:
        """Go to an address."""
        self._call("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true, and return it."""
        deadline = time.monotonic() + 90
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}; {self.value('document.body.innerText')}"
            time.sleep(0.05)
        return found

    def picture(self, file: Path, dark: bool = False) -> None:
        """Save what the page looks like, all of it."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        shown = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shown["data"]))
