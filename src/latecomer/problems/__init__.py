"""Model, data, loss, metrics, and which samples are slow."""

from .base import Problem
from .digits import Digits
from .images import Images
from .logistic import Logistic
from .mnist import Mnist
from .quadratic import Quadratic
from .text import Text

digits = Digits
logistic = Logistic
mnist = Mnist
quadratic = Quadratic
text = Text

PROBLEMS = {"digits": Digits, "logistic": Logistic, "mnist": Mnist, "quadratic": Quadratic, "text": Text}
"""Every problem by its name."""

__all__ = [
    "PROBLEMS",
    "Digits",
    "Images",
    "Logistic",
    "Mnist",
    "Problem",
    "Quadratic",
    "Text",
    "digits",
    "logistic",
    "mnist",
    "quadratic",
    "text",
]
