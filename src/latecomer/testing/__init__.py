"""Checks for what you write yourself: `check_method` for a method, `check_engine` for an engine."""

from .engine import CHECKS, HANGS, KILLS, RAISES, EngineError, KillAt, Normed, Probe, check_engine
from .method import RULES, MethodError, check_method

__all__ = [
    "CHECKS",
    "HANGS",
    "KILLS",
    "RAISES",
    "RULES",
    "EngineError",
    "KillAt",
    "MethodError",
    "Normed",
    "Probe",
    "check_engine",
    "check_method",
]
