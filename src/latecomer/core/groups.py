"""How an optimizer sees a model: as one flat parameter, or as parameters with their shapes, in groups."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .._util.checks import AT_LEAST_ZERO, plain_numbers
from .._util.naming import stable_name
from ..optim import AsyncOptimizer, Method
from .flat import FlatModule

__all__ = ["Arrangement", "NamedGroup", "ParamGroups", "named_groups"]

ParamGroups = Callable[[nn.Module], Iterable[Mapping[str, Any]]] | Mapping[str, Mapping[str, Any]] | Sequence[Any]
"""What ``param_groups=`` takes: a function of the model that returns torch's groups, a mapping from name patterns to
options, or the groups of another run."""


@dataclass(frozen=True)
class NamedGroup:
    """A param group by the names of its parameters.

    Args:
        names: The parameters, as ``model.named_parameters()`` calls them.
        options: Hyper-parameters that differ from those of the run.
    """

    names: tuple[str, ...]
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        options = {name: stable_name(value) for name, value in sorted(self.options.items())}
        return f"{options}: {', '.join(self.names)}"

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values, for the record of a run."""
        return {"names": list(self.names), "options": dict(self.options)}


class Arrangement:
    """The parameters of a model as its optimizer gets them.

    Without ``param_groups`` the library's own rules get one flat parameter, which is faster; every other optimizer gets
    one parameter per parameter of the model, in its shape. All of them are views of the same flat memory.

    Args:
        flat: The model.
        method: The method.
        param_groups: A function of the model that returns torch's groups, a mapping from name patterns to options, or
            a sequence of `NamedGroup`; None for one group.
    """

    def __init__(self, flat: FlatModule, method: Method, param_groups: ParamGroups | None = None) -> None:
        self._flat, self._method = flat, method
        self.groups = None if param_groups is None else named_groups(flat, param_groups)
        for group in self.groups or ():
            if "lr" in group.options:  # torch's optimizers check their own lr, and none of a group
                AT_LEAST_ZERO.check("lr", group.options["lr"])
        self._order: list[int] | None = None
        if self.groups is not None:
            place = {name: i for i, name in enumerate(flat.names)}
            self._order = [place[name] for group in self.groups for name in group.names]
        elif not method.flat:
            self._order = list(range(len(flat.names)))

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a flat vector as the tensors of the optimizer, in its order once it is made; without a copy."""
        if self._order is None:
            return [vector]
        views = self._flat.cached_views(vector)
        return [views[i] for i in self._order]

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors of the optimizer as a flat vector; the reverse of `split`."""
        if self._order is None:
            return tensors[0]
        vector = self._flat.x.detach().clone()
        views = self._flat.views(vector)
        for i, tensor in zip(self._order, tensors, strict=True):
            views[i].copy_(tensor.detach())
        return vector

    def optimizer(self, options: Mapping[str, Any]) -> AsyncOptimizer:
        """Create the optimizer.

        Args:
            options: Hyper-parameters of the method, for whatever the groups do not have of their own.
        """
        if self._order is None:
            return self._method([self._flat.x], **options)
        params = [nn.Parameter(view) for view in self.split(self._flat.x)]
        if self.groups is None:
            optimizer = self._method(params, **options)
        else:
            given, start = [], 0
            for group in self.groups:
                end = start + len(group.names)
                given.append({"params": params[start:end], **group.options})
                start = end
            optimizer = self._method(given, **self._defaults(options))
            if self._method.takes_options:
                self._check_options(optimizer)
        # A function of the parameters may have sorted them into groups of its own, in another order.
        place = {id(p): i for p, i in zip(params, self._order, strict=True)}
        self._order = [place[id(p)] for group in optimizer.param_groups for p in group["params"]]
        return optimizer

    def _defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run's options; one that the method needs may be missing if every group has its own."""
        if not self._method.takes_options:
            return dict(options)
        first, *others = self.groups or ()
        everywhere = {name: value for name, value in first.options.items() if all(name in g.options for g in others)}
        return {**{k: v for k, v in everywhere.items() if k in self._method.arguments}, **options}

    def _check_options(self, optimizer: AsyncOptimizer) -> None:
        known = [
            name
            for name in self._method.arguments
            if name in optimizer.defaults and name not in ("output", "output_seed")
        ]
        for group in self.groups or ():
            for name in group.options:
                if name not in known:
                    raise ValueError(
                        f"A group of param_groups has the option {name!r}, and {self._method.name} has none of that "
                        f"name per group (it has {', '.join(known)})"
                    )

    def describe(self) -> str | None:
        """Return what identifies the groups; None without groups."""
        return None if self.groups is None else "; ".join(map(repr, self.groups))


