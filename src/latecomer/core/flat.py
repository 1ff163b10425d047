"""A model whose parameters are views of one flat buffer, and whose gradients are written into another."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["FlatModule", "digest", "uncompiled"]

_MOVED = (
    "{who} {what}, so training would go on without it: inside loss_fn and evaluate, do not call model.to(), "
    ".bfloat16(), .half() or .double() and do not replace parameters or layers; move the inputs instead, use "
    "autocast='bfloat16' for bfloat16, convert the model before the run, and evaluate a copy.deepcopy(model)"
)
_CHANGED = (
    "The loss or the model changes the parameter {name!r} in place, which would be lost: the server holds them. "
    "Compute with a changed copy instead; for nn.Embedding(max_norm=...) leave max_norm out and normalise the output"
)


class _Views(NamedTuple):
    """Views of a flat tensor, one per parameter, and the addresses at which they were made."""

    tensors: list[Tensor]
    addresses: list[int]


class FlatModule:
    """A module whose parameters can be pointed at any flat tensor, with gradients in one flat tensor too.

    The flat tensors have the widest dtype of the trainable parameters. A parameter of a narrower dtype cannot be a view
    of them: it is rounded from them in `at`, and its gradient is widened.

    Args:
        module: Its trainable parameters must share a device.
        device: Move it there first; None to leave it where it is.

    Attributes:
        x: The flat parameter for the optimizer; the module's parameters are views of it until `at` is called.
        names: Names of the trainable parameters, in the order of `x`.
    """

    def __init__(self, module: nn.Module, device: torch.device | str | None = None) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"Invalid model: {type(module).__name__} (expected a torch.nn.Module)")
        self.module = module if device is None else module.to(device)
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.names, self._params = list(trained), list(trained.values())
        if not self._params:
            raise ValueError("The module has no parameters to train")
        devices = sorted({str(p.device) for p in self._params})
        if len(devices) > 1:
            raise ValueError(f"The parameters must share one device, got {', '.join(devices)}")
        for name, p in trained.items():
            if not p.is_floating_point():
                raise TypeError(
                    f"The parameter {name!r} is {p.dtype} (expected a floating-point dtype): train the real and the "
                    "imaginary part as two real parameters"
                )
        dtype = functools.reduce(torch.promote_types, (p.dtype for p in self._params))
        self._strides = [_strides(p) for p in self._params]
        start = torch.empty(sum(p.numel() for p in self._params), dtype=dtype, device=self._params[0].device)
        for view, p in zip(self.views(start), self._params, strict=True):
            view.copy_(p.detach())
        self.x = nn.Parameter(start)
        self._narrow = {i: p.detach().clone() for i, p in enumerate(self._params) if p.dtype is not dtype}
        self._views: dict[int, _Views] = {}
        self._bound: int | None = None
        self._parts = _Parts(module)
        self.at(self.x)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.x.device

    @property
    def module_parameters(self) -> list[nn.Parameter]:
        """The trainable parameters of the module, in the order of `names`."""
        return list(self._params)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat tensor in the shapes and memory layouts of the parameters."""
        pieces = torch.split(flat.detach(), [p.numel() for p in self._params])
        return [
            piece.as_strided(p.shape, stride)
            for piece, p, stride in zip(pieces, self._params, self._strides, strict=True)
        ]

    def cached_views(self, flat: Tensor) -> list[Tensor]:
        """Return `views` of a flat tensor that is used again and again; they are made once."""
        return self._cached(flat).tensors

    def _cached(self, flat: Tensor) -> _Views:
        # Views keep their memory alive, so an address in this cache never refers to another tensor.
        key = flat.data_ptr()
        views = self._views.get(key)
        if views is None:
            tensors = self.views(flat)
            views = self._views[key] = _Views(tensors, [view.data_ptr() for view in tensors])
        return views

    def at(self, flat: Tensor) -> nn.Module:
        """Point the module's parameters at ``flat`` without a copy, and return the module."""
        if self._bound != flat.data_ptr():
            for i, (p, view) in enumerate(zip(self._params, self._cached(flat).tensors, strict=True)):
                p.data = self._narrow.get(i, view)
            self._bound = flat.data_ptr()
        for i, memory in self._narrow.items():
            memory.copy_(self._cached(flat).tensors[i])
        return self.module

    def gradient(self, flat: Tensor, loss: Callable[[nn.Module], Tensor], out: Tensor) -> Tensor:
        """Evaluate a loss at ``flat``, write its gradient into ``out`` and return the loss."""
        module = self.at(flat)
        views, addresses = self._cached(out)
        if self._narrow:  # in the parameters' own dtypes, and widened at the end
            views = [torch.zeros_like(view, dtype=p.dtype) for p, view in zip(self._params, views, strict=True)]
            addresses = [view.data_ptr() for view in views]
        for p, view in zip(self._params, views, strict=True):
            p.grad = view
        out.zero_()
        versions = [p._version for p in self._params]
        with self.intact("The loss"):
            value = loss(module)
        for name, p, version in zip(self.names, self._params, versions, strict=True):
            if p._version != version:
                raise ValueError(_CHANGED.format(name=name))
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise TypeError(_no_loss(value))
        for p, view in zip(self._params, views, strict=True):
            if p.grad is not view:  # the loss called zero_grad
                _ = view.zero_() if p.grad is None else view.copy_(p.grad)
                p.grad = view
        value.backward()  # type: ignore[no-untyped-call]
        for p, view, address in zip(self._params, views, addresses, strict=True):
            if p.grad is not view or view.data_ptr() != address:
                self._reset()
                raise ValueError(_MOVED.format(who="The loss or a hook", what="put a gradient into other memory"))
        if self._narrow:
            for wide, view in zip(self._cached(out).tensors, views, strict=True):
                wide.copy_(view)
        return value.detach()

    @contextlib.contextmanager
    def intact(self, who: str) -> Iterator[None]:
        """Run the user's code; raise afterwards if the module's parameters are no longer where `at` has put them.

        ``Module._apply``, which ``model.to(...)``, ``.bfloat16()`` and others call, gives parameters *and* the
        gradients they hold other memory, while the Python objects stay the same.

        Args:
            who: Whose code it is, for the message.
        """
        try:
            yield
        finally:  # also after an exception of the user's code, so that the next job does not suffer from it
            moved = self._moved()
            if moved:
                with contextlib.suppress(RuntimeError):  # a device whose memory cannot be swapped back
                    self._reset()
        if moved:
            raise ValueError(_MOVED.format(who=who, what=moved))

    def _moved(self) -> str:
        """Return what is no longer where it was put, or an empty string."""
        if self._bound is None:
            return ""
        replaced = self._parts.replaced()
        if replaced:
            return replaced
        for i, (name, p, view, address) in enumerate(
            zip(self.names, self._params, *self._views[self._bound], strict=True)
        ):
            memory = self._narrow.get(i)
            if memory is not None:
                view, address = memory, memory.data_ptr()
            if p.data_ptr() != address or p.dtype is not view.dtype or p.shape != view.shape:
                return f"put the parameter {name!r} into other memory ({p.dtype} on {p.device})"
        return ""

    def _reset(self) -> None:
        """Put everything back where it was, so that the next job of this process computes what it should."""
        for p in self._params:
            p.grad = None
        self._views, self._bound = {}, None
        self._parts.restore()
        self.at(self.x)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the module's state dict at ``x``."""
        return {key: value.detach().to("cpu", copy=True) for key, value in self.at(self.x).state_dict().items()}


