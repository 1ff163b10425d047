"""HTML pages that need no network: everything is in one file."""

from __future__ import annotations

from typing import Any

from .._util.extras import needs

with needs("report", "jinja2", "Writing an HTML page"):
    import jinja2

__all__ = ["render"]


def render(template: str, **values: Any) -> str:
    """Fill in a template of this package; a missing value raises.

    Examples:
        >>> render("base.html").startswith("<!doctype html>")
        True
    """
    loader = jinja2.PackageLoader("latecomer.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader)
    return environment.get_template(template).render(**values)
