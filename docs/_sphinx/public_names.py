"""``.. public-names:: MODULE``: everything that a module exports."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib import import_module
from importlib.util import resolve_name
from types import ModuleType
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective


class PublicNames(SphinxDirective):
    """One entry per name of ``__all__``: ``automodule`` leaves out constants, and what is imported on first use."""

    required_arguments: ClassVar[int] = 1

    def run(self) -> list[nodes.Node]:
        """Return what Sphinx makes of the lines."""
        (name,) = self.arguments
        module = import_module(name)
        lines = [f".. automodule:: {name}", "   :no-members:", ""]
        for each in module.__all__:
            value = getattr(module, each)
            kind = "class" if inspect.isclass(value) else "function" if inspect.isroutine(value) else "data"
            lines += [f".. auto{kind}:: {name}.{each}", *["   :no-value:"] * (kind == "data"), ""]
        return self.parse_text_to_nodes("\n".join(lines))


def _home(package: ModuleType, name: str) -> str:
    """Return the module from which a package imports a name."""
    for node in ast.walk(ast.parse(inspect.getsource(package))):
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
            return resolve_name("." * node.level + (node.module or ""), package.__package__ or package.__name__)
    return package.__name__


def _text_below(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Describe a constant by the text below its definition, not by the docstring of its type."""
    package, _, constant = name.rpartition(".")
    if what == "data" and package in sys.modules:
        found = ModuleAnalyzer.for_module(_home(sys.modules[package], constant)).find_attr_docs()
        lines[:] = found.get(("", constant), [])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register directive and hook."""
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-docstring", _text_below)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
