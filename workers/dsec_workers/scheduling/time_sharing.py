"""Time sharing: short gangs become short when nobody knows how long any will take.

A gang's *level* is counted from the device-seconds that its run has had: level 0 at first, one more for every
threshold that it passes (Tiresias' two-dimensional least attained service, discretised). Among equal base priority a
gang of a smaller level may evict one of a greater level; nothing but having run makes a level greater, so two gangs
change places at most once per threshold. Who has waited many times what it has had is lifted to level 0, once.

Off unless the policy says so, and only for training: what it does to a run, a checkpoint has to undo.
"""

from bisect import bisect_right

import numpy as np

from dsec_blocks.model.requests import Kind
from dsec_workers.scheduling.fleet import Ints
from dsec_workers.scheduling.holders import Slots
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import QueuedGang, RunningGang


def attained(gang: RunningGang, now: float) -> float:
    """Device-seconds that the run has had by `now`, earlier attempts included."""
    return gang.attained_seconds + len(gang.placement.devices) * max(0.0, now - gang.started_at)


def lift_due(gang: QueuedGang, policy: Policy, now: float) -> bool:
    """Whether the gang's one lift is due: it has waited `lift_factor` times the time that it has run."""
    if not policy.time_sharing or gang.lifted or gang.attained_seconds <= 0 or not _shares(gang):
        return False
    since = gang.eligible_at if gang.waiting_since is None else gang.waiting_since
    ran = gang.attained_seconds / max(1, gang.request.devices)
    return now - since >= policy.lift_factor * ran


def level_of(gang: QueuedGang | RunningGang, policy: Policy, now: float) -> int:
    """The gang's level; 0 for gangs that do not share their time."""
    if not policy.time_sharing or not _shares(gang):
        return 0
    if isinstance(gang, RunningGang):
        return bisect_right(policy.level_device_seconds, attained(gang, now))
    return 0 if lift_due(gang, policy, now) else bisect_right(policy.level_device_seconds, gang.attained_seconds)


def levels_of(slots: Slots, policy: Policy, now: float) -> Ints:
    """The level of each running gang."""
    if not policy.time_sharing:
        return np.zeros(len(slots.there), np.int64)
    had = slots.attained + slots.devices * np.maximum(0.0, now - slots.started_at)
    found = np.searchsorted(np.array(policy.level_device_seconds, float), had, side="right").astype(np.int64)
    found[~(slots.there & slots.shares)] = 0
    return found


def _shares(gang: QueuedGang | RunningGang) -> bool:
    return gang.request.kind is Kind.TRAINING and gang.request.evictable
