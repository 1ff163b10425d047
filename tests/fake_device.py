"""An accelerator for tests on machines without one: two devices, ``fake:0`` and ``fake:1``, which compute on the CPU.

A tensor on it is an ordinary `torch.Tensor` with an ordinary storage, so views, ``p.data = view``, ``data_ptr()`` and
version counters are torch's own. Every operation runs the CPU's kernel on the same memory, to the same bits; only
scaled_dot_product_attention without dropout, and dropout in 16 bits, take the way of accelerators. Tensors of two
devices do not meet in an operation, random numbers have a state per device, and numpy does not see the memory. Copies
between devices are counted. Missing: torch.Generator(device="fake"), pinned memory, nn.LSTM and nn.GRU, and
``p.data = there`` for a p of another device, so ``model.to("fake:0")`` makes new parameters.

Importing this module makes the devices known to the process, for good. A worker process imports it when it unpickles
something that is defined here or in a module that imports it: a loss function of such a module, or a `CopyLog`. Until
then it does not know the name ``fake:0``.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

COUNT = 2
_NAME = "fake"
_CPU, _EXTENSION = 1, 12  # kDLCPU and kDLExtDev of DLPack; torch takes the latter for PrivateUse1
# What autocast does on the CPU; whatever else it knows there is computed in float32.
_LOWER = {
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "conv_tbc",
    "_convolution", "linear", "matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "_addmm_activation", "linalg_vecdot",
    "scaled_dot_product_attention", "_native_multi_head_attention",
}  # fmt: skip
_PROMOTED = {"cat", "stack", "index_copy"}

_libraries: list[torch.library.Library] = []  # a library's kernels last as long as the library
_states: list[Tensor] = []  # of the random numbers, one per device
_copies: list[Copy] = []
_logs: list[str] = []
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Copy(NamedTuple):
    """A copy from one device to another; ``item()`` is one of one element."""

    source: str
    target: str
    elements: int
    bytes: int


def copies() -> list[Copy]:
    """Return all copies between devices in this process since `reset_counts`."""
    return list(_copies)


def reset_counts() -> None:
    """Forget the copies of this process so far."""
    _copies.clear()


class CopyLog:
    """A file to which processes append their copies: this one inside ``with``, others as soon as they unpickle the log.

    An environment variable would not do: workers of a fork server have the environment that it was started with.

    Args:
        path: The file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)

    def __enter__(self) -> CopyLog:
        _logs.append(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        _logs.remove(self.path)

    def __setstate__(self, state: dict[str, str]) -> None:
        self.path = state["path"]
        if self.path not in _logs:
            _logs.append(self.path)

    def read(self) -> list[tuple[int, Copy]]:
        """Return all copies so far, each with the id of its process."""
        lines = Path(self.path).read_text().splitlines() if Path(self.path).exists() else []
        return [(pid, Copy(*rest)) for pid, *rest in map(json.loads, lines)]


def _count(source: Tensor, target: torch.device) -> None:
    copy = Copy(str(source.device), str(target), source.numel(), source.nbytes)
    _copies.append(copy)
    for path in _logs:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, (json.dumps([os.getpid(), *copy]) + "\n").encode())  # one write: lines do not mix
        os.close(file)


def _relabelled(tensor: Tensor, kind: int, index: int) -> Tensor:
    """Return a tensor on another device in the same memory, which it keeps alive."""
    capsule = torch._C._to_dlpack(tensor)  # type: ignore[attr-defined]
    # DLManagedTensor starts with the pointer to the data, followed by the kind and the index of the device.
    where = (ctypes.c_int32 * 2).from_address(_capsule_pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p))
    where[:] = [kind, index]
    return torch._C._from_dlpack(capsule)  # type: ignore[attr-defined, no-any-return]


def _index(device: Any) -> int:
    device = torch.device(_NAME, device) if isinstance(device, int) else torch.device(device)
    if device.type != _NAME or (device.index or 0) >= COUNT:
        raise RuntimeError(f"Invalid device: {device} (expected fake:0 to fake:{COUNT - 1})")
    return device.index or 0


