"""Runs on disk: one folder a run, addressed by what was run, there whole or not at all.

``run.json`` has the spec and what came of it, ``history.parquet`` the evaluations: plain files that pandas and polars
read. How long a run took is in ``timing.json``, apart, so that the rest is the same bytes whenever it was run.
"""

from __future__ import annotations

import hashlib
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

from .spec import RunSpec

__all__ = ["Store"]

_PART = ".part-"
_NOT_KEPT = ("arrival", "train_loss", "delay")  # the trace has them, and a store of any version has the same columns
_DAY = 86_400.0


class Store:
    """A folder of runs.

    Args:
        folder: Where; it is made when the first run is put there.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder))
        ...     spec = RunSpec("quadratic", "momentum", "uniform", steps=10)
        ...     store.put(spec, pl.DataFrame({"update": [0, 10], "loss": [1.0, 0.5]}), {"diverged_at": None}, 0.1)
        ...     spec.key in store, store.table()["loss"].to_list()
        (True, [0.5])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _place(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def __contains__(self, key: str) -> bool:
        return (self._place(key) / "run.json").is_file()

    def put(self, spec: RunSpec, history: pl.DataFrame, outcome: dict[str, Any], seconds: float) -> None:
        """Keep a run; if somebody else has put the same one meanwhile, theirs stays."""
        place = self._place(spec.key)
        place.parent.mkdir(parents=True, exist_ok=True)
        history = history.drop(_NOT_KEPT, strict=False)
        temporary = Path(tempfile.mkdtemp(prefix=f"{_PART}{os.getpid()}-{_here()}-", dir=place.parent))
        try:
            written = io.BytesIO()  # polars has errors of its own for a disk that is full
            history.write_parquet(written)
            _flushed(temporary / "history.parquet", written.getvalue())
            final = {k: _finite(v) for k, v in history.row(-1, named=True).items() if k != "time"}
            record = {"key": spec.key, "spec": spec.as_dict(), "outcome": outcome, "final": final}
            (temporary / "timing.json").write_text(json.dumps({"seconds": seconds}))
            text = json.dumps(record, sort_keys=True, indent=1, allow_nan=False)
            _flushed(temporary / "run.json", text.encode())  # the last: a folder with it is whole
            temporary.chmod(0o755)
            try:
                temporary.rename(place)
            except OSError:
                if not (place / "run.json").is_file():  # not a whole run: it makes room
                    shutil.rmtree(place, ignore_errors=True)
                    temporary.rename(place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def sweep_up(self) -> None:
        """Remove what processes that were killed have left behind.

        Where others see the same folder, their process ids say nothing here: what they left goes when it is a day old.
        """
        for part in self.folder.glob(f"*/{_PART}*"):
            owner, _, rest = part.name.removeprefix(_PART).partition("-")
            dead = rest.startswith(f"{_here()}-") and owner.isdigit() and not _alive(int(owner))
            with suppress(FileNotFoundError):
                if dead or time.time() - part.stat().st_mtime > _DAY:
                    shutil.rmtree(part, ignore_errors=True)

    def keys(self) -> list[str]:
        """Return the keys of all runs, in order."""
        places = (path.parent for path in self.folder.glob("??/*/run.json"))
        return sorted(place.name for place in places if not place.name.startswith(_PART))

    def record(self, key: str) -> dict[str, Any]:
        """Return what is known of a run; a broken entry gets a sentence."""
        path = self._place(key) / "run.json"
        try:
            record = json.loads(path.read_text())
            if record["key"] != key or not isinstance(record["final"], dict) or "diverged_at" not in record["outcome"]:
                raise ValueError("it is another one")
            RunSpec(**record["spec"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is broken ({error}): remove its folder and the run will be made again") from None
        return dict(record)

    def seconds(self, key: str) -> float | None:
        """Return how long a run took, if that is known."""
        try:
            return float(json.loads((self._place(key) / "timing.json").read_text())["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def history(self, key: str) -> pl.DataFrame:
        """Return the evaluations of a run."""
        path = self._place(key) / "history.parquet"
        try:
            return pl.read_parquet(path)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise ValueError(f"{path} is broken ({error}): remove its folder and the run will be made again") from None

    def rows(self, keys: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield one flat row a run: its spec, its options, what came of it."""
        for key in self.keys() if keys is None else sorted(keys):
            record = self.record(key)
            spec = record["spec"]
            plain = {name: spec[name] for name in ("problem", "method", "delays", "steps", "seed", "evaluate_every")}
            options = dict(sorted(spec["options"].items()))
            around = {f"problem.{name}": value for name, value in sorted(spec["problem_options"].items())}
            around |= {f"delays.{name}": value for name, value in sorted(spec["delay_options"].items())}
            yield {"key": key, **plain, **options, **around, **record["outcome"], **record["final"]}

    def table(self, keys: list[str] | None = None) -> pl.DataFrame:
        """Return one row a run, sorted by key: the same table whenever and in whatever order they were made."""
        return pl.DataFrame(list(self.rows(keys)), infer_schema_length=None)


def _flushed(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _here() -> str:
    """Name what our process ids are of: this machine since it was started, and the container on it if we are in one."""
    told = [platform.node()]
    with suppress(OSError):  # not Linux
        told += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").readlink())]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
