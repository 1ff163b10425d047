"""The methods by name, and how to add one: an optimizer, a policy, and the influence of a late gradient."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._util.checks import whole_number
from .._util.naming import stable_name
from .._util.suggest import unknown
from .adamw import CatchUpAdamW
from .base import AsyncOptimizer
from .clipped import BalancedAdamW, BalancedCatchUp, BalancedMomentum, ClippedCatchUp
from .momentum import BETA, Momentum, OrderedMomentum
from .mu2 import Mu2SGD, OrderedMu2SGD
from .mu2_anytime import OrderedMu2Anytime
from .sgd import AsyncSGD, DelayAdaptiveSGD, DelayFilteredSGD
from .torch_optimizer import TorchOptimizer

__all__ = ["METHODS", "Method", "MethodLike", "adopt", "as_method", "known_method", "register", "registered"]


def _full(delay: int, **_: Any) -> float:
    """1 at any delay."""
    return 1.0


def _clipped(delay: int, **_: Any) -> float:
    """1 at any delay, times the clipping factor."""
    return 1.0


def _shrunk(delay: int, *, workers: int, **_: Any) -> float:
    """min(1, workers / delay)."""
    return min(1.0, workers / delay) if delay else 1.0


def _filtered(delay: int, *, threshold: float, **_: Any) -> float:
    """1 if delay <= threshold, else 0."""
    return float(delay <= threshold)


def _ordered(delay: int, *, beta: float, **_: Any) -> float:
    """(1 - beta)^delay."""
    return float((1.0 - beta) ** delay)


@dataclass(frozen=True)
class Method:
    """An optimizer and a policy under one name: what ``method=`` means.

    Args:
        name: The name, and the key in `METHODS`.
        optimizer: The class that implements the rule, or a function that makes the optimizer: the parameters first,
            hyper-parameters by keyword. An optimizer of `torch.optim` is applied as gradients come; see
            `TorchOptimizer`.
        weight: The formula of `influence`; None if it is not declared.
        source: Where the rule is defined.
        options: Arguments of the optimizer that make it this method.
        policy: What the server does with an arrival: None to apply every one, an instance of
            `latecomer.policy.Policy`, or its class or a function that makes it. The latter get the number of
            ``workers`` if they have an argument of that name; their other arguments are hyper-parameters of the method.
        files: SHA-256 of the files that define it, by path, the one that registers it first; None for the library's
            own methods.
        takes_options: False for a function that has all hyper-parameters in it.
        flat: Whether the optimizer may get all parameters as one flat tensor, which is faster: the rule treats all
            elements alike. False gives it each parameter in its shape.

    Examples:
        >>> round(METHODS["ordered-momentum"].influence(delay=10, beta=0.1, workers=7), 4)
        0.3487
    """

    name: str
    optimizer: Callable[..., Optimizer]
    weight: Callable[..., float] | None = None
    source: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    policy: Any = None
    files: Mapping[str, str] | None = None
    takes_options: bool = True
    flat: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"Invalid name of a method: {self.name!r} (expected a word, such as 'my-rule')")
        if isinstance(self.optimizer, Optimizer):
            raise TypeError(
                f"Invalid optimizer: one of class {type(self.optimizer).__name__} that exists already. Every run makes "
                "its own: pass the class, or a function of the parameters that returns the optimizer"
            )
        is_class = isinstance(self.optimizer, type)
        if not _has_signature(self.optimizer) or (is_class and not issubclass(self.optimizer, Optimizer)):  # type: ignore[arg-type]
            raise TypeError(
                f"Invalid optimizer: {self.optimizer!r} (expected a class of optimizers, or a function of the "
                "parameters that returns an optimizer)"
            )
        if not _takes_parameters(self.optimizer):
            raise TypeError(f"Invalid optimizer: {_name_of(self.optimizer)} takes no parameters (expected them first)")
        if not isinstance(self.source, str):
            raise TypeError(f"Invalid source: {self.source!r} (expected text: where the rule is defined)")
        made_later = _has_signature(self.policy) and not isinstance(self.policy, type)
        if not (self.policy is None or made_later or hasattr(self.policy, "receive")):
            raise TypeError(
                f"Invalid policy: {self.policy!r} (expected None, or an instance or a class of latecomer.policy.Policy)"
            )
        if self.weight is not None and not _has_signature(self.weight):
            raise TypeError(f"Invalid influence: {self.weight!r} (expected a function of the delay, or None)")
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it by its fields; what is read-only here is copied, because it cannot be pickled itself."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return functools.partial(Method, **values | {"options": dict(self.options)}), ()

    def influence(self, delay: int, **options: Any) -> float:
        """Return the declared influence of a gradient of this delay: its total weight on the parameters.

        In units of lr, relative to a gradient without delay. For a method that clips it is the influence of a gradient
        that is not clipped: multiply by the optimizer's ``last_scale`` at each arrival for the actual one. For
        ``catch-up-adamw`` and ``balanced-adamw`` it is the weight of the gradient before the division by the
        denominator.

        Args:
            delay: The delay.
            **options: The hyper-parameters that the rule depends on (``beta``, ``workers``, ``threshold``); others are
                ignored.
        """
        if self.weight is None:
            raise ValueError(
                f"The method {self.name} declares no influence: pass influence= to latecomer.optim.register"
            )
        if options.get("beta") is not None:
            BETA.check("beta", options["beta"])
        known, takes_all = _keywords(self.weight)
        given = options if takes_all else {name: value for name, value in options.items() if name in known}
        return float(self.weight(whole_number("delay", delay), **given))

    @property
    def influence_formula(self) -> str:
        """What `influence` computes, as a formula: the first line of the docstring of ``weight``.

        Examples:
            >>> METHODS["ordered-momentum"].influence_formula
            '(1 - beta)^delay'
        """
        if self.weight is None:
            return "not declared"
        first = (inspect.getdoc(self.weight) or "").split("\n")[0].rstrip(".")
        return first or "declared, without a formula"

    @property
    def points(self) -> int:
        """Number of points at which a worker evaluates its sample; 1 where only a made optimizer could tell."""
        return int(getattr(self.optimizer, "points", 1))

    @property
    def policy_name(self) -> str:
        """Name of the policy."""
        name = getattr(self.policy, "name", None) or getattr(self.policy, "__name__", None)
        return "async" if self.policy is None else str(name or type(self.policy).__name__)

    def __call__(self, params: Any, **options: Any) -> AsyncOptimizer:
        """Create the optimizer; options of the policy are checked and left out.

        Examples:
            >>> import torch
            >>> opt = METHODS["catch-up"]([torch.nn.Parameter(torch.zeros(1))], lr=0.1, beta=0.05)
            >>> type(opt).__name__, opt.param_groups[0]["catch_up"]
            ('OrderedMomentum', True)
        """
        self.check(options)
        given = list(params)
        of_policy = self._policy_arguments
        own = {name: value for name, value in options.items() if name not in of_policy}
        made = self.optimizer(given, **{**self.options, **own})
        if not isinstance(made, Optimizer):
            raise TypeError(
                f"{self.name} returned {type(made).__name__}, not an optimizer (expected an AsyncOptimizer or a "
                "torch.optim.Optimizer)"
            )
        if not hasattr(made, "param_groups"):
            raise TypeError(f"The optimizer of {self.name} has no param groups: call super().__init__ in its __init__")
        held = {id(p) for group in made.param_groups for p in group["params"]}
        groups = [each["params"] if isinstance(each, dict) else [each] for each in given]
        params = [p for group in groups for p in ([group] if isinstance(group, Tensor) else group)]
        if all(isinstance(p, Tensor) for p in params) and held != {id(p) for p in params}:
            raise ValueError(f"The optimizer of {self.name} must have exactly the parameters that it is given")
        return made if isinstance(made, AsyncOptimizer) else TorchOptimizer(made)

    @property
    def arguments(self) -> Mapping[str, inspect.Parameter]:
        """Its hyper-parameters, by name: those of the optimizer, then those of the policy."""
        if not self.takes_options:
            return {}
        own = {name: p for name, p in _keywords(self.optimizer)[0].items() if name not in self.options}
        return own | dict(self._policy_arguments)

    @property
    def _policy_arguments(self) -> Mapping[str, inspect.Parameter]:
        if not callable(self.policy):
            return {}
        arguments = inspect.signature(self.policy).parameters.items()
        return {
            name: p for name, p in arguments if name != "workers" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }

    def policy_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return those hyper-parameters that are the policy's."""
        return {name: options[name] for name in self._policy_arguments if name in options}

    def check(self, options: Mapping[str, Any], grouped: bool = False) -> None:
        """Raise for hyper-parameters that the method does not have, and for missing ones.

        Args:
            options: The hyper-parameters.
            grouped: Whether param groups may bring those that the optimizer needs.

        Examples:
            >>> METHODS["delay-filtered"].check({"lr": 0.1})
            Traceback (most recent call last):
            ValueError: delay-filtered needs a value for 'threshold'
        """
        known, takes_all = _keywords(self.optimizer)
        if not self.takes_options:
            if options:
                raise ValueError(
                    f"{self.name} is a function of the parameters, which brings its own options: set "
                    f"{', '.join(sorted(options))} in the function, not beside it"
                )
            for name, argument in known.items():
                if argument.default is inspect.Parameter.empty:
                    raise ValueError(
                        f"{self.name} needs a value for {name!r}, and a function is called with the parameters alone: "
                        "bind it with functools.partial, or register the function under a name"
                    )
            return
        arguments = self.arguments
        for name in sorted(options):
            if name not in arguments and name not in self.options and not takes_all:
                raise ValueError(f"{self.name} has no option {name!r} (it has {', '.join(arguments)})")
        for name, argument in (self._policy_arguments if grouped else arguments).items():
            if argument.default is inspect.Parameter.empty and name not in options:
                raise ValueError(f"{self.name} needs a value for {name!r}")


