"""Tables beside the verdicts: what became of each method, how wide its band of learning rates is, what was chosen."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from .evidence import OURS, PAPER, TRAINED, shares_trained
from .finetuning import at_end
from .plan import COMMON_CLIP
from .statistics import mean_interval
from .verdicts import THRESHOLDS, Findings

__all__ = ["band_table", "band_width", "fine_tuning_table", "method_table"]

_SETTINGS = ("lr", "beta", "gamma", "threshold")


def whose(method: str) -> str:
    """Return ``paper``, ``ours``, or ``common clip`` for what ours is compared with."""
    return "paper" if method in PAPER else "ours" if method in OURS else "common clip"


def configuration(options: Mapping[str, Any]) -> str:
    """Return hyper-parameters as words."""
    return ", ".join(f"{name} {options[name]:g}" for name in _SETTINGS if name in options)


def _mean(values: pl.Series) -> float | None:
    kept = values.drop_nulls().drop_nans()
    return round(float(kept.to_numpy().mean()), 4) if len(kept) else None


def method_table(found: Findings) -> pl.DataFrame:
    """Return one row per method on MNIST: configuration, share trained at three thresholds, F1, slow against fast."""
    table: list[dict[str, Any]] = []
    if found.judged is None or found.choice is None:
        return pl.DataFrame(schema={"method": pl.String})
    shares = {threshold: shares_trained(found.judged, threshold) for threshold in THRESHOLDS}
    for method in (each for each in (*PAPER, *OURS, COMMON_CLIP) if each in shares[TRAINED]):
        own = found.judged.filter(pl.col("method") == method)
        trained = own.filter(pl.col("f1").fill_nan(0.0) >= TRAINED)
        table.append({
            "method": method, "whose": whose(method), "configuration": configuration(found.choice[method]),
            "runs": own.height, **{f"trained_{t:g}": round(shares[t][method].value, 4) for t in THRESHOLDS},
            "low": round(shares[TRAINED][method].low, 4), "high": round(shares[TRAINED][method].high, 4),
            "f1": _mean(own["f1"]), "f1_trained": _mean(trained["f1"]), "slow_trained": _mean(trained["f1_slow"]),
            "fast_trained": _mean(trained["f1_fast"]), "relative_influence": _mean(own["relative_influence"]),
        })  # fmt: skip
    return pl.DataFrame(table, infer_schema_length=None)


def band_width(rates: list[float], f1: list[float], threshold: float = TRAINED) -> float:
    """Return over how many decades of the learning rate F1 is at least a threshold, linear between the rates.

    Examples:
        >>> band_width([0.001, 0.01, 0.1], [0.0, 1.0, 1.0], 0.5)
        1.5
    """
    width = 0.0
    for (left, a), (right, b) in itertools.pairwise(sorted(zip(np.log10(rates), f1, strict=True))):
        if a >= threshold and b >= threshold:
            width += right - left
        elif max(a, b) >= threshold:
            width += (right - left) * (max(a, b) - threshold) / abs(b - a)
    return float(width)


def band_table(found: Findings) -> pl.DataFrame:
    """Return the width of each method's good band in decades, and the share of the rates that trained."""
    if found.curves is None or found.curves.is_empty():
        return pl.DataFrame(schema={"method": pl.String})
    table = []
    for method in (each for each in (*PAPER, *OURS, COMMON_CLIP) if each in set(found.curves["method"])):
        own = found.curves.filter(pl.col("method") == method).with_columns(pl.col("f1").fill_null(0.0).fill_nan(0.0))
        seeds = own.partition_by("seed")
        interval = mean_interval([band_width(each["lr"].to_list(), each["f1"].to_list()) for each in seeds])
        table.append({
            "method": method, "whose": whose(method), "seeds": len(seeds), "decades": round(interval.value, 3),
            "low": round(interval.low, 3), "high": round(interval.high, 3),
            "share_of_rates": round(float((own["f1"].to_numpy() >= TRAINED).mean()), 3),
        })  # fmt: skip
    return pl.DataFrame(table)


def fine_tuning_table(found: Findings) -> pl.DataFrame:
    """Return one row per method on CIFAR-10: configuration, F1 with its 90 % interval, slow, fast, share trained."""
    if found.tuned is None or found.fine is None:
        return pl.DataFrame(schema={"method": pl.String})
    table = []
    shares = shares_trained(found.tuned, found.fine.trained)
    for method, options in found.fine.choice.items():
        own = found.tuned.filter(pl.col("method") == method)
        f1 = mean_interval(own["f1"].fill_null(0.0).fill_nan(0.0).to_list())
        table.append({
            "method": method, "configuration": configuration(options), "runs": own.height, "f1": round(f1.value, 4),
            "low": round(f1.low, 4), "high": round(f1.high, 4), "slow": _mean(own["f1_slow"]),
            "fast": _mean(own["f1_fast"]), "trained": round(shares[method].value, 4), "threshold": found.fine.trained,
            "at_end": ", ".join(at_end(options)),
        })  # fmt: skip
    return pl.DataFrame(table)
