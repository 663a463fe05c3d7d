"""Which nodes a failed attempt speaks against, and for how long: a count that halves, so that a node is tried again.

Only what the platform takes for a failure of the machine counts. Of a member that died its node is blamed, of a flow
process that ended without a word the node it ran on; where nobody can tell, the members' nodes share the blame. A run
that has failed before brings less of it: what fails wherever it goes says little about where it went.
"""

from collections.abc import Mapping
from typing import Any

from dsec_blocks.model.gangs import Placement

HALF_LIFE_SECONDS = 1800.0
"""After that time a failure counts half."""
FORGOTTEN = 0.05
"""What counts less is not counted."""
ALWAYS_THE_MACHINE = frozenset({"lost", "failed-start"})
"""Kinds of outcome that count even if the run is not tried again."""


def blamed(placement: Placement, outcome: Mapping[str, Any], *, failed_before: int) -> dict[str, float]:
    """Node → how much of one failure is its own, of an attempt on `placement` that left with `outcome`."""
    members = placement.members
    lost, kind = outcome.get("lost_member"), outcome.get("kind")
    if lost is not None and 0 <= int(lost) < len(members):
        suspects = [members[int(lost)].node]
    elif kind in ALWAYS_THE_MACHINE:
        suspects = [member.node for member in members]
    else:
        suspects = [member.node for member in members[:1]]
    share = 1.0 / (1 + failed_before) / max(1, len(suspects))
    found: dict[str, float] = {}
    for node in suspects:
        found[node] = found.get(node, 0.0) + share
    return found


def decayed(weight: float, at: float, now: float) -> float:
    """What counted `weight` at `at` counts `now`, to two decimals; 0 when it is forgotten."""
    left = weight * float(0.5 ** (max(0.0, now - at) / HALF_LIFE_SECONDS))
    return round(left, 2) if left >= FORGOTTEN else 0.0
