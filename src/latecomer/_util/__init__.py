"""Helpers that do not depend on training: checks, files, seeds, names, intervals, processes, extras."""