def named_groups(flat: FlatModule, param_groups: ParamGroups) -> tuple[NamedGroup, ...]:
    """Return groups by name; every trainable parameter is in exactly one.

    Args:
        flat: The model.
        param_groups: A function of the model, a mapping from name patterns to options, or `NamedGroup`s.
    """
    if isinstance(param_groups, Mapping):
        groups = _by_pattern(flat, param_groups)
    elif callable(param_groups):
        groups = _by_function(flat, param_groups)
    elif isinstance(param_groups, Sequence) and all(isinstance(group, NamedGroup) for group in param_groups):
        groups = list(param_groups)
    else:
        raise TypeError(
            f"Invalid param_groups: {type(param_groups).__name__} (expected a function of the model that returns "
            "torch's groups, or a mapping from name patterns to options, such as {'*bias': {'weight_decay': 0.0}, "
            "'*': {}})"
        )
    return _complete(flat, [group for group in groups if group.names])


def _by_pattern(flat: FlatModule, patterns: Mapping[str, Mapping[str, Any]]) -> list[NamedGroup]:
    """Give each parameter to the first pattern that matches its name, or another name of it if it is tied."""
    aliases: dict[int, list[str]] = {}
    for name, p in flat.module.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(p), []).append(name)
    names = {name: aliases[id(p)] for name, p in zip(flat.names, flat.module_parameters, strict=True)}
    groups: list[NamedGroup] = []
    left = dict(names)
    for pattern, options in patterns.items():
        if not isinstance(pattern, str) or not isinstance(options, Mapping):
            raise TypeError(
                f"Invalid param_groups: {pattern!r}: {options!r} (expected a name pattern and a dict of options, such "
                "as '*bias': {'weight_decay': 0.0})"
            )
        matches = [name for name, own in names.items() if any(fnmatch.fnmatchcase(each, pattern) for each in own)]
        mine = tuple(name for name in matches if name in left)
        if not mine and pattern != "*":
            why = f"earlier patterns match {matches[0]!r} first" if matches else "no parameter has such a name"
            raise ValueError(f"The pattern {pattern!r} of param_groups gets no parameter: {why}")
        for name in mine:
            del left[name]
        groups.append(NamedGroup(mine, _checked_options(options)))
    return groups


def _by_function(flat: FlatModule, function: Callable[[nn.Module], Any]) -> list[NamedGroup]:
    """Call the user's function with the model, and name the parameters of the groups that it returns."""
    try:
        returned = list(function(flat.module))
    except TypeError as error:
        raise TypeError(f"The function param_groups raised TypeError: {error}") from error
    name_of = {id(p): name for name, p in zip(flat.names, flat.module_parameters, strict=True)}
    frozen = {id(p) for p in flat.module.parameters() if not p.requires_grad}
    groups = []
    for group in returned:
        if not isinstance(group, Mapping) or "params" not in group:
            raise TypeError(
                f"The function param_groups returned {type(group).__name__} for a group (expected a dict with 'params' "
                "and options, as torch's optimizers take them)"
            )
        params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        params = [p[1] if isinstance(p, tuple) and len(p) == 2 else p for p in params]
        for p in params:
            if id(p) not in name_of and id(p) not in frozen:
                raise ValueError(
                    f"The function param_groups returned {type(p).__name__} that is no parameter of the model it was "
                    "given: take the parameters of its argument"
                )
        names = tuple(name_of[id(p)] for p in params if id(p) in name_of)
        options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        groups.append(NamedGroup(names, _checked_options(options)))
    return groups


def _checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in options:
        if not isinstance(name, str) or name == "params":
            raise ValueError(f"Invalid option in param_groups: {name!r} (expected the name of a hyper-parameter)")
    return plain_numbers(dict(options))


def _complete(flat: FlatModule, groups: list[NamedGroup]) -> tuple[NamedGroup, ...]:
    """Raise unless every trainable parameter is in exactly one group."""
    seen: set[str] = set()
    for group in groups:
        for name in group.names:
            if name not in flat.names:
                raise ValueError(f"param_groups has the parameter {name!r}, and the model has none of that name")
            if name in seen:
                raise ValueError(f"The parameter {name!r} is in two groups of param_groups, or twice in one")
            seen.add(name)
    missing = [name for name in flat.names if name not in seen]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(
            f"The parameter {missing[0]!r}{others} is in no group of param_groups: every trainable parameter needs one "
            "(a last pattern '*' takes the rest; requires_grad=False leaves a parameter out of training)"
        )
    return tuple(groups)
