"""Where moved gangs go: room that is free now, so that they resume at once and nobody waits in line for it.

What is free is then in one piece for the gang that the move was made for; nothing is taken from whoever moves but a
checkpoint and a restart. While a gang is on its way, it is two records: the attempt that leaves, and the one to come.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsec_blocks.model.gangs import Placement
from dsec_workers.scheduling.fleet import Bools, Fleet, Floats, Ints
from dsec_workers.scheduling.hosts import Hosts
from dsec_workers.scheduling.placement import Seats, Shape, find_seats, pick_devices
from dsec_workers.scheduling.room import view_of
from dsec_workers.scheduling.snapshot import RunningGang


@dataclass(frozen=True, slots=True)
class Home:
    """The new place of the gang in `slot`."""

    slot: int
    seats: Seats
    devices: list[Ints]


COMING = " (to come)"


def to_come(gang: RunningGang, resumes_at: Placement, *, since: float) -> RunningGang:
    """The next attempt of a gang that leaves to go on at `resumes_at`: promised that place, and counted for it.

    Nobody is given the place, and nobody counts on it sooner than on any other running gang's; the quota is used by
    what it will have. `since` is when it was told.
    """
    return replace(
        gang,
        run_id=gang.run_id + COMING,
        placement=resumes_at,
        started_at=since,
        first_commit_at=None,
        last_commit_at=None,
        evicting=False,
        evicting_for=None,
        promised=True,
    )


def present_shape(gang: RunningGang) -> Shape:
    """The shape in which it runs now."""
    return Shape.of(gang.request, len(gang.placement.members))


def find_homes(
    fleet: Fleet,
    free_now: Bools,
    hosts: Hosts,
    movers: Sequence[tuple[int, RunningGang]],
    against: Floats | None = None,
) -> list[Home] | None:
    """New places for all of `movers` (slot and gang), the largest first; None if one finds none.

    `free_now` are the devices they may have, `hosts` what there is beside them, `against` what speaks
    against each node, in cards.
    """
    free, hosts, homes = free_now.copy(), hosts.copy(), []
    for slot, gang in sorted(movers, key=lambda pair: (-len(pair[1].placement.devices), pair[1].run_id)):
        shape = present_shape(gang)
        view = view_of(fleet, free & fleet.pool_of(gang.request).mask, hosts)
        seats = find_seats(fleet, view, shape, None if against is None else -against, against)
        if seats is None:
            return None
        devices = pick_devices(fleet, view.free, seats, shape)
        for numbers in devices:
            free[numbers] = False
        hosts.take(gang.request, seats.nodes)
        homes.append(Home(slot, seats, devices))
    return homes
