"""The ``latecomer`` command, also ``python -m latecomer``."""

import sys
import warnings

__all__ = ["main"]


def main() -> int:
    """Import, which takes seconds, and run; Ctrl-C is one word at any time, and a warning one line."""
    warnings.showwarning = lambda message, *_, **__: print(f"latecomer: warning: {message}", file=sys.stderr)
    try:
        from .cli.main import main as run

        code = run()
    except KeyboardInterrupt:
        print("latecomer: interrupted", file=sys.stderr)
        code = 130
    # An interrupt that met code compiled from a string on its way here, as imports have it, is remembered by CPython,
    # which would end this process by the signal; what runs after it makes it forget, and the exit code is ours.
    exec("")
    return code


if __name__ == "__main__":
    sys.exit(main())
