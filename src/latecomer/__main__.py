"""The ``latecomer`` command, also ``python -m latecomer``."""

import sys
import warnings

__all__ = ["main"]


def main() -> int:
    """Run the command; Ctrl-C prints one word, also during imports, and a warning prints one line."""
    warnings.showwarning = lambda message, *_, **__: print(f"latecomer: warning: {message}", file=sys.stderr)
    try:
        from .cli.main import main as run

        code = run()
    except KeyboardInterrupt:
        print("latecomer: interrupted", file=sys.stderr)
        code = 130
    # After an interrupt in code compiled from a string, as in imports, CPython would end this process by the signal,
    # with another exit code. Running any such code without an error clears that.
    exec("")
    return code


if __name__ == "__main__":
    sys.exit(main())
