"""Connects to a Ray cluster, or starts a private one on this machine."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ..._util.extras import needs
from ...core.devices import AUTO, resolved

__all__ = ["Cluster", "assigned_device", "ending", "import_ray"]

_LOOPBACK = "127.0.0.1"
_ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# If the server is killed, the system ends the raylet with it, and the workers follow; but the raylet's agents keep
# looking for their head node for another minute. This script lists them, waits for the end of its input, which is the
# end of the server, and kills them. It does not use their environment: an agent that sets its title overwrites it.
_GUARD = """
agents=$(grep -lsx "PPid:.$1" /proc/[0-9]*/status)
read word && exit
for file in $agents; do
    folder=${file%/status}
    tr '\\0' ' ' < $folder/cmdline | grep -q 'ray::.*Agent\\|/ray/.*agent' && kill -9 ${folder#/proc/}
done
"""
_TOKEN = secrets.token_hex(32)
_PROBE_SECONDS = 5.0  # time to connect to an address
_PROCESS_LOST = {  # Ray errors that can hit any process, whatever code it runs
    "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "LocalRayletDiedError", "ActorDiedError",
    "ActorUnavailableError",
}  # fmt: skip


def import_ray() -> Any:
    """Import Ray, or raise with the line to install it."""
    with needs("ray", "ray", "The Ray engine"):
        import ray
    return ray


def ending(error: BaseException | None) -> str:
    """Return in one line how a Ray task ended: with an exception of its code, or killed with its process."""
    if error is None:
        return "it has ended"
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):  # the exception of its code
        return f"raised: {type(cause).__name__}: {cause}"
    lost = _PROCESS_LOST & {each.__name__ for each in type(error).__mro__} and not getattr(
        error, "actor_init_failed", False
    )
    return f"killed: {_line(error)}" if lost else _line(error)


def _line(error: BaseException) -> str:
    """Return the most informative line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "cause" in line.lower()), lines[0])[:500]


class Cluster:
    """A connection to Ray.

    An existing connection of this process is used, and stays open. Otherwise, without an address, Ray is started for
    this run: it listens on the loopback address only, and requires a token. The token is the user's if Ray finds one,
    else a new one for this process.

    Args:
        address: ``"auto"``, or the address of a cluster; None to start one on this machine.
        cpus: Number of CPUs to declare for a new one; it limits the number of workers.
        gpus: Number of GPUs to declare for a new one; 0 lets Ray detect them.
        resources: Other resources to declare for a new one.
        runtime_env: Ray's runtime environment of the workers: files, packages, environment variables.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: float = 2,
        gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        self.address, self.cpus, self.gpus, self.resources = address, cpus, gpus, dict(resources or {})
        self.runtime_env = runtime_env
        self.new = False
        self._undo = contextlib.ExitStack()

    def connect(self) -> Any:
        """Connect and return Ray's module; if that fails, everything is undone."""
        ray = import_ray()
        _check_runtime_env(ray, self.runtime_env)
        if ray.is_initialized():
            return ray
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.runtime_env is not None:
            options["runtime_env"] = dict(self.runtime_env)
        with contextlib.ExitStack() as undo:
            if self.address is None:
                self._start(ray, undo, options)
                self.new = True
            else:
                self._join(ray, undo, options)
            self._undo = undo.pop_all()
        return ray

    def _start(self, ray: Any, undo: contextlib.ExitStack, options: dict[str, Any]) -> None:
        """Start Ray on this machine."""
        undo.enter_context(_private_cluster(ray))
        after = undo.enter_context(contextlib.ExitStack())
        undo.callback(ray.shutdown)
        options["num_cpus"] = max(1, math.ceil(self.cpus))
        options["resources"] = {name: math.ceil(amount) for name, amount in self.resources.items()}
        if self.gpus:
            options["num_gpus"] = math.ceil(self.gpus)
        try:
            # "local": never a cluster that already runs here, which may belong to anybody.
            ray.init("local", include_dashboard=False, _node_ip_address=_LOOPBACK, **options)
        except Exception as error:
            raise ValueError(f"Ray did not start on this machine: {_line(error)}") from None
        after.enter_context(_guard(ray))

    def _join(self, ray: Any, undo: contextlib.ExitStack, options: dict[str, Any]) -> None:
        """Connect to a running cluster."""
        where = _found(self.address or "")
        if not _listens(where):
            raise ValueError(
                f"There is no Ray cluster at {self.address!r}: start one with `ray start --head`, or leave out the "
                "address to start one on this machine"
            )
        undo.callback(ray.shutdown)
        _reload_token(ray)
        try:
            ray.init(self.address, **options)
        except (ConnectionError, ray.exceptions.AuthenticationError):
            raise ValueError(
                f"{where} is not a Ray cluster, or refused the token: set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as on the cluster"
            ) from None
        except Exception as error:
            raise ValueError(f"Ray cannot connect to {self.address!r}: {_line(error)}") from None

    @property
    def host(self) -> str:
        """The address of this process for other nodes."""
        return str(import_ray().util.get_node_ip_address())

    def close(self) -> None:
        """Disconnect, and stop Ray if it was started here."""
        self._undo.close()