@contextmanager
def _random_numbers_of(index: int) -> Iterator[None]:
    before = torch.default_generator.get_state()
    torch.default_generator.set_state(_states[index])
    try:
        yield
    finally:
        _states[index] = torch.default_generator.get_state()
        torch.default_generator.set_state(before)


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation of the CPU in the memory of its arguments."""
    torch._C._set_multithreading_enabled(False)  # type: ignore[attr-defined]  # see install
    leaves, tree = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    places = {t.device for t in tensors if t.dim() or t.device.type != "cpu"}
    if kwargs.get("device") is not None:
        places.add(torch.device(_NAME, _index(kwargs["device"])))
    if len(places) > 1 or any(place.type != _NAME for place in places):
        found = ", ".join(sorted(map(str, places)))
        raise RuntimeError(f"Expected all tensors of {op} to be on the same device, but found {found}")
    index = places.pop().index
    if any(isinstance(leaf, torch.Generator) for leaf in leaves):
        raise RuntimeError(f"Expected a 'fake' device type for generator of {op} but found 'cpu'")
    if op is torch.ops.aten._local_scalar_dense.default:
        _count(tensors[0], torch.device("cpu"))
    back: dict[int, tuple[Tensor, Tensor]] = {}

    def inner(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if isinstance(leaf, Tensor) and leaf.device.type == _NAME:
            # Without elements there is no memory to share, but something that an operation may resize, as out= is.
            alias = _relabelled(leaf, _CPU, 0) if leaf.numel() else torch.empty(leaf.shape, dtype=leaf.dtype)
            back[id(alias)] = alias, leaf
            return alias
        return leaf

    def outer(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if any(leaf is t for t in tensors):
            raise RuntimeError(f"{op} would write from fake:{index} into a tensor on the cpu")
        return back[id(leaf)][1] if id(leaf) in back else _relabelled(leaf, _EXTENSION, index)

    inner_args, inner_kwargs = pytree.tree_unflatten([inner(leaf) for leaf in leaves], tree)
    if torch.Tag.nondeterministic_seeded in op.tags:
        with _random_numbers_of(index):
            result = op(*inner_args, **inner_kwargs)
    else:
        result = op(*inner_args, **inner_kwargs)
    for alias, leaf in back.values():
        if alias.shape != leaf.shape:
            leaf.set_(_relabelled(alias, _EXTENSION, index))  # type: ignore[call-overload]
    return pytree.tree_map(outer, result)


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if source.device != target.device:
        _count(source, target.device)
    ends = (_relabelled(t, _CPU, 0) if t.device.type == _NAME else t for t in (target, source))
    torch.ops.aten.copy_.default(*ends)
    return target


def _to_copy(*args: Any, non_blocking: bool = False, **kwargs: Any) -> Tensor:
    """Copy without the pinned memory into which torch would copy, had the device an allocator for it."""
    op: Any = torch.ops.aten._to_copy.default
    return op._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)  # type: ignore[no-any-return]


def _autocast(op: Any, dtype: torch.dtype | None, *args: Any, **kwargs: Any) -> Any:
    """Run an operation with its floating-point tensors in a dtype, by default in autocast's."""
    dtype = dtype or torch.get_autocast_dtype(_NAME)

    def cast(leaf: Any) -> Any:
        eligible = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype is not torch.float64
        return leaf.to(dtype) if eligible and leaf.device.type == _NAME else leaf

    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
        args, kwargs = pytree.tree_map(cast, (args, kwargs))
        return op(*args, **kwargs)


def _storage_to(storage: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return flat.to(device, copy=True).untyped_storage()


def _set_state(state: Tensor, device: Any = _NAME) -> None:
    _states[_index(device)] = state.clone()


def _seed(seed: int, device: Any = _NAME) -> None:
    _set_state(torch.Generator().manual_seed(seed).get_state(), device)


def _seed_all(seed: int) -> None:
    for index in range(COUNT):
        _seed(seed, index)


def _select(device: Any) -> None:
    """Refuse a device without an index, as torch.cuda does; tensors say where they are made, so nothing is selected."""
    if isinstance(device, torch.device) and device.index is None:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
    _index(device)


def _device_module() -> types.ModuleType:
    """Return ``torch.fake``, with what torch asks of a device's module."""
    module = types.ModuleType(f"torch.{_NAME}")
    vars(module).update(
        is_available=lambda: True, is_initialized=lambda: True, _is_in_bad_fork=lambda: False, _lazy_init=lambda: None,
        device_count=lambda: COUNT, current_device=lambda: 0, synchronize=lambda device=None: None,
        set_device=_select, manual_seed=_seed, manual_seed_all=_seed_all, set_rng_state=_set_state,
        get_rng_state=lambda device=_NAME: _states[_index(device)].clone(),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
    )  # fmt: skip
    return module


def _register_operations() -> None:
    aten, fallback = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    _libraries.extend([aten, fallback])
    known: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    for name in names:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if known(name, "AutocastCPU") and packet not in _PROMOTED:
            dtype = None if packet in _LOWER else torch.float32
            aten.impl(name, functools.partial(_autocast, op, dtype), "AutocastPrivateUse1")
        if not known(name, "CPU"):
            continue
        if op.is_view or packet in ("set_", "is_set_to"):  # these look at sizes and storages alone, not at the memory
            aten.impl(name, functools.partial(op._op_dk, torch._C.DispatchKey.CPU), "PrivateUse1")
        else:
            aten.impl(name, functools.partial(_run, op), "PrivateUse1")
    for op in (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default):
        aten.impl(op.name(), functools.partial(_run, op), "PrivateUse1")  # torch's own refuses devices it does not know
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    aten.impl("_to_copy", _to_copy, "PrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


def install() -> None:
    """Make the devices known to torch; does nothing if they are."""
    if _libraries:
        return
    # The first backward pass of a process starts a thread per accelerator, after which a fork could not train. So have
    # it before there is one; without these threads backward passes have to stay in their thread, as _run asks for.
    torch.zeros((), requires_grad=True).backward()  # type: ignore[no-untyped-call]
    _setup_privateuseone_for_python_backend(_NAME, backend_module=_device_module())
    _states.extend(torch.Generator().get_state() for _ in range(COUNT))
    _register_operations()
    _patch_storages()
    torch.random._fork_rng_warned_already = True  # of fork_rng() on a machine with several devices, once per process
    torch._C._accelerator_synchronizeDevice = lambda index: None  # a device guard in Python has no say in it


def _patch_storages() -> None:
    """Have storages copied as tensors, for deepcopy, pickle and torch.load: there is no allocator for them."""
    storage: Any = torch.UntypedStorage
    to, clone = storage.to, storage.clone

    def new_to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        device = torch.device(device)
        return _storage_to(self, device) if device.type == _NAME else to(self, device=device, non_blocking=non_blocking)

    storage.to = new_to
    storage.clone = lambda self: _storage_to(self, self.device) if self.device.type == _NAME else clone(self)


install()