MethodLike = str | Method | type[Optimizer] | Callable[[Any], Optimizer]
"""What ``method=`` takes: a name, an optimizer class, a function of the parameters, or a `Method`."""


def _has_signature(function: Any) -> bool:
    """Return whether this can be called with arguments whose names are known; of some built-in functions none are."""
    try:
        return callable(function) and bool(inspect.signature(function))
    except (TypeError, ValueError):
        return False


def _keywords(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the arguments after the first that can be passed by name, and whether there is a ``**options``."""
    parameters = list(inspect.signature(function).parameters.values())
    named = {p.name: p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _takes_parameters(function: Callable[..., Any]) -> bool:
    """Whether something can be called with the parameters of a model."""
    try:
        inspect.signature(function).bind(())
    except TypeError as error:
        return "too many" not in str(error)  # other arguments may be missing: they are hyper-parameters
    except ValueError:  # built in, without a signature
        return True
    return True


def known_method(name: object) -> Method:
    """Return the method with this name.

    Examples:
        >>> known_method("catch-up").source == METHODS["catch-up"].source
        True
    """
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(unknown("method", name, METHODS))
    return METHODS[name]


def as_method(method: MethodLike) -> Method:
    """Return what ``method=`` means: everything that takes a method asks here.

    A class takes its hyper-parameters beside it, as a name does. A function of the parameters has them in it.

    Examples:
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
            f"Invalid method: {method!r} (expected a name, one of {', '.join(METHODS)}; a class of optimizers; a "
            "function of the parameters; or a latecomer.optim.Method)"
        )
    if isinstance(method, type):
        own = METHODS.get(getattr(method, "method", ""))
        return own if own is not None and own.optimizer is method else Method(_name_of(method), method)
    return Method(_name_of(method), method, takes_options=False)


