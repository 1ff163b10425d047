"""Model, data, loss, metrics, and which samples are slow."""

from .base import Problem
from .digits import Digits
from .quadratic import Quadratic

digits = Digits
quadratic = Quadratic

PROBLEMS = {"digits": Digits, "quadratic": Quadratic}
"""Every problem by its name."""

__all__ = ["PROBLEMS", "Digits", "Problem", "Quadratic", "digits", "quadratic"]
