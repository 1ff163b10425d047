"""The ``latecomer`` command."""


def main() -> None:
    """Placeholder."""
