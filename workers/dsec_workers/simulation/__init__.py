"""Trace replay and what-if, through the same `plan()` that runs the pool."""
