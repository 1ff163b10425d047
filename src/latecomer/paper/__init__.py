"""The paper's experiments: the plan that judges its claims, its stages, statistics, verdicts and page.

docs/evidence.md has the plan in words. Figures and page are in `figures` and `evidence_page`; only they need matplotlib
and jinja2.
"""

from .presets import PRESETS, SIZES, preset

__all__ = ["PRESETS", "SIZES", "preset"]
