"""Everything that knows the paper's experiments: presets, the study, claims, figures and the page.

What draws is in `sections`, `figures` and `page`: only who writes the page needs matplotlib and jinja2.
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
