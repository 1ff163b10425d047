"""Small figures as SVG text, without matplotlib: quick enough to be drawn again while a run goes on.

Colours are classes of ``figure.css``, so that a figure follows a page into dark mode. Everything a figure shows is
escaped: names of groups and methods may come from a file that somebody else has written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["GROUP_TINTS", "Plot", "figure_style", "number", "standalone", "wants_log"]

GROUP_TINTS = 6
"""Number of colours of groups: classes s0 to s5, of which the last stands for all further groups."""
_LETTER = 7.7  # width of a letter, about
_LOG_FROM = 100.0  # from this ratio of largest to smallest value on, an axis is logarithmic


def number(value: float) -> str:
    """Return a number as people write it on an axis.

    Examples:
        >>> number(1200000.0), number(0.25), number(3.0), number(0.00002)
        ('1.2M', '0.25', '3', '2e-05')
    """
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.3g}{letter}"
    return f"{value:.4g}"


class Plot:
    """One pair of axes.

    Args:
        title: Heading.
        x: Smallest and largest value of the horizontal axis.
        y: Those of the vertical axis.
        x_label: What the horizontal axis shows.
        y_label: What the vertical axis shows.
        width: Width in units of the view box; about as many pixels on a large screen.
        height: Height, without heading and legend.
        log: Whether the vertical axis is logarithmic.
        lanes: Names of lanes, instead of numbers on the vertical axis; lane 0 is on top.
        whole: Whether the horizontal axis counts something, so that only whole numbers are written.

    Examples:
        >>> plot = Plot("Loss", (0, 10), (0, 1), "arrival", "loss")
        >>> plot.line([0, 10], [1, 0], "a", "training")
        >>> plot.svg().startswith("<svg")
        True
    """

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str,
        y_label: str,
        *,
        width: int = 520,
        height: int = 230,
        log: bool = False,
        lanes: Sequence[str] = (),
        whole: bool = False,
    ) -> None:
        self.title, self.x_label, self.y_label, self.lanes, self.log = title, x_label, y_label, lanes, log
        self.width, self.height, self._whole = width, height, whole
        self._left = 20 + _LETTER * max([5, *(len(name) + 1 for name in lanes)])
        low, high = x
        self._x = (low, high if high > low else low + 1)
        low, high = y
        if log:
            low, high = math.log10(low), math.log10(high)
        self._y = (low, high if high > low else low + 1)
        self._drawn: list[str] = []
        self._keys: list[tuple[str, str]] = []

    # ---- places -------------------------------------------------------------------------------------------------

    def _across(self, values: ArrayLike) -> NDArray[np.float64]:
        low, high = self._x
        return self._left + (np.asarray(values, dtype=float) - low) / (high - low) * (self.width - self._left - 14)

    def _up(self, values: ArrayLike) -> NDArray[np.float64]:
        found = np.asarray(values, dtype=float)
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                found = np.log10(found)
        low, high = self._y
        part = (found - low) / (high - low)
        return self.height * (part if self.lanes else 1 - part)

    # ---- marks --------------------------------------------------------------------------------------------------

    def line(self, xs: ArrayLike, ys: ArrayLike, colour: str, label: str = "", *, dash: bool = False) -> None:
        """Draw a line; it has a gap where a value is not finite, and a dot where only one is."""
        across, up = self._across(xs), self._up(ys)
        good = np.isfinite(across) & np.isfinite(up)
        words, dots = [], []
        for first, last in _stretches(good):
            points = [f"{a:.1f} {u:.1f}" for a, u in zip(across[first:last], up[first:last], strict=True)]
            words.append("M" + "L".join(points))
            if last - first == 1:
                dots.append(f'<circle cx="{across[first]:.1f}" cy="{up[first]:.1f}" r="3" class="{colour} fill"/>')
        kind = f"{colour} line{' dash' if dash else ''}"
        self._drawn.append(f'<path class="{kind}" d="{"".join(words)}"/>{"".join(dots)}')
        if label:
            self._keys.append((kind, label))

    def boxes(
        self, left: ArrayLike, right: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str, label: str = ""
    ) -> None:
        """Draw boxes between two values of either axis, all in one path."""
        a, b = self._across(left), self._across(right)
        top, bottom = self._up(high), self._up(low)
        top, bottom = np.minimum(top, bottom), np.maximum(top, bottom)
        width = np.maximum(b - a, 0.4)
        parts = zip(a, top, width, bottom - top, strict=True)
        edge = " bar" if len(width) and float(np.median(width)) > 2 else ""  # thin boxes would be all edge
        path = "".join(f"M{x:.1f} {y:.1f}h{w:.1f}v{h:.1f}h-{w:.1f}z" for x, y, w, h in parts)
        self._drawn.append(f'<path class="{colour} fill{edge}" d="{path}"/>')
        if label:
            self._keys.append((f"{colour} fill", label))

    def areas(
        self,
        edges: ArrayLike,
        low: NDArray[np.float64],
        high: NDArray[np.float64],
        colour: str,
        label: str = "",
    ) -> None:
        """Draw steps between two heights per bin, one strip per row of ``low`` and ``high``, all in one path."""
        across, path = self._across(edges), []
        for floor, roof in zip(low, high, strict=True):
            for first, last in _stretches(np.abs(roof - floor) > 1e-3):
                tops, bottoms = self._up(roof[first:last]), self._up(floor[first:last])
                steps = [
                    f"{a:.1f} {u:.1f}H{b:.1f}"
                    for a, b, u in zip(across[first:last], across[first + 1 : last + 1], tops, strict=True)
                ]
                back = [
                    f"{b:.1f} {u:.1f}H{a:.1f}"
                    for a, b, u in zip(across[first:last], across[first + 1 : last + 1], bottoms, strict=True)
                ]
                path.append("M" + "L".join([*steps, *back[::-1]]) + "Z")
        self._drawn.append(f'<path class="{colour} fill" d="{"".join(path)}"/>')
        if label:
            self._keys.append((f"{colour} fill", label))

    def crosses(self, xs: ArrayLike, ys: ArrayLike, label: str = "") -> None:
        """Draw crosses."""
        places = zip(self._across(xs), self._up(ys), strict=True)
        path = "".join(f"M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8" for x, y in places)
        self._drawn.append(f'<path class="cross" d="{path}"/>')
        if label:
            self._keys.append(("cross", label))

    def upright(self, at: float, colour: str) -> None:
        """Draw a dashed upright line over the whole height."""
        x = float(self._across(at))
        self._drawn.append(f'<path class="{colour} line dash" d="M{x:.1f} 0V{self.height}"/>')

    def words(self, x: float, y: float, text: str) -> None:
        """Write text to the right of a place."""
        self._drawn.append(
            f'<text x="{float(self._across(x)) + 5:.1f}" y="{float(self._up(y)) + 4:.1f}">{escape(text)}</text>'
        )

    # ---- the figure ---------------------------------------------------------------------------------------------

    def svg(self) -> str:
        """Return the figure as SVG text, the same text every time."""
        legend, top = self._legend()
        whole = top + self.height + (44 if self.x_label else 26)
        label = ""
        if self.y_label:
            label = (
                f'<text transform="translate(12 {self.height / 2:.0f}) rotate(-90)" text-anchor="middle">'
                f"{escape(self.y_label)}</text>"
            )
        middle = (self._left + self.width) / 2
        under = f'<text x="{middle:.0f}" y="{self.height + 38}" text-anchor="middle">{escape(self.x_label)}</text>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {self.width} {whole:.0f}" role="img" '
            f'aria-label="{escape(self.title)}"><text class="title" x="4" y="18">{escape(self.title)}</text>{legend}'
            f'<g transform="translate(0 {top})">{self._axes()}{"".join(self._drawn)}{label}{under}</g></svg>'
        )

    def _legend(self) -> tuple[str, int]:
        """Return the legend, in as many lines as it needs, and where the axes begin."""
        x, y, found = 6.0, 38, []
        for kind, label in self._keys:
            room = 32 + _LETTER * len(label)
            if x > 6 and x + room > self.width:
                x, y = 6.0, y + 18
            mark = f'<rect x="{x:.0f}" y="{y - 10}" width="12" height="11" class="{kind}"/>'
            if "line" in kind:
                mark = f'<path d="M{x:.0f} {y - 4}h16" class="{kind}"/>'
            elif kind == "cross":
                mark = f'<path d="M{x + 3:.0f} {y - 9}l8 8m0-8l-8 8" class="{kind}"/>'
            found.append(f'{mark}<text x="{x + 20:.0f}" y="{y}">{escape(label)}</text>')
            x += room
        return "".join(found), y + 14 if self._keys else 32

    def _axes(self) -> str:
        right, parts = self.width - 14, []
        marks = _ticks(*self._x, most=max(3, self.width // 90), least=1.0 if self._whole else 0.0)
        for value in marks:
            x = float(self._across(value))
            parts.append(f'<path class="rule" d="M{x:.1f} 0V{self.height}"/>')
            text = number(value) if len({*map(number, marks)}) == len(marks) else f"{value:,.10g}"
            parts.append(f'<text x="{x:.1f}" y="{self.height + 18}" text-anchor="middle">{text}</text>')
        if self.lanes:
            for index, name in enumerate(self.lanes):
                y = float(self._up(index + 0.5)) + 4
                parts.append(f'<text x="{self._left - 6:.0f}" y="{y:.1f}" text-anchor="end">{escape(name)}</text>')
        else:
            low, high = self._y
            for mark in _decades(low, high) if self.log else _ticks(low, high, most=5):
                value = 10**mark if self.log else mark
                y = float(self._up(value))
                parts.append(f'<path class="rule" d="M{self._left:.1f} {y:.1f}H{right}"/>')
                parts.append(f'<text x="{self._left - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
        return "".join(parts) + f'<path class="axis" d="M{self._left:.1f} 0V{self.height}H{right}"/>'


def wants_log(values: NDArray[np.float64]) -> bool:
    """Return whether positive values spread so far that an axis should be logarithmic."""
    good = values[np.isfinite(values)]
    return bool(len(good) and good.min() > 0 and good.max() / _LOG_FROM >= good.min())


def _stretches(good: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """Return where entries in a row are true, as pairs (first, one after the last)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], good, [False]]).astype(np.int8)))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _ticks(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Return round numbers between two values, at least so far apart."""
    rough = max((high - low) / most, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Return exponents of ten between two exponents; some in between where there are fewer than two."""
    whole = [float(power) for power in range(math.ceil(low), math.floor(high) + 1)]
    if len(whole) > 6:
        whole = whole[:: math.ceil(len(whole) / 6)]
    return whole if len(whole) > 1 else _ticks(low, high, 4)


@cache
def figure_style() -> str:
    """Return the style of figures, for a page."""
    return files("latecomer.report").joinpath("templates/figure.css").read_text(encoding="utf-8")


def standalone(svg: str) -> str:
    """Return a figure as a file of its own: with the style in it, and a background.

    Examples:
        >>> "<style>" in standalone(Plot("Empty", (0, 1), (0, 1), "", "").svg())
        True
    """
    head, _, rest = svg.partition(">")
    ground = '<rect width="100%" height="100%" style="fill: var(--gap)"/>'
    return f"{head}><style>{figure_style()}</style>{ground}{rest}"
