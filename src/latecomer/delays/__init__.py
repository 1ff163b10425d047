"""Delay models: which worker arrives when, and on which sample. Each model makes a trace."""

from .arrivals import Constant, DataDependent, Uniform
from .base import DelayModel
from .clock import ClockModel, SampleCost, WorkerSpeeds
from .costs import TimeVarying, WithCosts
from .measured import MeasuredDelays, MeasuredDurations
from .recorded import Recorded

__all__ = [
    "ClockModel",
    "Constant",
    "DataDependent",
    "DelayModel",
    "MeasuredDelays",
    "MeasuredDurations",
    "Recorded",
    "SampleCost",
    "TimeVarying",
    "Uniform",
    "WithCosts",
    "WorkerSpeeds",
]
