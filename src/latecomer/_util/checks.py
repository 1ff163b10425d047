"""Checks of arguments, with errors that name the value and the allowed range."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple

__all__ = ["AT_LEAST_ZERO", "POSITIVE", "UNIT", "Range", "checked_flag", "plain_numbers", "several", "whole_number"]


class Range(NamedTuple):
    """An interval of allowed numbers, and advice for values outside it."""

    low: float
    high: float = math.inf
    low_open: bool = False
    advice: str = ""

    def check(self, name: str, value: Any) -> float:
        """Return ``value`` as a float, or raise with the value, the allowed range and the advice."""
        if type(value) is not float:
            if isinstance(value, bool) or not isinstance(value, Real):
                _check_one_element(name, value)
            value = float(value)
        number: float = value
        # Infinity is never a usable hyper-parameter, and NaN fails every comparison.
        if (self.low < number or (number == self.low and not self.low_open)) and (
            number <= self.high and number != math.inf
        ):
            return number
        raise ValueError(f"Invalid {name} value: {number:g} (expected {self.describe(name)}){self.advice}")

    def describe(self, name: str) -> str:
        """Return the interval as an inequality."""
        text = f"{self.low:g} {'<' if self.low_open else '<='} {name}"
        return f"{text} < inf" if self.high == math.inf else f"{text} <= {self.high:g}"


def _check_one_element(name: str, value: Any) -> None:
    """Refuse what is neither a number nor a tensor of one element."""
    torch = sys.modules.get("torch")  # who has a tensor has imported it; the command line must start without
    if torch is None or not isinstance(value, torch.Tensor):
        raise TypeError(f"Invalid {name} value: {value!r} (expected a number, got {type(value).__name__})")
    if value.numel() != 1:
        raise ValueError(f"Invalid {name} value: a tensor of shape {tuple(value.shape)} (expected one number)")


AT_LEAST_ZERO = Range(0)
POSITIVE = Range(0, low_open=True)
UNIT = Range(0, 1, low_open=True)


def whole_number(name: str, value: Any, *, least: int = 0, most: int | None = None) -> int:
    """Return ``value`` as an ``int`` in this range; floats and booleans are refused, numpy integers are accepted."""
    if type(value) is not int:
        if isinstance(value, bool):
            raise TypeError(f"Invalid {name} value: {value!r} (expected a whole number, got bool)")
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(
                f"Invalid {name} value: {value!r} (expected a whole number, got {type(value).__name__})"
            ) from None
    number: int = value
    if number < least:
        raise ValueError(f"Invalid {name} value: {number} (expected {name} >= {least})")
    if most is not None and number > most:
        raise ValueError(f"Invalid {name} value: {number} (expected {name} <= {most})")
    return number


def several(name: str, values: Any, what: str = "numbers") -> list[Any]:
    """Return ``values`` as a list; a text and what has no entries at all are refused."""
    if not isinstance(values, (str, bytes)):
        try:
            return list(values)
        except TypeError:
            pass
    raise TypeError(f"Invalid {name} value: {values!r} (expected a list of {what})")


def checked_flag(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False, else raise."""
    if not isinstance(value, bool):
        raise TypeError(f"Invalid {name} value: {value!r} (expected True or False)")
    return value


def plain_numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with scalars of numpy and torch as Python's numbers, which a record can hold."""
    return {name: value.item() if getattr(value, "ndim", None) == 0 else value for name, value in options.items()}
