"""Research that ran once and still runs: not part of the package, but part of the repository."""
