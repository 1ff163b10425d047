"""The methods by name, how to add one, and what ``method=`` means."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from .._util.suggest import did_you_mean
from ..policy import Policy, PolicyLike, as_policy
from .method import Method, MethodLike, keywords, name_of
from .table import LIBRARY

__all__ = [
    "METHODS",
    "Method",
    "MethodLike",
    "adopt",
    "as_method",
    "known_method",
    "method_and_policy",
    "register",
    "registered",
]

_METHODS: dict[str, Method] = dict(LIBRARY)
_ORIGINS: dict[str, tuple[Any, ...]] = {}  # who registered a name: module, optimizer and policy
_SENT: dict[str, Callable[[], Method]] = {}  # registered in the process that started this one, and not loaded yet


_MEANT = {
    "adam": "catch-up-adamw or rate-free",
    "adamw": "catch-up-adamw or rate-free",
    "sgd": "async-sgd or momentum",
}
"""Names of torch's optimizers, and the methods that come closest."""


def known_method(name: object) -> Method:
    """Return the method with this name.

    Examples:
        >>> known_method("catch-up").source == METHODS["catch-up"].source
        True
    """
    if not isinstance(name, str) or name not in METHODS:
        meant = _MEANT.get(name.lower(), "") if isinstance(name, str) else ""
        hint = f"did you mean {meant}?" if meant else did_you_mean(str(name), METHODS)
        raise ValueError(f"Unknown method {name!r}{f': {hint}' if hint else ''} (`latecomer methods` lists them)")
    return METHODS[name]


def as_method(method: MethodLike) -> Method:
    """Return what ``method=`` means: everything that takes a method asks here.

    A class takes its hyper-parameters beside it, as a name does. A function of the parameters has them in it.

    Examples:
        >>> from latecomer.optim import Momentum
        >>> as_method("momentum") is as_method(Momentum) is METHODS["momentum"]
        True
        >>> as_method(torch.optim.SGD).name
        'torch.optim.sgd.SGD'
        >>> as_method(lambda params: Momentum(params, lr=0.1)).arguments
        {}
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        return known_method(method)
    if isinstance(method, Optimizer):
        return Method(type(method).__name__, method)  # which raises, and says why
    if not callable(method):
        raise TypeError(
            f"Invalid method: {method!r} (expected a name that `latecomer methods` lists; a class of optimizers; a "
            "function of the parameters; or a latecomer.optim.Method)"
        )
    if isinstance(method, type):
        own = METHODS.get(getattr(method, "method", ""))
        return own if own is not None and own.optimizer is method else Method(name_of(method), method)
    return Method(name_of(method), method, takes_options=False)


def method_and_policy(
    method: MethodLike, policy: PolicyLike | None, workers: int, options: Mapping[str, Any], grouped: bool = False
) -> tuple[Method, Policy]:
    """Return the method and the policy of a run, and check the hyper-parameters.

    A ``policy`` that is given replaces the method's own; its options are then no hyper-parameters of the method. With
    ``grouped`` the param groups may bring what the optimizer needs.
    """
    found = as_method(method)
    if policy is not None:
        found = replace(found, policy=None)
        found.check(options, grouped)
        return found, as_policy(policy, workers)
    found.check(options, grouped)
    return found, as_policy(found.policy, workers, found.policy_options(options))


def register(
    name: str,
    optimizer: Callable[..., Optimizer],
    *,
    policy: Any = None,
    influence: Callable[..., float] | None = None,
    source: str = "",
    replace: bool = False,
) -> Method:
    """Add a method, which is then known by its name wherever a method is asked for.

    Call it in a file, at the top level. The file is imported again in every process that needs the name:
    by ``--import file.py`` on the command line, by ``imports`` in the spec of a sweep, and by the processes of a sweep.
    The workers of `latecomer.fit` know it without: they get what has been registered when they start.

    A name can be registered again by the module that has registered it, for an optimizer and a policy of the same
    names; the new definition replaces the old one. So a notebook cell can be run again, and a module reloaded.

    Args:
        name: Its name: lower-case words joined by hyphens.
        optimizer: Its optimizer: a subclass of `AsyncOptimizer` or of `torch.optim.Optimizer`, or a function that
            makes one. The parameters come first; other arguments are hyper-parameters of the method.
        policy: What the server does with an arrival; see `Method`.
        influence: The total weight of a gradient by its delay, relative to a gradient without delay: a function of the
            delay and, by name, of the hyper-parameters it needs. `latecomer.testing.check_method` compares.
        source: Where the rule is defined.
        replace: Replace another method of this name, unless it is one of the library's own.

    Examples:
        >>> import latecomer as lc
        >>> def plain(params, lr):
        ...     return lc.optim.Momentum(params, lr=lr, beta=1.0)
        >>> lc.optim.register("plain", plain).name in lc.optim.METHODS
        True
        >>> lc.optim.register("plain", plain, influence=lambda delay: 1.0).influence(3)        # the cell, run again
        1.0
        >>> lc.optim.register("plain", lc.optim.Momentum)
        Traceback (most recent call last):
        ValueError: There is a method 'plain' already, with optimizer latecomer.optim.methods.plain: choose another
        name, or pass replace=True
        >>> lc.optim.methods._METHODS.pop("plain").name        # so that no other example sees it
        'plain'
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"Invalid name of a method: {name!r} (expected lower-case words joined by hyphens: my-rule)")
    caller = sys._getframe(1)
    method = Method(name, optimizer, influence, source, policy=policy, files=_files(caller.f_code, optimizer, policy))
    in_file = Path(caller.f_code.co_filename).is_file()
    # A file that is run and imported too has two module names.
    place = str(Path(caller.f_code.co_filename).resolve()) if in_file else caller.f_globals.get("__name__")
    parts = (name_of(each).rpartition(".")[2] for each in (optimizer, policy) if each is not None)
    origin = (place, *parts)
    if name in _METHODS:
        _check_again(_METHODS[name], origin, in_file, replace)
    twice = sorted(method._policy_arguments.keys() & keywords(optimizer)[0].keys())
    if twice:
        raise ValueError(f"Both the optimizer and the policy of {name} have an option {twice[0]!r}: rename one")
    _METHODS[name] = method
    _ORIGINS[name] = origin
    return method


