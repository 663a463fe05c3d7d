"""How long a run is expected to last, from runs like it that have ended: nobody tells a scheduler a duration.

Runs of one deployment in one shape say most, because users repeat themselves; then those of the team in that shape,
of the team, of the pool. Nothing is promised by it: it gives a waiting run its estimate, never the right to pass.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from dsec_blocks.model.requests import GangRequest

REMEMBERED = 50
"""Runs that each history keeps, the newest."""
ENOUGH = 5
"""Runs from which on a history speaks."""


def histories_of(deployment: str, team: str, request: GangRequest) -> tuple[str, ...]:
    """The names of the histories that such a run belongs to, the most telling first."""
    shape = f"{request.nodes}x{request.devices_per_node}"
    own = (f"deployment {deployment} {shape}",) if deployment else ()
    return (*own, f"team {team} {shape}", f"team {team}", "pool")


def after(history: Sequence[float], seconds: float) -> list[float]:
    """The history once one more run has lasted so long."""
    return [*history, round(seconds, 3)][-REMEMBERED:]


def expected_seconds(names: Sequence[str], histories: Mapping[str, Sequence[float]]) -> float | None:
    """What half of the runs in the first history of `names` that is long enough have lasted; None: none is."""
    for name in names:
        if len(history := histories.get(name, ())) >= ENOUGH:
            return max(1.0, float(median(history)))
    return None


def seconds_left(expected: float, had: float) -> float:
    """Of a run that has had so many seconds already: what is expected yet, doubling what it has outlived."""
    while expected <= had:
        expected *= 2.0
    return expected - had
