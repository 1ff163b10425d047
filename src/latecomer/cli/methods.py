"""``latecomer methods``: the table of methods, and one of them with its rule and hyper-parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import Parameter, getdoc
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ._options import Imports, import_all
from ._output import Json, print_text, show

if TYPE_CHECKING:
    from rich.console import Console

    from ..optim import Method

__all__ = ["List", "Show"]


@dataclass(frozen=True)
class List:
    """List the methods: optimizer, source, and the influence a late gradient keeps.

    Example: latecomer methods
    """

    imports: Imports = ()
    """A Python file that registers methods of your own; may be repeated."""
    json: Json = False
    """Print the table as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Print the table."""
        from rich import box
        from rich.table import Table

        from ..optim import METHODS

        import_all(self.imports)
        heads = ("name", "optimizer", "source", "influence of a late gradient")
        table = Table(box=box.SIMPLE_HEAD)
        for head in heads:
            table.add_column(head, no_wrap=head != heads[-1])
        if not console.is_terminal:
            console.width = 160
        rows = [_row(method) for method in METHODS.values()]
        for row in rows:
            table.add_row(row["name"], row["optimizer"], row["source"], row["influence"])
        show(console, table, {"rows": rows})
        print_text(console, "latecomer methods show NAME prints the rule and the hyper-parameters of one of them")


@dataclass(frozen=True)
class Show:
    """Show a method: its rule, its source and its hyper-parameters with their defaults.

    Example: latecomer methods show ordered-momentum
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the method."""
    imports: Imports = ()
    """A Python file that registers methods of your own; may be repeated."""
    json: Json = False
    """Print it as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Look it up and print it."""
        from ..optim import known_method

        import_all(self.imports)
        method = known_method(self.name)
        home = getattr(getattr(method.optimizer, "func", method.optimizer), "__module__", "")
        about = {**_row(method), **_documented(method)}
        about["module"] = "latecomer.optim" if method.files is None else home
        lines = [
            method.name,
            "",
            about["about"],
            "",
            f"source      {method.source}",
            f"optimizer   {about['module']}.{about['optimizer']}"
            + "".join(f", {name}={value!r}" for name, value in method.options.items()),
            f"influence   {method.influence_formula}" + (" (of a late gradient)" if method.weight else ""),
            f"points      {method.points} per sample",
            f"policy      {method.policy_name}",
            "",
            "hyper-parameters, for --set name=value:",
        ]
        for each in about["hyper_parameters"]:
            value = "required" if each["required"] else repr(each["default"])
            lines.append(f"  {each['name']:<14}{value:<10}{each['about']}".rstrip())
        show(console, "\n".join(lines), about)


def _row(method: Method) -> dict[str, Any]:
    made_by = getattr(method.optimizer, "func", method.optimizer)  # of a functools.partial
    return {
        "name": method.name,
        "optimizer": getattr(made_by, "__name__", type(made_by).__name__),
        "options": dict(method.options),
        "source": method.source,
        "influence": method.influence_formula,
        "points": method.points,
        "policy": method.policy_name,
    }


def _documented(method: Method) -> dict[str, Any]:
    """Return what the optimizer's docstring says: what it does, its rule, and each hyper-parameter."""
    text = getdoc(method.optimizer) or ""
    before = text.split("\nArgs:\n")[0].rstrip()
    # The rule is the first paragraph that begins with code.
    rule = next((part for part in before.split("\n\n") if part.startswith("``")), "")
    policy = getattr(method.policy, "func", method.policy)  # of a functools.partial
    of_policy = getdoc(policy) or ""
    decides = "Policy: " + of_policy.split("\nArgs:\n")[0].rstrip()
    documented = _arguments(of_policy) | _arguments(text)
    parameters = [
        {
            "name": name,
            "required": parameter.default is Parameter.empty,
            "default": None if parameter.default is Parameter.empty else parameter.default,
            "about": documented.get(name, ""),
        }
        for name, parameter in method.arguments.items()
    ]
    return {
        "rule": rule.replace("``", ""),
        "about": (before if method.policy is None else f"{before}\n\n{decides}").replace("``", "").replace("`", ""),
        "hyper_parameters": parameters,
    }


def _arguments(text: str) -> dict[str, str]:
    """Read the section Args of a docstring: what it says of each name."""
    section = text.partition("\nArgs:\n")[2].split("\n\n")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, flags=re.MULTILINE)
    return {name: " ".join(words.split()).replace("``", "").replace("`", "") for name, words in found}
