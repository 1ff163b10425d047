"""Runs on disk: one folder per run, named by a hash of its spec, written atomically.

``run.json`` has the spec and the outcome, ``history.parquet`` the evaluations: plain files for pandas and polars. The
duration of a run is in ``timing.json``, so that the other files have the same bytes whenever the run was made.
``run.json`` has the SHA-256 of itself and of the history; runs that were stored without are read unverified.
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from .._util.files import check_no_file, sha256, write_flushed
from .._util.wording import in_short
from .spec import RunSpec

__all__ = ["Store"]

_PART = ".part-"
_NOT_KEPT = ("arrival", "train_loss", "delay")  # the trace has them, and a store of any version has the same columns
_DAY = 86_400.0
_ENTRIES = {"key", "spec", "outcome", "final"}


class Store:
    """A folder of runs.

    Args:
        folder: The folder; created with the first run.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder))
        ...     spec = RunSpec("quadratic", "momentum", "uniform", steps=10)
        ...     store.put(spec, pl.DataFrame({"update": [0, 10], "loss": [1.0, 0.5]}), {"diverged_at": None}, 0.1)
        ...     spec.key in store, store.table()["loss"].to_list()
        (True, [0.5])
    """

    def __init__(self, folder: Path) -> None:
        check_no_file("store", folder)
        self.folder = folder

    def _folder_of(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def __contains__(self, key: str) -> bool:
        return (self._folder_of(key) / "run.json").is_file()

    def put(self, spec: RunSpec, history: pl.DataFrame, outcome: dict[str, Any], seconds: float) -> None:
        """Store a run; if another process has stored the same one meanwhile, that one stays."""
        target = self._folder_of(spec.key)
        target.parent.mkdir(parents=True, exist_ok=True)
        history = history.drop(_NOT_KEPT, strict=False)
        temporary = Path(tempfile.mkdtemp(prefix=f"{_PART}{os.getpid()}-{_host_id()}-", dir=target.parent))
        try:
            written = io.BytesIO()  # polars raises its own error if the disk is full
            history.write_parquet(written)
            content = written.getvalue()
            write_flushed(temporary / "history.parquet", content)
            final = {k: _finite(v) for k, v in history.row(-1, named=True).items() if k != "time"}
            record = {"key": spec.key, "spec": spec.as_dict(), "outcome": outcome, "final": final}
            record = json.loads(json.dumps(record, allow_nan=False))  # as it is read
            record["sha256"] = {"history": sha256(content), "record": _digest_of_record(record)}
            (temporary / "timing.json").write_text(json.dumps({"seconds": seconds}))
            text = json.dumps(record, sort_keys=True, indent=1, allow_nan=False)
            write_flushed(temporary / "run.json", text.encode())  # last: it marks a complete folder
            temporary.chmod(0o755)
            try:
                temporary.rename(target)
            except OSError:
                if not (target / "run.json").is_file():  # incomplete: replace it
                    shutil.rmtree(target, ignore_errors=True)
                    temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Remove temporary folders of processes that were killed.

        Process ids of other machines mean nothing here: their folders are removed after one day.
        """
        for part in self.folder.glob(f"*/{_PART}*"):
            owner, _, rest = part.name.removeprefix(_PART).partition("-")
            dead = rest.startswith(f"{_host_id()}-") and owner.isdigit() and not _alive(int(owner))
            with suppress(FileNotFoundError):
                if dead or time.time() - part.stat().st_mtime > _DAY:
                    shutil.rmtree(part, ignore_errors=True)

    def keys(self) -> list[str]:
        """Return the keys of all runs, in order."""
        folders = (path.parent for path in self.folder.glob("??/*/run.json"))
        return sorted(folder.name for folder in folders if not folder.name.startswith(_PART))

    def record(self, key: str) -> dict[str, Any]:
        """Return the record of a run; raise if it is damaged."""
        return self._verified(key)[0]

    def _verified(self, key: str) -> tuple[dict[str, Any], str | None]:
        """Return the record of a run and the digest of its history; None if it is from before there were digests."""
        path = self._folder_of(key) / "run.json"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            digests = record.pop("sha256", None)
            if digests is not None and digests["record"] != _digest_of_record(record):
                raise ValueError("it does not match its SHA-256")
            if record.keys() != _ENTRIES or record["key"] != key or RunSpec(**record["spec"]).key != key:
                raise ValueError("it belongs to another run")
            if not isinstance(record["final"], dict) or "diverged_at" not in record["outcome"]:
                raise ValueError("it has no outcome")
            return record, None if digests is None else str(digests["history"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({in_short(error)}): remove its folder to run it again") from None

    def seconds(self, key: str) -> float | None:
        """Return the duration of a run, if known."""
        try:
            return float(json.loads((self._folder_of(key) / "timing.json").read_text())["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def history(self, key: str) -> pl.DataFrame:
        """Return the evaluations of a run; raise if they are damaged."""
        path = self._folder_of(key) / "history.parquet"
        stated = self._verified(key)[1]
        try:
            content = path.read_bytes()
            if stated is not None and stated != sha256(content):
                raise ValueError("it does not match its SHA-256")
            return pl.read_parquet(content)
        except (OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise ValueError(f"{path} is damaged ({in_short(error)}): remove its folder to run it again") from None

    def rows(self, keys: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield one flat row per run: its spec, its options and its outcome."""
        for key in self.keys() if keys is None else sorted(keys):
            record = self.record(key)
            spec = record["spec"]
            plain = {name: spec[name] for name in ("problem", "method", "delays", "steps", "seed", "evaluate_every")}
            options = dict(sorted(spec["options"].items()))
            arguments = {f"problem.{name}": value for name, value in sorted(spec["problem_options"].items())}
            arguments |= {f"delays.{name}": value for name, value in sorted(spec["delay_options"].items())}
            arguments |= {f"imports.{name}": digest[:12] for name, digest in spec.get("imports", {}).items()}
            yield {"key": key, **plain, **options, **arguments, **record["outcome"], **record["final"]}

    def table(self, keys: list[str] | None = None) -> pl.DataFrame:
        """Return one row per run, sorted by key, so that the table does not depend on the order of the runs."""
        return pl.DataFrame(list(self.rows(keys)), infer_schema_length=None)


def _digest_of_record(record: dict[str, Any]) -> str:
    return sha256(json.dumps(record, sort_keys=True).encode(errors="surrogatepass"))


def _finite(value: Any) -> Any:
    """Replace NaN and infinities by None, because JSON has neither."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _host_id() -> str:
    """Identify the namespace of this process's id: the machine since its boot, and the container if there is one."""
    parts = [platform.node()]
    with suppress(OSError):  # not Linux
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").readlink())]
    return sha256("\n".join(parts).encode())[:12]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with suppress(OSError):  # not Linux
        # A process that has ended stays visible until its parent, or process 1, has read its exit code.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return True
