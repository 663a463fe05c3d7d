"""A trial's copy of who has what, with counts per node and island that stay right as devices are taken.

A cycle never touches its snapshot: it takes devices from a `Room`, which is dropped at the end, whatever happened.
Counts are kept per *view*: the devices that one kind of gang may use (its resource pool, less what is kept for
others).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.fleet import Bools, Fleet, Ints
from dsec_workers.scheduling.hosts import Hosts


@dataclass(eq=False, slots=True)
class View:
    """Devices that may be used now, counted per island and per node."""

    free: Bools
    island_free: Ints
    node_free: Ints
    hosts: Hosts | None = None
    """What the nodes have free beside them; None: enough of everything."""

    def on(self, fleet: Fleet, nodes: Bools) -> "View":
        """The devices of these nodes alone."""
        return View(
            free=self.free & nodes[fleet.device_node],
            island_free=np.where(nodes[fleet.island_node], self.island_free, 0),
            node_free=np.where(nodes, self.node_free, 0),
            hosts=self.hosts,
        )


def view_of(fleet: Fleet, free: Bools, hosts: Hosts | None = None) -> View:
    """The counts of the devices in `free`."""
    return View(
        free=free,
        island_free=np.bincount(fleet.device_island[free], minlength=len(fleet.island_node)),
        node_free=np.bincount(fleet.device_node[free], minlength=len(fleet.nodes)),
        hosts=hosts,
    )


class Room:
    """Devices left over, by view; `take` and `give` keep every view right."""

    def __init__(self, fleet: Fleet, free: Bools, hosts: Hosts) -> None:
        self.fleet, self.hosts = fleet, hosts
        self.free = free.copy()
        self._masks: dict[object, Bools] = {}
        self._views: dict[object, View] = {}

    def view(self, key: object, mask: Callable[[], Bools]) -> View:
        """The free devices in the mask that `key` names; `mask` makes it when it is needed."""
        found = self._views.get(key)
        if found is None:
            self._masks[key] = mask()
            found = self._views[key] = view_of(self.fleet, self.free & self._masks[key], self.hosts)
        return found

    def take(self, devices: Ints) -> None:
        """These devices are no longer free."""
        self.free[devices] = False
        self._count(devices, -1, False)

    def give(self, devices: Ints) -> None:
        """These devices, which were not free, are free."""
        self.free[devices] = True
        self._count(devices, +1, True)

    def take_beside(self, request: GangRequest, nodes: Ints, times: int = 1) -> None:
        """A member of the request sits beside its cards on each of `nodes` (−1 times: has left)."""
        self.hosts.take(request, nodes, times)

    def _count(self, devices: Ints, change: int, free: bool) -> None:
        islands, nodes = self.fleet.device_island, self.fleet.device_node
        for key, view in self._views.items():
            mine = devices[self._masks[key][devices]]
            mine = mine[view.free[mine] != free]
            if len(mine):
                view.free[mine] = free
                np.add.at(view.island_free, islands[mine], change)
                np.add.at(view.node_free, nodes[mine], change)

    def forget_views(self) -> None:
        """The masks behind the keys have changed."""
        self._views.clear()
        self._masks.clear()
