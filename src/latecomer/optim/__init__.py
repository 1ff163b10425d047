"""Asynchronous update rules as `torch.optim.Optimizer` subclasses whose ``step`` takes a delay."""

from ._two_point import TwoPointOptimizer
from .adamw import CatchUpAdamW, OrderedAdamW
from .anytime import AnytimeSGD
from .base import Arrival, AsyncOptimizer
from .clipped import BalancedAdamW, BalancedCatchUp, BalancedMomentum, ClippedCatchUp
from .dana import DanaZero
from .fadas import FADAS
from .lmo import NormalisedMomentum
from .methods import METHODS, Method, MethodLike, as_method, known_method, register
from .momentum import Momentum, OrderedMomentum
from .mu2 import Mu2SGD, OrderedMu2SGD
from .mu2_anytime import OrderedMu2Anytime
from .ormo import DelayAdaptiveOrMo, OrMo
from .projection import Ball, Box
from .rate_free import RateFree
from .ringleader import Ringleader
from .sgd import AsyncSGD, DelayAdaptiveSGD, DelayFilteredSGD
from .stale_point import DCASGD, PickySGD
from .staleness import ASAP, ClippedSGD, StalenessAwareSGD
from .torch_optimizer import TorchOptimizer

__all__ = [
    "ASAP",
    "DCASGD",
    "FADAS",
    "METHODS",
    "AnytimeSGD",
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
    "ClippedSGD",
    "DanaZero",
    "DelayAdaptiveOrMo",
    "DelayAdaptiveSGD",
    "DelayFilteredSGD",
    "Method",
    "MethodLike",
    "Momentum",
    "Mu2SGD",
    "NormalisedMomentum",
    "OrMo",
    "OrderedAdamW",
    "OrderedMomentum",
    "OrderedMu2Anytime",
    "OrderedMu2SGD",
    "PickySGD",
    "RateFree",
    "Ringleader",
    "StalenessAwareSGD",
    "TorchOptimizer",
    "TwoPointOptimizer",
    "as_method",
    "known_method",
    "register",
]
