"""Why a gang waits: a closed set, most actionable first, each with one sentence for the run's page."""

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """Declared in the order in which they are reported: the first that applies is the one that is shown."""

    INVALID_REQUEST = "invalid-request"
    UNKNOWN_TEAM = "unknown-team"
    NEVER_FITS = "never-fits"
    OVER_TEAM_LIMIT = "over-team-limit"
    ADMISSION_FROZEN = "admission-frozen"
    WAITS_FOR_PARENT = "waits-for-parent"
    WAITS_FOR_QUOTA = "waits-for-quota"
    WAITS_FOR_CAPACITY = "waits-for-capacity"
    FRAGMENTED = "fragmented"
    WAITS_FOR_VICTIMS = "waits-for-victims"
    BACKING_OFF = "backing-off"


NEEDS_A_CHANGE = frozenset(
    {ReasonCode.INVALID_REQUEST, ReasonCode.UNKNOWN_TEAM, ReasonCode.NEVER_FITS, ReasonCode.OVER_TEAM_LIMIT}
)
"""Reasons that waiting alone never cures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why one gang waits now. `text` is what is wrong; position and ETA are told beside it."""

    code: ReasonCode
    text: str
