"""How long a job will run, learned from jobs that have ended: nobody tells a scheduler a duration.

The percentile of the last runs of the same team and size; with too few of them, of the team, then of everybody. The
more specific history wins because users repeat themselves.
"""

from collections import deque
from collections.abc import Callable

import numpy as np

REMEMBERED = 200
"""Runs that each history keeps."""
ENOUGH = 5
"""Runs from which on a history speaks."""


class Estimates:
    """Seconds by team and devices. `percentile` 50 is a fair guess, 90 a cautious one."""

    def __init__(self, *, default_seconds: float = 3600.0) -> None:
        self.default_seconds = default_seconds
        self._runs: dict[tuple[str | None, int | None], deque[float]] = {}
        self._answers: dict[tuple[str | None, int | None, float], tuple[int, float]] = {}
        self._seen: dict[tuple[str | None, int | None], int] = {}

    def ended(self, team: str, devices: int, seconds: float) -> None:
        """A job ended after `seconds` of work."""
        for key in ((team, devices), (team, None), (None, None)):
            self._runs.setdefault(key, deque(maxlen=REMEMBERED)).append(seconds)
            self._seen[key] = self._seen.get(key, 0) + 1

    def seconds(self, team: str, devices: int, percentile: float = 50.0) -> float:
        """The estimate; the default before anything has ended."""
        for key in ((team, devices), (team, None), (None, None)):
            if len(self._runs.get(key, ())) >= ENOUGH:
                return self._percentile(key, percentile)
        return self.default_seconds

    def remaining(self, team: str, devices: int, elapsed: float, percentile: float = 50.0) -> float:
        """Seconds left for a job that has run for `elapsed`: its estimate, doubled each time it outlives it."""
        return outlived(lambda: self.seconds(team, devices, percentile), elapsed) - elapsed

    def _percentile(self, key: tuple[str | None, int | None], percentile: float) -> float:
        seen, known = self._seen[key], self._answers.get((*key, percentile))
        # Histories move slowly: an answer is good until a tenth of its runs are new.
        if known is None or seen - known[0] > max(1, len(self._runs[key]) // 10):
            known = self._answers[(*key, percentile)] = (seen, float(np.percentile(list(self._runs[key]), percentile)))
        return known[1]


def outlived(estimate: Callable[[], float], elapsed: float) -> float:
    """The estimate, doubled until it exceeds what has elapsed."""
    seconds = max(1.0, estimate())
    while seconds <= elapsed:
        seconds *= 2.0
    return seconds
