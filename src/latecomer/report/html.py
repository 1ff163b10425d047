"""Pages that need no network: a template with everything in it."""

from __future__ import annotations

from typing import Any

from .._util.extras import needs

with needs("report", "jinja2", "Writing an HTML page"):
    import jinja2

__all__ = ["render"]


def render(template: str, **values: Any) -> str:
    """Fill in a template of this package; a value that is missing is an error.

    Examples:
        >>> render("base.html").startswith("<!doctype html>")
        True
    """
    loader = jinja2.PackageLoader("latecomer.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader)
    return environment.get_template(template).render(**values)