def _name_of(function: Any) -> str:
    """Name a class or a function; an object that can be called has the name of its class."""
    return stable_name(
        function if isinstance(function, functools.partial) or hasattr(function, "__qualname__") else type(function)
    )


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
    parts = (_name_of(each).rpartition(".")[2] for each in (optimizer, policy) if each is not None)
    origin = (place, *parts)
    if name in _METHODS:
        _check_again(_METHODS[name], origin, in_file, replace)
    twice = sorted(method._policy_arguments.keys() & _keywords(optimizer)[0].keys())
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
            f"There is a method {old.name!r} already, with optimizer {_name_of(old.optimizer)}: choose another name, "
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


_METHODS: dict[str, Method] = {
    method.name: replace(method, flat=True)
    for method in (
        Method("async-sgd", AsyncSGD, _full, "Eq. (4)"),
        Method("delay-adaptive", DelayAdaptiveSGD, _shrunk, "Eq. (3)"),
        Method("delay-filtered", DelayFilteredSGD, _filtered, "Section 6"),
        Method("momentum", Momentum, _full, "Eq. (6)"),
        Method("mu2", Mu2SGD, _full, "Eq. (14)"),
        Method("ordered-momentum", OrderedMomentum, _ordered, "Algorithm 1"),
        Method("catch-up", OrderedMomentum, _full, "ours, on Algorithm 1", {"catch_up": True}),
        Method("ordered-mu2", OrderedMu2SGD, _ordered, "Eq. (12), (14)"),
        Method("ordered-mu2-anytime", OrderedMu2Anytime, _full, "Algorithm 2"),
        Method("catch-up-adamw", CatchUpAdamW, _full, "ours, on AdamW"),
        Method("clipped-catch-up", ClippedCatchUp, _clipped, "ours"),
        Method("balanced-catch-up", BalancedCatchUp, _clipped, "ours"),
        Method("balanced-momentum", BalancedMomentum, _clipped, "ours"),
        Method("balanced-adamw", BalancedAdamW, _clipped, "ours, on AdamW"),
    )
}
_ORIGINS: dict[str, tuple[Any, ...]] = {}  # who registered a name: module, optimizer and policy
_SENT: dict[str, Callable[[], Method]] = {}  # registered in the process that started this one, and not loaded yet


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
