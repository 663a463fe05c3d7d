"""What it costs to evict a gang, in device-seconds: work that is done twice, plus what the owner adds.

cost = devices·(checkpoint + restart) + (1 − p)·devices·(now − last commit) + λ·devices·evictions + class penalty

p is the chance that the gang's snapshot meets its grace. Without `on_evict` it is 0; else the duration of a snapshot
is taken as memoryless with the measured mean, p = 1 − exp(−grace / checkpoint). A gang without a commit stakes all
its elapsed time.
"""

from math import exp

from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import RunningGang

UNITS = 1000
"""Costs are compared as whole thousandths of a device-second, so that sums are exact and ties are ties."""


def snapshot_chance(gang: RunningGang, policy: Policy) -> float:
    """The chance, 0 to 1, that a snapshot asked for now is written within the gang's grace."""
    if not gang.has_on_evict:
        return 0.0
    seconds = policy.checkpoint_seconds if gang.checkpoint_seconds is None else gang.checkpoint_seconds
    return 1.0 if seconds <= 0 else 1.0 - exp(-gang.request.grace_seconds / seconds)


def eviction_cost(gang: RunningGang, policy: Policy, now: float) -> float:
    """Device-seconds lost by evicting `gang` at `now`, exact to a thousandth."""
    devices = len(gang.placement.devices)
    checkpoint = policy.checkpoint_seconds if gang.checkpoint_seconds is None else gang.checkpoint_seconds
    restart = policy.restart_seconds if gang.restart_seconds is None else gang.restart_seconds
    safe_until = max(gang.started_at, gang.last_commit_at or gang.started_at)
    at_stake = max(0.0, now - safe_until) * (1.0 - snapshot_chance(gang, policy))
    past = policy.eviction_lambda_seconds * gang.evictions
    penalty = policy.class_penalty_seconds.get(gang.request.kind, 0.0)
    return round(devices * (checkpoint + restart + at_stake + past + penalty) * UNITS) / UNITS


def hand_over_seconds(gang: RunningGang, policy: Policy) -> float:
    """Notice to devices free, at most: the checkpoint within the grace the request was promised."""
    checkpoint = policy.checkpoint_seconds if gang.checkpoint_seconds is None else gang.checkpoint_seconds
    return checkpoint + gang.request.grace_seconds


def overhead_seconds(checkpoint: float | None, restart: float | None, policy: Policy) -> float:
    """Checkpoint and restart of a gang (None: not measured): what one eviction costs it at the least."""
    return (policy.checkpoint_seconds if checkpoint is None else checkpoint) + (
        policy.restart_seconds if restart is None else restart
    )


def move_cost(gang: RunningGang, policy: Policy, now: float) -> float:
    """Device-seconds lost by moving `gang`: as for an eviction, but it never waits in line and nobody is sent away."""
    return _redone(gang, len(gang.placement.devices), policy, now)


def resize_cost(gang: RunningGang, devices_left: int, policy: Policy, now: float) -> float:
    """Device-seconds lost by going on with so many devices.

    That is checkpoint and restart of all of those, and what is at stake of the work that all did since the last commit.
    """
    return _redone(gang, devices_left, policy, now)


def _redone(gang: RunningGang, restarted: int, policy: Policy, now: float) -> float:
    overhead = overhead_seconds(gang.checkpoint_seconds, gang.restart_seconds, policy)
    safe_until = max(gang.started_at, gang.last_commit_at or gang.started_at)
    at_stake = max(0.0, now - safe_until) * (1.0 - snapshot_chance(gang, policy))
    return round((restarted * overhead + len(gang.placement.devices) * at_stake) * UNITS) / UNITS
