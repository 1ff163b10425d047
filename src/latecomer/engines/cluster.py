"""Come to a Ray cluster: one that runs already, or one of this machine alone, closed to everybody else."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Cluster", "import_ray"]

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
_TOKEN = secrets.token_hex(32)  # one a process, because Ray reads it once a process


def import_ray() -> Any:
    """Import Ray, or say how to get it.

    Examples:
        >>> import_ray().__name__
        'ray'
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("The Ray engine needs Ray: pip install 'latecomer[ray]'") from error
    return ray


class Cluster:
    """A connection to Ray.

    If this process is connected already, that connection is used, and left alone in the end. Otherwise, without an
    address, Ray is started for this run: it listens on the loopback address only, and to those who know a token that is
    made for this process.

    Args:
        address: ``"auto"``, or the address of a cluster; None to start one on this machine.
        cpus: How many CPUs a new one is said to have; Ray starts as many workers as they allow.
        runtime_env: What Ray shall bring to the workers: files, packages, environment variables.

    Examples:
        >>> Cluster("auto").address
        'auto'
    """

    def __init__(
        self, address: str | None = None, *, cpus: float = 2, runtime_env: Mapping[str, Any] | None = None
    ) -> None:
        self.address, self.cpus, self.runtime_env = address, cpus, runtime_env
        self._ours = False
        self._undo = contextlib.ExitStack()

    def connect(self) -> Any:
        """Connect and return Ray's module."""
        ray = import_ray()
        if ray.is_initialized():
            return ray
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.runtime_env is not None:
            options["runtime_env"] = dict(self.runtime_env)
        if self.address is not None:
            try:
                ray.init(self.address, **options)
            except ConnectionError as error:
                raise ValueError(
                    f"There is no Ray cluster at {self.address!r} ({error}): start one with `ray start --head`, or "
                    "leave the address out for one on this machine"
                ) from None
        else:
            self._undo.enter_context(_for_us_alone(ray))
            cpus = max(1, -int(-self.cpus // 1))
            # "local": never one that happens to run here, to which anybody may belong.
            ray.init("local", num_cpus=cpus, include_dashboard=False, _node_ip_address=_LOOPBACK, **options)
            self._undo.enter_context(_guard(ray))
        self._ours = True
        return ray

    @property
    def host(self) -> str:
        """The address under which other nodes reach this process."""
        return str(import_ray().util.get_node_ip_address())

    def close(self) -> None:
        """Disconnect, and end what was started."""
        if self._ours:
            self._ours = False
            import_ray().shutdown()
            self._undo.close()


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
    if not (os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = _TOKEN
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = cluster
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
