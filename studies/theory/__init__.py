"""The measurements behind docs/theory.md: the counter-example, rates, the search for bad schedules."""
