"""The ``latecomer`` command, also ``python -m latecomer``."""

import sys
import warnings

__all__ = ["main"]


def main() -> int:
    """Import, which takes seconds, and run; Ctrl-C is one word at any time, and a warning one line."""
    warnings.showwarning = lambda message, *_, **__: print(f"latecomer: warning: {message}", file=sys.stderr)
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:
        print("latecomer: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
