"""How long ``latecomer --help`` takes, against ``ray --help`` and against starting Python at all.

    python benchmarks/startup.py [--runs 7]

The commands take turns, so that whatever else the machine does falls on all of them. Without Ray its row is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import latecomer": ["-c", "import latecomer"],
    "latecomer --version": ["-m", "latecomer", "--version"],
    "latecomer --help": ["-m", "latecomer", "--help"],
    "latecomer train --help": ["-m", "latecomer", "train", "--help"],
    "ray --help": ["-c", "import sys; from ray.scripts.scripts import main; sys.argv = ['ray', '--help']; main()"],
}


def wall(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    commands = {
        name: words for name, words in COMMANDS.items() if name != "ray --help" or importlib.util.find_spec("ray")
    }
    for words in commands.values():
        wall(words)  # bytecode and the disk's cache
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(args.runs):
        for name, words in commands.items():
            times[name].append(wall(words))
    middle = {name: statistics.median(measured) for name, measured in times.items()}
    table = Table("command", title=f"median of {args.runs} runs")
    for head in ("seconds", "over python -c pass", "over ray --help"):
        table.add_column(head, justify="right")
    for name, seconds in middle.items():
        ratio = f"{seconds / middle['ray --help']:.2f}" if "ray --help" in middle else "-"
        table.add_row(name, f"{seconds:.3f}", f"{seconds / middle['python -c pass']:.1f}", ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
