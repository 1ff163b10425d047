"""Keeps a number and its percent sign on one line, also in narrow tables."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_VERBATIM = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw)


def _join(app: Sphinx, doctree: nodes.document) -> None:
    for text in list(doctree.findall(nodes.Text)):
        joined = re.sub(r"(?<=\d) (?=%)", "\N{NO-BREAK SPACE}", text)
        if joined != text and not isinstance(text.parent, _VERBATIM):
            text.parent.replace(text, nodes.Text(joined))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hook."""
    app.connect("doctree-read", _join)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
