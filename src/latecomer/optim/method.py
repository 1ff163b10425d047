"""A method: an optimizer, a policy, and the influence of a late gradient, under one name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .._util.checks import whole_number
from .._util.naming import stable_name
from .base import AsyncOptimizer
from .momentum import BETA
from .torch_optimizer import TorchOptimizer

__all__ = ["Method", "MethodLike", "keywords", "name_of"]


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
        >>> import latecomer as lc
        >>> round(lc.optim.METHODS["ordered-momentum"].influence(delay=10, beta=0.1, workers=7), 4)
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
            raise TypeError(f"Invalid optimizer: {name_of(self.optimizer)} takes no parameters (expected them first)")
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
                f"The method {self.name} declares no influence: either its weights do not follow from delays alone, as "
                "those of rate-free, or influence= has to be passed to latecomer.optim.register"
            )
        if options.get("beta") is not None:
            BETA.check("beta", options["beta"])
        known, takes_all = keywords(self.weight)
        given = options if takes_all else {name: value for name, value in options.items() if name in known}
        return float(self.weight(whole_number("delay", delay), **given))

    @property
    def influence_formula(self) -> str:
        """What `influence` computes, as a formula: the first line of the docstring of ``weight``.

        Examples:
            >>> import latecomer as lc
            >>> lc.optim.METHODS["ordered-momentum"].influence_formula
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
        policy = getattr(self.policy, "func", self.policy)  # of a functools.partial
        name = getattr(policy, "name", None) or getattr(policy, "__name__", None)
        return "async" if self.policy is None else str(name or type(self.policy).__name__)

    def __call__(self, params: Any, **options: Any) -> AsyncOptimizer:
        """Create the optimizer; options of the policy are checked and left out.

        Examples:
            >>> import torch
            >>> import latecomer as lc
            >>> opt = lc.optim.METHODS["catch-up"]([torch.nn.Parameter(torch.zeros(1))], lr=0.1, beta=0.05)
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
        own = {name: p for name, p in keywords(self.optimizer)[0].items() if name not in self.options}
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

    def unknown_options(self, options: Iterable[str]) -> list[str]:
        """Return those names that are no hyper-parameters of the method; none if its optimizer takes any."""
        if not self.takes_options or keywords(self.optimizer)[1]:
            return []
        return sorted(set(options) - self.arguments.keys() - self.options.keys())

    def check(self, options: Mapping[str, Any], grouped: bool = False) -> None:
        """Raise for hyper-parameters that the method does not have, and for missing ones.

        Args:
            options: The hyper-parameters.
            grouped: Whether param groups may bring those that the optimizer needs.

        Examples:
            >>> import latecomer as lc
            >>> lc.optim.METHODS["delay-filtered"].check({"lr": 0.1})
            Traceback (most recent call last):
            ValueError: delay-filtered needs a value for 'threshold'
        """
        if not self.takes_options:
            if options:
                raise ValueError(
                    f"{self.name} is a function of the parameters, which brings its own options: set "
                    f"{', '.join(sorted(options))} in the function, not beside it"
                )
            for name, argument in keywords(self.optimizer)[0].items():
                if argument.default is inspect.Parameter.empty:
                    raise ValueError(
                        f"{self.name} needs a value for {name!r}, and a function is called with the parameters alone: "
                        "bind it with functools.partial, or register the function under a name"
                    )
            return
        arguments = self.arguments
        for name in self.unknown_options(options):
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


def keywords(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
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


def name_of(function: Any) -> str:
    """Name a class or a function; an object that can be called has the name of its class."""
    return stable_name(
        function if isinstance(function, functools.partial) or hasattr(function, "__qualname__") else type(function)
    )
