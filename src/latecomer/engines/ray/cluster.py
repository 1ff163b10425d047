"""Come to a Ray cluster: one that runs already, or one of this machine alone, closed to everybody else."""

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

from ..._util.extras import needs

__all__ = ["Cluster", "ending", "import_ray"]

_LOOPBACK = "127.0.0.1"
_ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# When the server is killed the system ends the raylet along with it, and workers follow, but the raylet's agents look
# for their head for another minute. This one notes who they are, waits for the end of its input, which is that of the
# server, and ends them. Not by their environment: an agent that gives itself a name writes over it.
_GUARD = """
agents=$(grep -lsx "PPid:.$1" /proc/[0-9]*/status)
read word && exit
for file in $agents; do
    folder=${file%/status}
    tr '\\0' ' ' < $folder/cmdline | grep -q 'ray::.*Agent\\|/ray/.*agent' && kill -9 ${folder#/proc/}
done
"""
_TOKEN = secrets.token_hex(32)
_PROBE = 5.0  # seconds in which whoever listens at an address must let us connect
_GONE = {  # what may happen to any process, whatever code it runs
    "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "LocalRayletDiedError", "ActorDiedError",
    "ActorUnavailableError",
}  # fmt: skip


def import_ray() -> Any:
    """Import Ray, or say how to get it."""
    with needs("ray", "ray", "The Ray engine"):
        import ray
    return ray


def ending(error: BaseException | None) -> str:
    """Say in a line how something that Ray ran has ended: by what its code raised, or killed with its process."""
    if error is None:
        return "it has left"
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):  # what its code raised, as Ray brought it here
        return f"could not go on: {type(cause).__name__}: {cause}"
    gone = _GONE & {each.__name__ for each in type(error).__mro__} and not getattr(error, "actor_init_failed", False)
    return f"killed: {_line(error)}" if gone else _line(error)


def _line(error: BaseException) -> str:
    """Return the line of an error that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "cause" in line.lower()), lines[0])[:500]


class Cluster:
    """A connection to Ray.

    If this process is connected already, that connection is used, and left alone in the end. Otherwise, without an
    address, Ray is started for this run: it listens on the loopback address only, and to those who know a token: the
    user's, where Ray finds one, else one that is made for this process.

    Args:
        address: ``"auto"``, or the address of a cluster; None to start one on this machine.
        cpus: How many CPUs a new one is said to have; Ray starts as many workers as they allow.
        gpus: How many GPUs a new one is said to have; 0 for as many as Ray finds.
        resources: What else a new one is said to have.
        runtime_env: What Ray shall bring to the workers: files, packages, environment variables.
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
        """Connect and return Ray's module; if that fails, nothing is left of it."""
        ray = import_ray()
        _check(ray, self.runtime_env)
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
        undo.enter_context(_for_us_alone(ray))
        after = undo.enter_context(contextlib.ExitStack())
        undo.callback(ray.shutdown)
        options["num_cpus"] = max(1, math.ceil(self.cpus))
        options["resources"] = {name: math.ceil(amount) for name, amount in self.resources.items()}
        if self.gpus:
            options["num_gpus"] = math.ceil(self.gpus)
        try:
            # "local": never one that happens to run here, to which anybody may belong.
            ray.init("local", include_dashboard=False, _node_ip_address=_LOOPBACK, **options)
        except Exception as error:
            raise ValueError(f"Ray does not start on this machine: {_line(error)}") from None
        after.enter_context(_guard(ray))

    def _join(self, ray: Any, undo: contextlib.ExitStack, options: dict[str, Any]) -> None:
        """Come to a cluster that runs."""
        where = _found(self.address or "")
        if not _listens(where):
            raise ValueError(
                f"There is no Ray cluster at {self.address!r}: start one with `ray start --head`, or leave the address "
                "out for one on this machine"
            )
        undo.callback(ray.shutdown)
        _forget_token(ray)
        try:
            ray.init(self.address, **options)
        except (ConnectionError, ray.exceptions.AuthenticationError):
            raise ValueError(
                f"What listens at {where} is no Ray cluster, or refused the token: set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as on the cluster"
            ) from None
        except Exception as error:
            raise ValueError(f"Ray cannot connect to {self.address!r}: {_line(error)}") from None

    @property
    def host(self) -> str:
        """The address under which other nodes reach this process."""
        return str(import_ray().util.get_node_ip_address())

    def close(self) -> None:
        """Disconnect, and end what was started."""
        self._undo.close()


def _check(ray: Any, runtime_env: Mapping[str, Any] | None) -> None:
    """Refuse what Ray would only warn about."""
    known = {name for name in ray.runtime_env.RuntimeEnv.known_fields if not name.startswith("_")}
    for name in runtime_env or {}:
        if name not in known and not str(name).startswith("_"):
            raise ValueError(f"Invalid runtime_env value: {name!r} (expected {', '.join(sorted(known))})")


def _found(address: str) -> str:
    """Return where a cluster is, as Ray finds it; nothing if it finds none."""
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
    """Whether anybody listens there: Ray itself would try for minutes."""
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _has_token() -> bool:
    """Whether the user has a token, where Ray looks for one."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return True
    with contextlib.suppress(OSError, RuntimeError):  # there may be no home
        return (Path.home() / ".ray" / "auth_token").stat().st_size > 0
    return False


def _forget_token(ray: Any) -> None:
    """Have Ray look again which token there is, and whether to use it; the last cluster may have had another one."""
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
    ray._raylet.Config.initialize("")


@contextlib.contextmanager
def _guard(ray: Any) -> Iterator[None]:
    """Have somebody clear up if this process is killed."""
    raylet = ray._private.worker._global_node.all_processes["raylet"][0].process.pid
    command = ["sh", "-c", _GUARD, "latecomer guard", str(raylet)]
    nobody = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nobody, stderr=nobody, start_new_session=True
    ) as guard:
        try:
            yield
        finally:
            guard.communicate(b"done\n")


@contextlib.contextmanager
def _for_us_alone(ray: Any) -> Iterator[None]:
    """Have Ray listen on loopback and ask for a token."""
    from ray._private import ray_constants

    before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", _ONE_MACHINE)}
    cluster = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False  # else Ray turns 127.0.0.1 into an address that others reach
    os.environ[_ONE_MACHINE] = "0"  # the same for the processes it starts
    os.environ.pop("RAY_AUTH_MODE", None)  # unset, Ray turns it on for a cluster of one machine, in this process too
    if not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = _TOKEN
    _forget_token(ray)
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = cluster
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _forget_token(ray)
