"""Specs, presets, sweeps, and the store of runs."""

from .presets import PRESETS, SIZES, preset
from .reproduce import Study, choose, chosen_sweep, study
from .spec import Grid, RunSpec, Sweep
from .store import Store
from .sweep import Done, estimate_seconds, missing, run_sweep

__all__ = [
    "PRESETS",
    "SIZES",
    "Done",
    "Grid",
    "RunSpec",
    "Store",
    "Study",
    "Sweep",
    "choose",
    "chosen_sweep",
    "estimate_seconds",
    "missing",
    "preset",
    "run_sweep",
    "study",
]
