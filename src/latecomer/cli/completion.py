"""``latecomer completion``: the script that completes commands and options in a shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import tyro

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Completion"]


@dataclass(frozen=True)
class Completion:
    """Print a script that completes commands and options in a shell.

    Example: latecomer completion bash > ~/.local/share/bash-completion/completions/latecomer
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """Which shell."""

    def run(self, console: Console) -> None:
        """Have tyro write it."""
        from .main import whole_tree

        try:
            tyro.cli(
                whole_tree(),
                prog="latecomer",
                args=["--tyro-write-completion", self.shell, "-"],
                config=(tyro.conf.OmitSubcommandPrefixes,),
            )
        except SystemExit as stop:  # tyro ends the process when it has written
            if stop.code:
                raise
