"""Mutates files and arguments and counts what becomes of them."""
