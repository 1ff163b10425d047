"""What every figure, table and page shares: style, Markdown, HTML."""

from .html import render
from .markdown import Part, write_page, write_table
from .style import svg
from .timeline import workers

__all__ = ["Part", "render", "svg", "workers", "write_page", "write_table"]