def _check_again(old: Method, origin: tuple[Any, ...], in_file: bool, replace: bool) -> None:
    """Raise unless a name may be registered again: see `register`."""
    if old.files is None:
        raise ValueError(f"There is a method {old.name!r} of the library already: choose another name")
    # All lambdas of a module have one name. In a file, two of them are two methods; a cell is run again and again.
    nameless = in_file and any("<" in part for part in origin[1:])
    if not replace and (nameless or origin != _ORIGINS.get(old.name)):
        raise ValueError(
            f"There is a method {old.name!r} already, with optimizer {name_of(old.optimizer)}: choose another name, "
            "or pass replace=True"
        )


def registered() -> dict[str, Method]:
    """Return the methods that are not the library's own, by name."""
    return {name: method for name, method in _METHODS.items() if method.files is not None}


def adopt(name: str, load: Callable[[], Method]) -> None:
    """Make a method of another process known here, unless its name is; it is loaded when somebody looks it up."""
    if name not in _METHODS:
        _SENT[name] = load


_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))


def _files(caller: Any, *parts: Any) -> dict[str, str]:
    """Return the SHA-256 of the files that define a method: where it is registered, and its parts."""
    found = [caller.co_filename]
    for part in parts:
        function = part.func if isinstance(part, functools.partial) else part
        defines = function if inspect.isclass(function) or inspect.isroutine(function) else type(function)
        try:
            found.append(inspect.getsourcefile(defines) or "")
        except (TypeError, OSError):  # built in, or typed into a session
            continue
    paths = dict.fromkeys(Path(file).resolve() for file in found if file and not file.startswith(_LIBRARIES))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}


class _Methods(Mapping[str, Method]):
    """All methods, read-only."""

    def __getitem__(self, name: str) -> Method:
        if name not in _METHODS and name in _SENT:
            method = _SENT[name]()  # which may import the file that registers it
            _METHODS.setdefault(name, method)
            _SENT.pop(name, None)
        return _METHODS[name]

    def __contains__(self, name: object) -> bool:
        return name in _METHODS or name in _SENT

    def __iter__(self) -> Iterator[str]:
        return iter([*_METHODS, *(name for name in _SENT if name not in _METHODS)])

    def __len__(self) -> int:
        return len(_METHODS.keys() | _SENT.keys())

    def __repr__(self) -> str:
        return f"METHODS({', '.join(self)})"


METHODS: Mapping[str, Method] = _Methods()
"""Every method by its name; `register` adds one."""
