"""The room that a choice of victims makes, counted once, so that one can ask of each whether it could be left out.

A full answer goes through rights and homes, and over all devices; of thousands of victims nearly all are needed, which
the counts alone tell.
"""

from collections.abc import Mapping

import numpy as np

from dsec_workers.scheduling.fleet import Fleet, Ints
from dsec_workers.scheduling.options import Option
from dsec_workers.scheduling.placement import Shape, fits
from dsec_workers.scheduling.room import View


class RoomMade:
    """What is free in `view` once those of `made` have left these devices (device numbers, each of one option)."""

    def __init__(self, fleet: Fleet, view: View, shape: Shape, made: Mapping[Option, Ints]) -> None:
        self._fleet, self._shape, self._made = fleet, shape, made
        self._island_free, self._node_free = view.island_free.copy(), view.node_free.copy()
        self._free = view.free
        for devices in made.values():
            self._count(devices, +1)

    def fits_without(self, option: Option) -> bool:
        """Whether there are devices enough, in the right places, without this one's; nothing else is looked at."""
        devices = self._made[option]
        self._count(devices, -1)
        view = View(free=self._free, island_free=self._island_free, node_free=self._node_free)
        found = fits(self._fleet, view, self._shape)
        self._count(devices, +1)
        return found

    def leave_out(self, option: Option) -> None:
        """Count on without this one."""
        self._count(self._made[option], -1)

    def _count(self, devices: Ints, change: int) -> None:
        np.add.at(self._island_free, self._fleet.device_island[devices], change)
        np.add.at(self._node_free, self._fleet.device_node[devices], change)
