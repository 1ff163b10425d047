"""Small helpers that know nothing of training: checks, files, seeds, names, intervals, processes, extras."""
