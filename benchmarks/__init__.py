"""Measurements that print a table and leave a file: run one with `python -m benchmarks.NAME`."""