class _Parts:
    """The layers, parameters and buffers of a module, as they were registered when it was made."""

    def __init__(self, module: nn.Module) -> None:
        self._layers: list[tuple[dict[str, Any], str, Any]] = []
        self._parameters: list[tuple[dict[str, Any], str, Any]] = []
        self._constants: list[tuple[dict[str, Any], str, Any, Tensor]] = []  # buffers and what is frozen
        for layer in module.modules():
            self._layers += [(layer._modules, name, part) for name, part in layer._modules.items() if part is not None]
            for name, p in layer._parameters.items():
                if p is not None and p.requires_grad:
                    self._parameters.append((layer._parameters, name, p))
                elif p is not None:
                    self._constants.append((layer._parameters, name, p, p.data))
            buffers = ((name, buffer) for name, buffer in layer._buffers.items() if buffer is not None)
            self._constants += [(layer._buffers, name, buffer, buffer.data) for name, buffer in buffers]

    def replaced(self) -> str:
        """Return what was replaced by another object, or an empty string."""
        for owner, name, part in self._layers:
            if owner.get(name) is not part:
                return f"replaced the layer {name!r}"
        for owner, name, part in self._parameters:
            if owner.get(name) is not part:
                return f"replaced the parameter {name!r}"
        return ""

    def restore(self) -> None:
        """Register everything again, constants with their old memory."""
        for owner, name, part in [*self._layers, *self._parameters]:
            owner[name] = part
        for owner, name, part, data in self._constants:
            owner[name], part.data = part, data


def digest(x: Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes."""
    return hashlib.sha256(x.detach().cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()


def uncompiled(module: Any) -> Any:
    """Return the module inside a ``torch.compile`` wrapper, or the module itself."""
    return getattr(module, "_orig_mod", module) if isinstance(module, nn.Module) else module


def _no_loss(value: Any) -> str:
    """Say why this is not a loss, and what to do about it."""
    if isinstance(value, Tensor) and value.numel() != 1:
        return f"The loss must be one number, got a tensor of shape {tuple(value.shape)}: take its mean"
    shown = "a tensor that requires no gradient" if isinstance(value, Tensor) else type(value).__name__
    return f"The loss must be one number that depends on the parameters, got {shown}"


def _strides(p: Tensor) -> tuple[int, ...]:
    """Return the strides of a parameter if its memory has no gaps (channels last, for example), else the default."""
    return torch.empty_like(p).stride()  # keeps any dense layout
