"""Style of all figures: colours, one line style per method, plain axes, reproducible SVG."""

from __future__ import annotations

import io
from pathlib import Path

from .._util.extras import needs

with needs("report", "matplotlib", "Drawing a figure"):
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

__all__ = [
    "FAST", "GREY", "INK", "SLOW", "STYLES", "Axes", "Figure", "LogLocator", "NullFormatter", "blank", "decimals",
    "save_figure", "style_of", "svg", "tidy",
]  # fmt: skip

FAST, SLOW, INK, GREY = "#2f6f8f", "#c1502e", "#222222", "#8a8a8a"
# Distinct in colour and in dash, so that overlapping curves can be distinguished, also in print.
STYLES: dict[str, tuple[str, str]] = {
    "async-sgd": ("#7f7f7f", "-"),
    "delay-adaptive": ("#bcbd22", "--"),
    "delay-filtered": ("#8c564b", ":"),
    "momentum": ("#1f77b4", "-"),
    "mu2": ("#17becf", "--"),
    "ordered-momentum": ("#d62728", "-"),
    "catch-up": ("#2ca02c", "-"),
    "ordered-mu2": ("#ff7f0e", "--"),
    "catch-up-adamw": ("#e377c2", "-"),
    "clipped-catch-up": ("#e377c2", ":"),
    "balanced-catch-up": ("#7b52ab", "-"),
    "balanced-momentum": ("#7b52ab", "--"),
    "balanced-adamw": ("#7b52ab", ":"),
    "ordered-mu2-anytime": ("#ff7f0e", ":"),
    "rate-free": ("#c2185b", "-"),
    # Relatives share a colour and differ in dash.
    "ringmaster": ("#8f2d56", "-"),
    "ringmaster-stop": ("#8f2d56", "--"),
    "ringmaster-lmo": ("#8f2d56", ":"),
    "ringleader": ("#4d908e", "-."),
    "rennala": ("#9b2226", "-"),
    "synchronous": ("#555555", "--"),
    "sync-minibatch": ("#555555", "-"),
    "async-minibatch": ("#9b2226", "--"),
    "fedbuff": ("#606c38", "-"),
    "fadas": ("#606c38", "--"),
    "ormo": ("#bc6c25", "-"),
    "ormo-da": ("#bc6c25", "--"),
    "dana-zero": ("#bc6c25", ":"),
    "picky": ("#3d348b", "-"),
    "dc-asgd": ("#3d348b", "--"),
    "staleness-aware": ("#577590", "-"),
    "asap": ("#577590", "--"),
    "anytime-sgd": ("#577590", ":"),
    "clipped": ("#b5838d", "-"),
    "ordered-adamw": ("#e377c2", "--"),
}


_OTHERS = ("#005f73", "#9b2226", "#606c38", "#bc6c25", "#3d348b", "#f72585", "#4d908e", "#6a040f", "#577590", "#b5838d")


def style_of(method: str) -> tuple[str, str]:
    """Return colour and dash of a method; one without a style of its own gets one that follows from its name.

    Examples:
        >>> style_of("momentum"), style_of("my-rule") == style_of("my-rule")
        (('#1f77b4', '-'), True)
    """
    if method in STYLES:
        return STYLES[method]
    number = sum((place + 1) * ord(letter) for place, letter in enumerate(method))
    return _OTHERS[number % len(_OTHERS)], ("-", "--", ":", "-.")[number // len(_OTHERS) % 4]


def svg(figure: Figure) -> str:
    """Return a figure as SVG text, the same text every time.

    Examples:
        >>> svg(Figure(figsize=(1, 1))).lstrip().startswith("<svg")
        True
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "latecomer", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write a figure as SVG, PDF and PNG, with the same bytes every time, and return the SVG.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     text = save_figure(Figure(figsize=(1, 1)), Path(folder), "empty")
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['empty.pdf', 'empty.png', 'empty.svg']
    """
    text = svg(figure)
    (folder / f"{name}.svg").write_text(text, encoding="utf-8")
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
    figure.savefig(folder / f"{name}.png", dpi=130, metadata={"Software": None})
    return text


def blank(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes in the common style."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    tidy(axes, title)
    return figure, axes


def tidy(axes: Axes, title: str) -> None:
    """Apply the common style to axes."""
    axes.set_title(title, fontsize=11, loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)


def decimals(axis: Axis) -> None:
    """Write 0.1, 0.3, 1, 3, ... on a logarithmic axis instead of powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())
