"""The paper's experiments: presets, the study, claims, figures and the page.

Figures and page are in `sections`, `figures` and `page`; only they need matplotlib and jinja2.
"""

from .presets import PRESETS, SIZES, preset
from .study import Study, choose, chosen_sweep, make_study

__all__ = [
    "PRESETS",
    "SIZES",
    "Study",
    "choose",
    "chosen_sweep",
    "make_study",
    "preset",
]
