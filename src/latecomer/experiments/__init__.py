"""Specs, sweeps, and a store of runs."""

from .spec import Grid, RunSet, RunSpec, Sweep
from .store import Store
from .sweep import FinishedRun, estimate_seconds, missing, run_sweep

__all__ = ["FinishedRun", "Grid", "RunSet", "RunSpec", "Store", "Sweep", "estimate_seconds", "missing", "run_sweep"]
