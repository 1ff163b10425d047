"""Asynchronous update rules as `torch.optim.Optimizer` subclasses whose ``step`` takes a delay."""

from ._two_point import TwoPointOptimizer
from .adamw import CatchUpAdamW
from .base import Arrival, AsyncOptimizer
from .clipped import BalancedCatchUp, BalancedMomentum, ClippedCatchUp
from .methods import METHODS, Method, known_method
from .momentum import Momentum, OrderedMomentum
from .mu2 import Mu2SGD, OrderedMu2SGD
from .mu2_anytime import OrderedMu2Anytime
from .projection import Ball, Box
from .sgd import AsyncSGD, DelayAdaptiveSGD, DelayFilteredSGD

__all__ = [
    "METHODS",
    "Arrival",
    "AsyncOptimizer",
    "AsyncSGD",
    "BalancedCatchUp",
    "BalancedMomentum",
    "Ball",
    "Box",
    "CatchUpAdamW",
    "ClippedCatchUp",
    "DelayAdaptiveSGD",
    "DelayFilteredSGD",
    "Method",
    "Momentum",
    "Mu2SGD",
    "OrderedMomentum",
    "OrderedMu2Anytime",
    "OrderedMu2SGD",
    "TwoPointOptimizer",
    "known_method",
]
