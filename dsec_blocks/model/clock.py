"""Time as an argument: shells hold a `Clock`, pure code gets `now`."""

from typing import Protocol


class Clock(Protocol):
    """Where shells read the time, so that tests and replays can own it."""

    def now(self) -> float:
        """Seconds since the epoch (wall clock; may jump)."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
