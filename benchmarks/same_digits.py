"""Whether runs of the committed sweeps give the same digits with the code of another revision.

    python benchmarks/same_digits.py --before REV [--runs 3] [--seed 0] [SPEC.toml ...]

Draws some runs of every sweep under ``docs/`` (or of those that are named), makes each with the code of the revision,
in a worktree of its own, and with the code here, one after the other on one machine, and compares every number of their
histories that both have, to the last digit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

from latecomer.experiments import RunSpec, Sweep

ROOT = Path(__file__).parent.parent
MAKE = """
import json, sys
import torch
from latecomer.experiments.sweep import run_one
torch.set_num_threads(1)
run_one(json.loads(sys.argv[1]), sys.argv[2])
"""


def history(run: RunSpec, source: Path) -> pl.DataFrame:
    """Make a run with the code in a folder and return its history."""
    with tempfile.TemporaryDirectory() as store:
        environment = {**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", MAKE, json.dumps(run.as_dict()), store]
        subprocess.run(command, env=environment, check=True)
        (found,) = Path(store).rglob("history.parquet")
        return pl.read_parquet(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", type=Path)
    parser.add_argument("--before", required=True, help="a revision of this repository")
    parser.add_argument("--runs", type=int, default=3, help="of every sweep")
    parser.add_argument("--seed", type=int, default=0, help="draws them")
    args = parser.parse_args()
    draw, others = random.Random(args.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(before), args.before], check=True)
        try:
            for spec in args.specs or sorted((ROOT / "docs").rglob("*.toml")):
                runs = Sweep.load(spec).runs()
                for run in draw.sample(runs, min(args.runs, len(runs))):
                    old, new = history(run, before), history(run, ROOT)
                    same = old.equals(new.select(old.columns))
                    others += not same
                    last = {name: old[name][-1] for name in old.columns if name in ("update", "loss", "f1", "excess")}
                    print("same " if same else "OTHER", spec.stem, run.method, dict(run.options), last, flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)
    print("all the same" if not others else f"{others} runs have other digits")
    return min(others, 1)


if __name__ == "__main__":
    sys.exit(main())
