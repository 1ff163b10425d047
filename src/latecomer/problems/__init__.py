"""Model, data, loss, metrics, and which samples are slow."""

from .base import Problem
from .digits import Digits
from .logistic import Logistic
from .quadratic import Quadratic

digits = Digits
logistic = Logistic
quadratic = Quadratic

PROBLEMS = {"digits": Digits, "logistic": Logistic, "quadratic": Quadratic}
"""Every problem by its name."""

__all__ = ["PROBLEMS", "Digits", "Logistic", "Problem", "Quadratic", "digits", "logistic", "quadratic"]
