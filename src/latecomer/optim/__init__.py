"""Asynchronous update rules as `torch.optim.Optimizer` subclasses whose ``step`` takes a delay."""

from ._two_point import TwoPointOptimizer
from .adamw import CatchUpAdamW
from .base import Arrival, AsyncOptimizer
from .clipped import BalancedAdamW, BalancedCatchUp, BalancedMomentum, ClippedCatchUp
from .methods import METHODS, Method, MethodLike, as_method, known_method, register
from .momentum import Momentum, OrderedMomentum
from .mu2 import Mu2SGD, OrderedMu2SGD
from .mu2_anytime import OrderedMu2Anytime
from .projection import Ball, Box
from .sgd import AsyncSGD, DelayAdaptiveSGD, DelayFilteredSGD
from .torch_optimizer import TorchOptimizer

__all__ = [
    "METHODS",
    "Arrival",
    "AsyncOptimizer",
    "AsyncSGD",
    "BalancedAdamW",
    "BalancedCatchUp",
    "BalancedMomentum",
    "Ball",
    "Box",
    "CatchUpAdamW",
    "ClippedCatchUp",
    "DelayAdaptiveSGD",
    "DelayFilteredSGD",
    "Method",
    "MethodLike",
    "Momentum",
    "Mu2SGD",
    "OrderedMomentum",
    "OrderedMu2Anytime",
    "OrderedMu2SGD",
    "TorchOptimizer",
    "TwoPointOptimizer",
    "as_method",
    "known_method",
    "register",
]
