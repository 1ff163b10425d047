"""Asynchronous update rules as `torch.optim.Optimizer` subclasses whose ``step`` takes a delay."""

from .adamw import OrderedAdamW
from .anytime import OrderedMu2Anytime
from .base import Arrival, AsyncOptimizer
from .clipped import ClippedAsyncSGD, ClippedMomentum, ClippedOrderedFilled, ClippedOrderedMomentum
from .debt import CatchUpDebt
from .falling import FallingOrderedMomentum
from .filled import OrderedFilled
from .methods import METHODS, Method, known_method
from .momentum import Momentum, OrderedMomentum
from .mu2 import Mu2SGD, OrderedMu2SGD
from .projection import Ball, Box
from .schedules import DecreasingBeta
from .sgd import AsyncSGD, DelayAdaptiveSGD, DelayFilteredSGD
from .twopoint import TwoPointOptimizer

__all__ = [
    "METHODS",
    "Arrival",
    "AsyncOptimizer",
    "AsyncSGD",
    "Ball",
    "Box",
    "CatchUpDebt",
    "ClippedAsyncSGD",
    "ClippedMomentum",
    "ClippedOrderedFilled",
    "ClippedOrderedMomentum",
    "DecreasingBeta",
    "DelayAdaptiveSGD",
    "DelayFilteredSGD",
    "FallingOrderedMomentum",
    "Method",
    "Momentum",
    "Mu2SGD",
    "OrderedAdamW",
    "OrderedFilled",
    "OrderedMomentum",
    "OrderedMu2Anytime",
    "OrderedMu2SGD",
    "TwoPointOptimizer",
    "known_method",
]
