"""Where a worker computes: names of devices, batches on them, and their random numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "AUTO", "Crossing", "check_available", "checked_device", "device_kind", "devices_restored", "moved", "resolved",
    "seed_device", "use_device",
]  # fmt: skip

AUTO = "auto"
"""The device that a worker is assigned: by Ray on a cluster, else one accelerator of the machine after the other."""


def checked_device(name: str, device: Any, auto: bool = False) -> str:
    """Return the name of a device, or raise if torch knows none of that name; `check_available` asks for the device.

    Args:
        name: Name of the argument, for messages.
        device: A device or its name.
        auto: Whether ``"auto"`` is allowed.
    """
    if auto and device == AUTO:
        return AUTO
    expected = f"(expected a device of torch, such as 'cpu' or 'cuda:0'{', or auto' if auto else ''})"
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"Invalid {name}: {device!r} {expected}")
    try:
        return str(torch.device(device))
    except RuntimeError:
        raise ValueError(f"Invalid {name}: {device!r} {expected}") from None


def check_available(name: str, device: str) -> None:
    """Raise if this machine does not have a device."""
    wanted = torch.device("cpu" if device == AUTO else device)
    if wanted.type == "cpu":
        return
    if wanted.type == "meta":
        raise ValueError(f"Invalid {name}: 'meta' (its tensors have no values)")
    module = _module_of(wanted)
    count = module.device_count() if module is not None and module.is_available() else 0
    if (wanted.index or 0) >= count:
        has = f"{count} of this type" if count else "none of this type that this build of torch can use"
        raise ValueError(f"Invalid {name}: {device!r} (this machine has {has})")


def resolved(device: str, seat: int) -> torch.device:
    """Return the device of a worker on this machine; with ``"auto"`` one accelerator after the other, by seat."""
    if device != AUTO:
        return torch.device(device)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        return torch.device("cpu")
    return torch.device(found.type, seat % max(1, torch.accelerator.device_count()))


def device_kind(device: torch.device) -> str:
    """Return what kind of device this is; two of one kind compute the same bits."""
    name = getattr(_module_of(device), "get_device_name", None)
    return device.type if name is None or device.type == "cpu" else f"{device.type} {name(device)}"


def use_device(device: torch.device) -> None:
    """Make this the device that new tensors of its type are made on, and whose random numbers tickets seed."""
    if device.type == "cpu":
        return
    _seeded.add(device)
    select = getattr(_module_of(device), "set_device", None)
    if select is not None and device.index is not None:  # without one it is the selected device already
        select(device)


@functools.cache
def _module_of(device: torch.device) -> Any:
    try:
        return torch.get_device_module(device)
    except RuntimeError:  # torch knows the name, and has no such backend
        return None


# ---- random numbers -------------------------------------------------------------------------------------------------

_seeded: set[torch.device] = set()  # devices of this process whose random numbers belong to tickets


def seed_device(seed: int) -> None:
    """Seed the random numbers of the devices that workers of this process use, besides the CPU."""
    for kind in {device.type for device in _seeded}:
        module = _module_of(torch.device(kind))
        getattr(module, "manual_seed_all", module.manual_seed)(seed)  # mps has one device, and no function for all


@contextmanager
def devices_restored() -> Iterator[None]:
    """Restore the random numbers of those devices afterwards."""
    before = [(device, _module_of(device).get_rng_state(device)) for device in _seeded]
    try:
        yield
    finally:
        for device, state in before:
            _module_of(device).set_rng_state(state, device)


# ---- copies between devices -----------------------------------------------------------------------------------------


class Crossing:
    """Copies vectors between this machine's memory and a device, through pinned memory where the device has some.

    Copies are synchronous: when one returns, the source may be written to.
    """

    def __init__(self) -> None:
        self._pinned: Tensor | None = None
        self._tried = False

    def __call__(self, target: Tensor, source: Tensor) -> Tensor:
        """Copy ``source`` into ``target`` and return it."""
        if target.device == source.device:
            return target.copy_(source)
        host = target if target.device.type == "cpu" else source
        through = self._through(host, target.device if host is source else source.device)
        if through is None:
            return target.copy_(source)
        return target.copy_(through.copy_(source))

    def _through(self, host: Tensor, device: torch.device) -> Tensor | None:
        if not self._tried:
            self._tried = True
            self._pinned = pinned_like(host) if device.type != "cpu" and host.device.type == "cpu" else None
        return self._pinned


def pinned_like(host: Tensor) -> Tensor | None:
    """Return pinned memory for a vector; None if no accelerator of this process has any."""
    try:
        return torch.empty(host.shape, dtype=host.dtype, pin_memory=True)
    except (RuntimeError, NotImplementedError):
        return None


# ---- batches --------------------------------------------------------------------------------------------------------


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch with all its tensors on a device: tensors, what has ``.to``, and any nesting of them."""
    if isinstance(batch, Tensor):
        return batch if batch.device == device else batch.to(device)
    if callable(getattr(batch, "to", None)) and not isinstance(batch, type):  # packed sequences, batches of libraries
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a namedtuple
        return type(batch)(*(moved(part, device) for part in batch))
    if isinstance(batch, (list, tuple, set, frozenset)):
        return type(batch)(moved(part, device) for part in batch)
    if isinstance(batch, Mapping):
        parts = {key: moved(part, device) for key, part in batch.items()}
        return parts if type(batch) is dict else _same_mapping(batch, parts)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(batch, **{name: moved(getattr(batch, name), device) for name in names})
    return batch


def _same_mapping(batch: Any, parts: dict[Any, Any]) -> Any:
    """Return a mapping of the same type, for those that can be made from a dict or copied."""
    try:
        copied = batch.copy()
        copied.update(parts)
        return copied
    except (AttributeError, TypeError):
        return parts
