"""``python -m latecomer.cli.evidence``: the same as ``latecomer reproduce all --size standard``, for long runs."""

from __future__ import annotations

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main(["reproduce", "all", "--size", "standard", *sys.argv[1:]]))
