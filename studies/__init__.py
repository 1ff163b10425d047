"""Research code that is not part of the package; its measurements can be repeated."""
