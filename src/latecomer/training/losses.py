"""The loss of a batch: by a torch loss, or by the model itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

__all__ = ["loss_of_model", "own_loss", "supervised_loss"]

_NAMES_OF_MODELS = ("model", "module", "net", "network")


def supervised_loss(loss: Callable[..., Tensor], model: nn.Module, batch: Any) -> Tensor:
    """Call a torch loss with the model's output and the last part of the batch."""
    if not isinstance(batch, (list, tuple)) or len(batch) < 2:
        raise TypeError(
            f"A torch loss needs batches (inputs, targets), got {_described(batch)}: write loss_fn(model, batch) "
            "yourself, or leave out loss_fn if the model returns its loss"
        )
    output = model(*batch[:-1])
    try:
        return loss(output, batch[-1])
    except (TypeError, AttributeError) as error:
        if isinstance(output, Tensor):
            raise
        raise TypeError(
            f"A torch loss needs a tensor, and the model returned {_described(output)}: write loss_fn(model, batch) "
            "that takes the tensor from it, or leave out loss_fn if the model returns its loss"
        ) from error


def own_loss(loss: Callable[..., Tensor], model: nn.Module, batch: Any) -> Tensor:
    """Call a user's own loss; one that was written for (output, target) is told how it is called."""
    try:
        return loss(model, batch)
    except (TypeError, AttributeError) as error:
        if _first_parameter(loss) in _NAMES_OF_MODELS:
            raise
        raise TypeError(
            f"{error}; a loss of your own is called as loss_fn(model, batch); only losses of torch get (output, target)"
        ) from error


def loss_of_model(model: nn.Module, batch: Any) -> Tensor:
    """Call a model that returns its own loss: as ``.loss``, as ``["loss"]``, or alone."""
    named: Mapping[str, Any] = batch if isinstance(batch, Mapping) else {}
    args = batch if isinstance(batch, (list, tuple)) else () if isinstance(batch, Mapping) else (batch,)
    try:
        output = model(*args, **named)
    except TypeError as error:
        try:
            inspect.signature(model.forward).bind(*args, **named)
        except TypeError as mismatch:  # the batch does not fit the model: most likely a loss_fn was forgotten
            raise TypeError(
                f"Without loss_fn the model is called with the whole batch, {_described(batch)}, and that does not fit "
                f"its forward ({mismatch}): pass loss_fn, a torch loss or loss_fn(model, batch), or change the batches"
            ) from error
        raise
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    why = " whose loss is None; are the labels in the batch?" if _has_none(output) else ""
    raise TypeError(
        f"Without loss_fn the model must return its loss, as .loss, as ['loss'] or alone; it returned "
        f"{_described(output)}{why or ': pass loss_fn, a torch loss or loss_fn(model, batch)'}"
    )


def _first_parameter(function: Callable[..., Any]) -> str:
    """Return the name of a function's first parameter; empty if it is not known."""
    try:
        return next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):
        return ""


def _has_none(output: Any) -> bool:
    return (output.get("loss", 0) if isinstance(output, Mapping) else getattr(output, "loss", 0)) is None


def _described(value: Any) -> str:
    """Describe a batch or an output: its type, with keys, length or shape."""
    name = type(value).__name__
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {name} with the keys {', '.join(map(repr, list(value)[:8]))}"
    return f"a {name} of {len(value)}" if isinstance(value, (list, tuple)) else f"a {name}"