def _check_runtime_env(ray: Any, runtime_env: Mapping[str, Any] | None) -> None:
    """Raise on an unknown field, where Ray would only warn."""
    known = {name for name in ray.runtime_env.RuntimeEnv.known_fields if not name.startswith("_")}
    for name in runtime_env or {}:
        if name not in known and not str(name).startswith("_"):
            raise ValueError(f"Invalid runtime_env value: {name!r} (expected {', '.join(sorted(known))})")


def _found(address: str) -> str:
    """Return the address of a cluster as Ray resolves it; empty if there is none."""
    from ray._private import services

    if address.startswith("ray://"):
        return address.removeprefix("ray://")
    try:
        return services.canonicalize_bootstrap_address(address) or ""
    except ConnectionError:
        return ""
    except (ValueError, OSError):
        raise ValueError(f"Invalid address value: {address!r} (expected 'auto' or host:port)") from None


def _listens(where: str) -> bool:
    """Whether this address accepts connections; Ray itself would retry for minutes."""
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def assigned_device(device: str) -> torch.device:
    """Return the device of a worker in this Ray process; Ray shows it no other accelerator than its own.

    A worker that only evaluates has none, and uses the CPU.
    """
    if device == AUTO or device.startswith("cuda"):
        import ray

        if not any(ray.get_runtime_context().get_accelerator_ids().values()):
            return torch.device("cpu")
    return resolved(device, seat=0)


def _has_token() -> bool:
    """Whether Ray finds a token of the user."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return True
    with contextlib.suppress(OSError, RuntimeError):  # there may be no home folder
        return (Path.home() / ".ray" / "auth_token").stat().st_size > 0
    return False


def _reload_token(ray: Any) -> None:
    """Make Ray read its token settings again; the last cluster may have had another token."""
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
    ray._raylet.Config.initialize("")


@contextlib.contextmanager
def _guard(ray: Any) -> Iterator[None]:
    """Run a script that ends Ray's agents if this process is killed."""
    raylet = ray._private.worker._global_node.all_processes["raylet"][0].process.pid
    command = ["sh", "-c", _GUARD, "latecomer guard", str(raylet)]
    devnull = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=devnull, stderr=devnull, start_new_session=True
    ) as guard:
        try:
            yield
        finally:
            guard.communicate(b"done\n")


@contextlib.contextmanager
def _private_cluster(ray: Any) -> Iterator[None]:
    """Make Ray listen on loopback only and require a token."""
    from ray._private import ray_constants

    before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", _ONE_MACHINE)}
    cluster = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False  # else Ray replaces 127.0.0.1 by a public address
    os.environ[_ONE_MACHINE] = "0"  # the same for the processes it starts
    os.environ.pop("RAY_AUTH_MODE", None)  # if unset, Ray requires a token on a single machine
    if not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = _TOKEN
    _reload_token(ray)
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = cluster
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _reload_token(ray)
