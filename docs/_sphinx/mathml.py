"""Formulas as MathML, made when the site is built: browsers draw it, so a page needs no script and no network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

# docutils writes the index of a letter with an accent as if it were a limit, under the letter.
_ACCENTED = re.compile(r"<munderover>(\s*<mi[^>]*>[^<]*</mi>)(.*?)(<mo[^>]*>[^<]</mo>\s*)</munderover>", re.DOTALL)


def _mathml(node: nodes.Element, as_block: bool) -> str:
    try:
        drawn = latex2mathml.tex2mathml(node.astext(), as_block=as_block)
        return _ACCENTED.sub(r'<msub><mover accent="true">\1\3</mover>\2</msub>', drawn)
    except MathError as error:
        raise ExtensionError(f"{node.source}: cannot render the formula {node.astext()!r}: {error}") from error


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
