"""What all figures, tables and pages share: style, Markdown, HTML.

Tables need no extra. Figures and HTML pages need ``latecomer[report]`` and are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .markdown import Part, write_page, write_table

if TYPE_CHECKING:
    from .html import render
    from .style import svg
    from .timeline import workers

__all__ = ["Part", "render", "svg", "workers", "write_page", "write_table"]

_HOMES = {"render": "html", "svg": "style", "workers": "timeline"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
