"""HTML pages that need no network: everything is in one file."""

from __future__ import annotations

from functools import cache
from typing import Any

from .._util.extras import needs

with needs("report", "jinja2", "Writing an HTML page"):
    import jinja2
    from markupsafe import Markup

__all__ = ["Markup", "render"]


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.PackageLoader("latecomer.report")
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader)


def render(template: str, **values: Any) -> str:
    """Fill in a template of this package; a missing value raises.

    Examples:
        >>> render("base.html").startswith("<!doctype html>")
        True
    """
    return _environment().get_template(template).render(**values)
