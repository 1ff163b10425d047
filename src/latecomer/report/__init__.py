"""What all figures, tables and pages share: style, Markdown, HTML."""

from .html import render
from .markdown import Part, write_page, write_table
from .style import svg
from .timeline import workers

__all__ = ["Part", "render", "svg", "workers", "write_page", "write_table"]
