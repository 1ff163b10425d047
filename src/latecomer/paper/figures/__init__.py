"""The figures of the paper's experiments."""
