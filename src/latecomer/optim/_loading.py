"""Whether a state dict that is loaded belongs to the optimizer that loads it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["check_shapes", "state_dict_of_groups"]


def state_dict_of_groups(
    state_dict: Any, groups: Sequence[Mapping[str, Any]], identity: Sequence[str]
) -> dict[str, Any]:
    """Return a state dict with today's names; raise if its param groups are not those of the optimizer.

    Args:
        state_dict: What a user wants to load.
        groups: The param groups of the optimizer.
        identity: Entries of a param group that must agree.
    """
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
        shown = f"keys {list(state_dict)[:5]}" if isinstance(state_dict, dict) else repr(state_dict)[:60]
        raise ValueError(f"Not the state_dict of an optimizer: {shown}")
    # In version 0.1 output_seed was called seed.
    renamed = [{"output_seed" if k == "seed" else k: v for k, v in g.items()} for g in state_dict["param_groups"]]
    for group, own in zip(renamed, groups, strict=False):
        theirs, ours = ({key: g.get(key) for key in identity} for g in (group, own))
        if theirs != ours:
            raise ValueError(f"This state_dict belongs to {theirs}, this optimizer is {ours}")
    return {**state_dict, "param_groups": renamed}


def check_shapes(state_dict: Mapping[str, Any], params: Sequence[Tensor], own_shapes: Collection[str]) -> None:
    """Raise if a state tensor has not the shape of its parameter; those named in ``own_shapes`` may differ."""
    ids = [i for group in state_dict["param_groups"] for i in group["params"]]
    for i, p in zip(ids, params, strict=False):
        for key, value in state_dict["state"].get(i, {}).items():
            if isinstance(value, Tensor) and value.shape != p.shape and key not in own_shapes:
                raise ValueError(
                    f"State {key!r} of parameter {i} has shape {tuple(value.shape)}, the parameter has "
                    f"{tuple(p.shape)}: this state_dict belongs to another model"
                )
