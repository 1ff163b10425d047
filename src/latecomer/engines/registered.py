"""Methods that a user has registered, on their way to worker processes."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import cloudpickle

from .._util.wording import in_short
from ..optim.methods import Method, adopt, registered

__all__ = ["RegisteredMethods"]


class RegisteredMethods:
    """What `latecomer.optim.register` has added: pickled here, known by name in the process that unpickles it.

    Nothing is sent if nothing was registered. All of it is, not only the run's own method: a worker never looks that
    one up, and the user's code may look up any name. Each method is pickled on its own and loaded when it is looked up.
    So one that cannot be sent, or whose module another machine does not have, fails there and nowhere else.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        sent = {name: _pickled(method) for name, method in registered().items()}
        return (_adopted, (sent,)) if sent else (RegisteredMethods, ())


def _pickled(method: Method) -> bytes | str:
    """Return a method, pickled, or why it cannot be."""
    try:
        return bytes(cloudpickle.dumps(method))
    except Exception as error:  # whatever the parts of a method raise
        return in_short(error)


def _adopted(sent: dict[str, bytes | str]) -> RegisteredMethods:
    """Make methods known in this process, except those that it knows already."""
    for name, content in sent.items():
        adopt(name, partial(_loaded, name, content))
    return RegisteredMethods()


def _loaded(name: str, content: bytes | str) -> Method:
    reason = content
    if isinstance(content, bytes):
        try:
            return pickle.loads(content)  # type: ignore[no-any-return]  # from the process that started this one
        except Exception as error:
            reason = in_short(error)
    raise ValueError(
        f"The method {name!r} could not be sent to this process ({reason!s}): define it in a module that this process "
        "can import, without objects that cannot be pickled"
    )
