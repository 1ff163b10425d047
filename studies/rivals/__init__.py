"""Published experiments on rival methods, run again."""
