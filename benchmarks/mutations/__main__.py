"""Mutates files and arguments and counts what becomes of them: nothing may end raw, hang, or change a result silently.

    python -m benchmarks.mutations --count 10000 --seed 0

Each mutation has a number, from which it follows: ``--only 4711`` repeats one. Allowed are the same result, the same
result with a warning, a result where none was known (arguments), and one sentence. Everything else is listed, and the
command ends with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

from latecomer.report.markdown import Part, write_table

from .judge import BAD, HEADS, counts, run


def main() -> int:
    """Read the arguments, run, print the table and what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, default=None, help="number of the one mutation to repeat")
    parser.add_argument("--out", type=Path, default=None, help="folder for the table, mutations.md, and the counts")
    parser.add_argument("--json", type=Path, default=None, help="file for all findings")
    given = parser.parse_args()
    start = time.monotonic()
    findings, all_targets = run(given.count, given.seed, given.only)
    if given.json is not None:
        given.json.write_text(json.dumps([vars(each) for each in findings], indent=1))
    failed = [each for each in findings if each.outcome in BAD]
    for each in failed if given.only is None else findings:
        print(f"{each.number} {each.target}: {each.outcome}: {each.what}: {each.detail[:300]}")
    rows = counts(all_targets)
    cells = [[str(cell) for cell in row] for row in rows]
    print("\n".join(Part(HEADS, cells).lines()).strip())
    title = f"{len(findings):,} mutations with seed {given.seed}, {len(failed)} failures"
    print(f"{title}, in {time.monotonic() - start:.0f} s")
    if given.out is not None:
        command = shlex.join(["python", "-m", "benchmarks.mutations", *sys.argv[1:]])
        numbers = [dict(zip(HEADS, row, strict=True)) for row in rows]
        write_table(given.out, "mutations", title, HEADS, cells, command, numbers)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
