"""Who waits has been overtaken, once those who came before it hold less than the most part of the devices.

Counted are the devices of its resource pool, without those of services: they are not expected to end, so nobody waits
for them. Who starts in the same instant holds nothing yet, and who leaves holds until it is gone, so that a batch of
admissions equals the same one after another. While its elders hold most of the rest, first come, first served would
not have started it either: its wait says nothing yet about how urgent it is. Elders end and younger ones do not
become elders, so whoever keeps waiting is overtaken in the end, however long the line is and whatever anybody expects
of anybody's duration.

Where time is shared, levels see to the short ones, and every wait counts.
"""

from collections.abc import Sequence

import numpy as np

from dsec_workers.scheduling.fleet import Bools, Floats, Ints
from dsec_workers.scheduling.holders import Slots
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import Snapshot


def overtaken(
    since: Floats,
    class_of: Ints,
    classes: Sequence[GangClass],
    snapshot: Snapshot,
    slots: Slots,
    policy: Policy,
    now: float,
) -> Bools:
    """Per waiting gang (waiting `since` then, in seconds since the epoch), whether others than its elders have at least
    the policy's part; always where it asks for no device.
    """
    found = np.ones(len(since), bool)
    if not policy.overtaking or policy.time_sharing:
        return found
    pools = {kind.pool.label: kind.pool for kind in classes}
    number = {label: index for index, label in enumerate(pools)}
    pool_of = np.array([number[kind.pool.label] for kind in classes], np.int64)[class_of]
    asks = np.array([kind.request.devices > 0 for kind in classes], bool)[class_of]
    for index, pool in enumerate(pools.values()):
        usable = pool.mask & snapshot.fleet.device_usable
        holder = snapshot.holder[usable]
        devices = np.bincount(holder[holder >= 0], minlength=len(slots.there))[: len(slots.there)]
        services = slots.there & slots.endless
        holds = (devices > 0) & slots.there & ~services & (slots.started_at < now)
        mine = (pool_of == index) & asks
        elders = held_before(slots.submitted_at[holds], devices[holds], since[mine])
        count = int(np.count_nonzero(usable)) - int(devices[services].sum())
        found[mine] = count - elders >= policy.overtaking * count
    return found


def held_before(times: Floats, devices: Ints, each: Floats) -> Ints:
    """For each of these times, the devices of the gangs whose own time is not later."""
    order = np.argsort(times, kind="stable")
    upto = np.concatenate(([0], np.cumsum(devices[order])))
    held: Ints = upto[np.searchsorted(times[order], each, side="right")]
    return held
