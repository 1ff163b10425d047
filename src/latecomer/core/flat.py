"""A model whose parameters are views of one flat buffer, and whose gradients are written into another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["FlatModule", "uncompiled"]


class FlatModule:
    """A module whose parameters can be pointed at any flat tensor, with gradients in one flat tensor too.

    Args:
        module: Its trainable parameters must share a dtype and a device.

    Attributes:
        x: The flat parameter for the optimizer; the module's parameters are views of it until `at` is called.
    """

    def __init__(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"Invalid model: {type(module).__name__} (expected a torch.nn.Module)")
        self.module = module
        self._params = [p for p in module.parameters() if p.requires_grad]
        if not self._params:
            raise ValueError("The module has no parameters to train")
        kinds = {(p.dtype, p.device) for p in self._params}
        if len(kinds) > 1:
            raise ValueError(f"The parameters must share one dtype and device, got {sorted(map(str, kinds))}")
        if not self._params[0].is_floating_point():
            raise TypeError(
                f"The parameters are {self._params[0].dtype} (expected a floating-point dtype): train the real and the "
                "imaginary part as two real parameters"
            )
        self._strides = [_strides(p) for p in self._params]
        (dtype, device), size = kinds.pop(), sum(p.numel() for p in self._params)
        start = torch.empty(size, dtype=dtype, device=device)
        for view, p in zip(self.views(start), self._params, strict=True):
            view.copy_(p.detach())
        self.x = nn.Parameter(start)
        self._views: dict[int, list[Tensor]] = {}
        self._bound: int | None = None
        self.at(self.x)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat tensor in the shapes and memory layouts of the parameters."""
        pieces = torch.split(flat.detach(), [p.numel() for p in self._params])
        return [
            piece.as_strided(p.shape, stride)
            for piece, p, stride in zip(pieces, self._params, self._strides, strict=True)
        ]

    def _cached(self, flat: Tensor) -> list[Tensor]:
        # Views keep their memory alive, so an address in this cache never refers to another tensor.
        key = flat.data_ptr()
        views = self._views.get(key)
        if views is None:
            views = self._views[key] = self.views(flat)
        return views

    def at(self, flat: Tensor) -> nn.Module:
        """Point the module's parameters at ``flat`` without a copy, and return the module."""
        if self._bound != flat.data_ptr():
            for p, view in zip(self._params, self._cached(flat), strict=True):
                p.data = view
            self._bound = flat.data_ptr()
        return self.module

    def gradient(self, flat: Tensor, loss: Callable[[nn.Module], Tensor], out: Tensor) -> Tensor:
        """Evaluate a loss at ``flat``, write its gradient into ``out`` and return the loss."""
        module = self.at(flat)
        views = self._cached(out)
        for p, view in zip(self._params, views, strict=True):
            p.grad = view
        out.zero_()
        value = loss(module)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"A problem's loss must return one number that depends on the parameters, got {shown}")
        value.backward()  # type: ignore[no-untyped-call]
        for p, view in zip(self._params, views, strict=True):
            if p.grad is not view and p.grad is not None:  # the loss called zero_grad: autograd made a new tensor
                view.copy_(p.grad)
        return value.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the module's state dict at ``x``."""
        return {key: value.detach().clone() for key, value in self.at(self.x).state_dict().items()}


def uncompiled(module: Any) -> Any:
    """Return the module inside a ``torch.compile`` wrapper, or the module itself."""
    return getattr(module, "_orig_mod", module) if isinstance(module, nn.Module) else module


def _strides(p: Tensor) -> tuple[int, ...]:
    """Return the strides of a parameter if its memory has no gaps (channels last, for example), else the default."""
    return torch.empty_like(p).stride()  # keeps any dense layout
