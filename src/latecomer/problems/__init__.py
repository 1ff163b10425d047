"""Problems: model, data, loss, metrics, and which samples are slow."""

from .base import Problem
from .cifar10 import Cifar10
from .digits import Digits
from .images import Images
from .logistic import Logistic
from .mnist import Mnist
from .quadratic import Quadratic
from .text import Text
from .two_centres import TwoCentres

cifar10 = Cifar10
digits = Digits
logistic = Logistic
mnist = Mnist
quadratic = Quadratic
text = Text
two_centres = TwoCentres

PROBLEMS = {
    "cifar10": Cifar10,
    "digits": Digits,
    "logistic": Logistic,
    "mnist": Mnist,
    "quadratic": Quadratic,
    "text": Text,
    "two-centres": TwoCentres,
}
"""Every problem by its name."""

__all__ = [
    "PROBLEMS",
    "Cifar10",
    "Digits",
    "Images",
    "Logistic",
    "Mnist",
    "Problem",
    "Quadratic",
    "Text",
    "TwoCentres",
    "cifar10",
    "digits",
    "logistic",
    "mnist",
    "quadratic",
    "text",
    "two_centres",
]
