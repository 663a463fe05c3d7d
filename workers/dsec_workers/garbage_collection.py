"""How Python looks for garbage in a process that keeps much and lives long."""

import gc

YOUNG = 20_000
"""Objects that come before the young ones are looked at; Python's own 700 are two or three pods of a watch."""


def look_at_what_is_new() -> None:
    """Leave what is there now out of every later look, and look less often; called once a process has started.

    A full look goes through every object: Prefect and SQLAlchemy alone are half a million, and none of them ever goes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)
