"""Pages that Latecomer itself has written, such as the demo's: opened instead of downloaded, with a link back."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


def _open(app: Sphinx, doctree: nodes.document) -> None:
    for node in list(doctree.findall(addnodes.download_reference)):
        target = node["reftarget"]
        if target.endswith(".html"):
            link = nodes.reference("", "", *node.children, refuri=target, internal=True)
            node.replace_self(nodes.inline("", "", link))
            page = Path(app.env.doc2path(app.env.current_document.docname)).parent / target
            own_pages(app).add(os.path.relpath(page, app.srcdir))


def own_pages(app: Sphinx) -> set[str]:
    """Return the pages that were linked to so far, relative to docs/."""
    if not hasattr(app.env, "own_pages"):
        app.env.own_pages = set()
    return app.env.own_pages


def _copy(app: Sphinx, error: Exception | None) -> None:
    for name in own_pages(app) if error is None else ():
        target = Path(app.outdir, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        home = os.path.relpath(Path(app.outdir, "index.html"), target.parent)
        back = f'<p><a href="{home}">Documentation of Latecomer</a></p>'
        text = Path(app.srcdir, name).read_text(encoding="utf-8")
        text = re.sub(r'href="([^":#]+)\.md"', r'href="\1.html"', text)  # its links to pages are to the site's own
        target.write_text(text.replace("<body>", f"<body>{back}", 1), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hooks."""
    app.connect("doctree-read", _open)
    app.connect("build-finished", _copy)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
