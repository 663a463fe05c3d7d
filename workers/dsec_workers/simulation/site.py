"""Who holds which device while a trace is replayed: the referee that no scheduler can talk past.

Devices are bits of a node's mask. Every start is checked here, so a baseline (or `plan()`) that would give a device
twice ends the simulation instead of looking good.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsec_blocks.model.devices import Health, Node
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest

Seats = tuple[tuple[int, int], ...]
"""A placement: (node number, mask of its devices) a member."""


class NotFree(AssertionError):
    """A scheduler gave a device that somebody else holds or was promised."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What placement depends on."""

    members: int
    devices: int
    gpu_model: str | None = None
    gpu_memory_bytes: int | None = None

    @classmethod
    def of(cls, request: GangRequest, members: int | None = None) -> "Shape":
        """The full shape of a request, or that with so many members."""
        return cls(members or request.nodes, request.devices_per_node, request.gpu_model, request.gpu_memory_bytes)

    @property
    def total(self) -> int:
        """Devices of the whole gang."""
        return self.members * self.devices


class Site:
    """The nodes of a simulated cluster and what is free on each."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda node: node.name))
        self.number = {node.name: number for number, node in enumerate(self.nodes)}
        self.place = {
            device.uuid: (number, bit)
            for number, node in enumerate(self.nodes)
            for bit, device in enumerate(sorted(node.devices, key=lambda d: (d.index, d.uuid)))
        }
        self._uuids = [
            [device.uuid for device in sorted(node.devices, key=lambda d: (d.index, d.uuid))] for node in self.nodes
        ]
        self.up = np.array([node.schedulable for node in self.nodes], bool)
        self.whole = [
            sum(1 << bit for bit, uuid in enumerate(uuids) if self._healthy(number, uuid))
            for number, uuids in enumerate(self._uuids)
        ]
        self.free = list(self.whole)
        """Devices that nobody holds or was promised, a mask a node."""
        self.count: npt.NDArray[np.int64] = np.array([mask.bit_count() for mask in self.free], np.int64)
        """How many those are."""
        self.size = np.array([mask.bit_count() for mask in self.whole], np.int64)
        self.devices = int(self.size.sum())
        self.busy = 0
        self._eligible: dict[tuple[str | None, int | None], npt.NDArray[np.bool_]] = {}

    def _healthy(self, number: int, uuid: str) -> bool:
        return any(d.uuid == uuid and d.health is Health.HEALTHY for d in self.nodes[number].devices)

    def eligible(self, shape: Shape) -> npt.NDArray[np.bool_]:
        """Nodes whose devices all satisfy the shape's model and memory."""
        key = (shape.gpu_model, shape.gpu_memory_bytes)
        if key not in self._eligible:
            self._eligible[key] = np.array(
                [
                    all(
                        (key[0] is None or device.model.casefold() == key[0].casefold())
                        and (key[1] is None or device.memory_bytes >= key[1])
                        for device in node.devices
                    )
                    for node in self.nodes
                ],
                bool,
            )
        found: npt.NDArray[np.bool_] = self._eligible[key] & self.up
        return found

    def seats_of(self, placement: Placement) -> Seats:
        """A placement by UUID as masks."""
        seats = []
        for member in placement.members:
            mask = 0
            for uuid in member.devices:
                mask |= 1 << self.place[uuid][1]
            seats.append((self.number[member.node], mask))
        return tuple(seats)

    def placement_of(self, seats: Seats) -> Placement:
        """The inverse of `seats_of`."""
        return Placement(
            members=tuple(
                MemberPlacement(
                    node=self.nodes[number].name,
                    devices=tuple(uuid for bit, uuid in enumerate(self._uuids[number]) if mask >> bit & 1),
                )
                for number, mask in seats
            )
        )

    def find(self, shape: Shape, count: npt.NDArray[np.int64] | None = None) -> list[int] | None:
        """Nodes for a gang by best fit (the fullest that still holds a member, then the first); None: it fits nowhere.

        `count` are the devices to place on, those that are free by default.
        """
        free = self.count if count is None else count
        able = np.flatnonzero((free >= shape.devices) & self.eligible(shape))
        if len(able) < shape.members:
            return None
        if shape.members == 1:
            return [int(able[np.argmin(free[able])])]
        return [int(n) for n in able[np.argsort(free[able], kind="stable")[: shape.members]]]

    def fits_when_empty(self, shape: Shape) -> bool:
        """Whether the shape could ever start here."""
        if shape.devices == 0:
            return True
        return int(np.count_nonzero((self.size >= shape.devices) & self.eligible(shape))) >= shape.members

    def seats(self, nodes: Sequence[int], devices: int) -> Seats:
        """The first free devices of these nodes."""
        return tuple((node, lowest(self.free[node], devices)) for node in nodes)

    def take(self, seats: Seats) -> None:
        """These devices are held or promised from now on."""
        for node, mask in seats:
            if mask & ~self.free[node]:
                raise NotFree(f"node {self.nodes[node].name}: devices {mask & ~self.free[node]:b} are not free")
            self.free[node] &= ~mask
            self.count[node] -= mask.bit_count()

    def give(self, seats: Seats) -> None:
        """These devices are free again."""
        for node, mask in seats:
            if mask & self.free[node]:
                raise NotFree(f"node {self.nodes[node].name}: devices {mask & self.free[node]:b} were free already")
            self.free[node] |= mask
            self.count[node] += mask.bit_count()

    def fragmented(self) -> int:
        """Free devices on nodes that are partly busy: what a whole-node gang cannot use."""
        return int(self.count[(self.count > 0) & (self.count < self.size)].sum())


def without(seats: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> Seats:
    """`seats` less the devices of `others`."""
    gone: dict[int, int] = {}
    for node, mask in others:
        gone[node] = gone.get(node, 0) | mask
    return tuple((node, mask & ~gone.get(node, 0)) for node, mask in seats)


def lowest(mask: int, count: int) -> int:
    """The `count` lowest bits of `mask`."""
    taken = 0
    for _ in range(count):
        bit = mask & -mask
        taken |= bit
        mask ^= bit
    return taken
