"""The cluster as arrays: what does not change while gangs come and go.

Built once from the nodes and shared by every snapshot until a node changes. Devices are numbered node by node in the
order of node names, so equal clusters give equal numbers, whatever order the nodes were reported in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.requests import GangRequest, Sharing, parse_share
from dsec_blocks.model.units import format_memory
from dsec_workers.scheduling.tiers import tiers

if TYPE_CHECKING:
    from dsec_workers.scheduling.prospects import Prospects

NO_GPU = "no GPU"
"""Label of the resource pool of gangs that ask for none: they wait in a line of their own."""
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Devices that any request treats alike."""

    model: str
    memory_bytes: int
    profile: str = ""
    """Of slices."""

    def is_share(self, share: str | None) -> bool:
        """Whether these are what a request for that share (None: whole cards) is given."""
        if share is None or not self.profile:
            return share is None and not self.profile
        return self.profile == share or (not _is_profile(share) and parse_share(self.profile) >= parse_share(share))

    @property
    def sharing(self) -> Sharing:
        """How much of a card each is."""
        if not self.profile:
            return Sharing.WHOLE
        return Sharing.SLICE if _is_profile(self.profile) else Sharing.TIME_SLICE

    @property
    def card_bytes(self) -> int:
        """Memory of the card that each is, or is a part of: of a slice, as many times its own as its part says."""
        return self.memory_bytes * 1000 // parse_share(self.profile) if self.profile else self.memory_bytes

    def serves(self, request: GangRequest) -> bool:
        """Whether these are what the request is given: by model, by memory, and by share."""
        return self.tier(request) is not None

    def tier(self, request: GangRequest) -> int | None:
        """Which of the things that a request may be given these are, the first tried first; None: none of them."""
        models = {model.casefold() for model in request.gpu_models}
        if models and self.model.casefold() not in models:
            return None
        if request.gpu_memory_bytes is not None and self.memory_bytes < request.gpu_memory_bytes:
            return None
        if request.share is not None or request.sharing is not Sharing.AUTO:
            return 0 if self.is_share(request.share) else None
        order = tiers(request, self.card_bytes)
        return order.index(self.sharing) if self.sharing in order else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePool:
    """The devices that satisfy one model and memory constraint; gangs with the same pool compete with each other.

    `classes` index `Fleet.classes`; two constraints with the same classes are one pool.
    """

    label: str
    classes: tuple[int, ...]
    mask: Bools
    """Over devices: in the pool, whether usable or not."""
    tiers: tuple[Bools, ...] = ()
    """Parts of the mask in the order in which they are tried; none where they are all alike."""


@dataclass(frozen=True, eq=False)
class Fleet:
    """Nodes, islands and devices by number.

    An *island* is a node's part of one NVLink domain: the devices of a member that is to talk over NVLink sit in one.
    Devices without NVLink form one island per node with domain −1, which only a single device can use as an island.
    """

    nodes: tuple[str, ...]
    uuids: tuple[str, ...]
    domains: tuple[str, ...]
    classes: tuple[DeviceClass, ...]
    device_node: Ints
    device_island: Ints
    device_class: Ints
    device_usable: Bools
    """Healthy, on a node that takes work."""
    node_start: Ints
    """Devices of node i are node_start[i]:node_start[i + 1]."""
    node_schedulable: Bools
    island_node: Ints
    island_domain: Ints
    levels: tuple[Ints, ...]
    """Node → group number at each topology level, narrowest level first."""
    named_levels: Mapping[str, Ints]
    """The same for "rack", "block" and "zone", where a node without that level has −1."""
    node_class: Ints
    """Node → class of its first device, −1 without any."""
    cpu_milli: Floats
    """Node → processors, in thousandths; infinite where not known."""
    memory_mib: Floats
    by_node: Ints
    """Device numbers per node, one row each, filled up with the number of devices (one past the last)."""
    by_island: Ints
    """The same per island."""
    node_number: dict[str, int] = field(repr=False)
    device_number: dict[str, int] = field(repr=False)
    source: tuple[Node, ...] = field(repr=False)
    prospects: "Prospects | None" = field(default=None, repr=False)
    """What a cycle expects to come; it decides between places that would do."""
    _pools: dict[tuple[str | None, int | None, str | None, bool], ResourcePool] = field(
        default_factory=dict, repr=False
    )
    """Memo of `pool_of`: a pure function of the fleet."""

    @property
    def size(self) -> int:
        """Devices, usable or not."""
        return len(self.uuids)

    def pool_of(self, request: GangRequest) -> ResourcePool:
        """The resource pool of a request's `gpu_model` and `gpu_memory_bytes`; without classes when nothing matches."""
        if not request.devices:
            return ResourcePool(label=NO_GPU, classes=(), mask=np.zeros(self.size, bool))
        auto = request.share is None and request.sharing is Sharing.AUTO and request.devices == 1
        key = (request.gpu_model, request.gpu_memory_bytes, request.share, auto)
        pool = self._pools.get(key)
        if pool is None:
            order = [kind.tier(request) for kind in self.classes]
            chosen = tuple(number for number, tier in enumerate(order) if tier is not None)
            steps = sorted({tier for tier in order if tier is not None})
            parts = [self._devices_of([n for n in chosen if order[n] == step]) for step in steps]
            same = next((p for p in self._pools.values() if p.classes == chosen), None)
            pool = same or ResourcePool(
                label=self._label(chosen),
                classes=chosen,
                mask=self._devices_of(chosen),
                tiers=tuple(parts) if len(parts) > 1 else (),
            )
            self._pools[key] = pool
        return pool

    def _devices_of(self, classes: Sequence[int]) -> Bools:
        return np.isin(self.device_class, np.array(classes, np.int64))

    def _label(self, chosen: tuple[int, ...]) -> str:
        whole = [number for number, kind in enumerate(self.classes) if not kind.profile]
        if chosen and list(chosen) == whole:
            return "every GPU"
        models = [kind.model for kind in self.classes]
        return ", ".join(
            self.classes[c].model
            if models.count(self.classes[c].model) == 1
            else f"{self.classes[c].model} {self.classes[c].profile or format_memory(self.classes[c].memory_bytes)}"
            for c in chosen
        )


def _is_profile(share: str) -> bool:
    return "g." in share


def build_fleet(nodes: Sequence[Node]) -> Fleet:
    """The arrays of `nodes`."""
    ordered = tuple(sorted(nodes, key=lambda node: node.name))
    devices: list[Device] = []
    device_node: list[int] = []
    node_start = [0]
    for number, node in enumerate(ordered):
        devices.extend(sorted(node.devices, key=lambda device: (device.index, device.uuid)))
        device_node.extend([number] * len(node.devices))
        node_start.append(len(devices))
    domains = tuple(sorted({device.nvlink_domain for device in devices if device.nvlink_domain}))
    domain_number = {name: number for number, name in enumerate(domains)}
    classes = tuple(
        DeviceClass(model=model, memory_bytes=memory, profile=profile)
        for model, memory, profile in sorted({(d.model, d.memory_bytes, d.profile) for d in devices})
    )
    class_number = {(kind.model, kind.memory_bytes, kind.profile): number for number, kind in enumerate(classes)}
    class_of = [class_number[d.model, d.memory_bytes, d.profile] for d in devices]
    islands: dict[tuple[int, int], int] = {}
    device_island = [
        islands.setdefault((node, domain_number.get(device.nvlink_domain, -1)), len(islands))
        for node, device in zip(device_node, devices, strict=True)
    ]
    island_count = len(islands)
    schedulable = np.array([node.schedulable for node in ordered], bool)
    cut = {device.slice_of for device in devices if device.slice_of}
    frozen = {device.uuid for device in devices if device.health is not Health.HEALTHY}
    healthy = np.array([d.uuid not in frozen and d.slice_of not in frozen and d.uuid not in cut for d in devices], bool)
    nodes_of_devices = np.array(device_node, np.int64)
    return Fleet(
        nodes=tuple(node.name for node in ordered),
        uuids=tuple(device.uuid for device in devices),
        domains=domains,
        classes=classes,
        device_node=nodes_of_devices,
        device_island=np.array(device_island, np.int64),
        device_class=np.array(class_of, np.int64),
        device_usable=healthy & schedulable[nodes_of_devices],
        node_start=np.array(node_start, np.int64),
        node_schedulable=schedulable,
        island_node=np.array([node for node, _ in islands], np.int64),
        island_domain=np.array([domain for _, domain in islands], np.int64),
        levels=_levels(ordered),
        named_levels=_named_levels(ordered),
        node_class=_first_class(device_node, class_of, len(ordered)),
        cpu_milli=np.array([inf if node.cpus is None else node.cpus * 1000 for node in ordered], float),
        memory_mib=np.array(
            [inf if node.memory_bytes is None else node.memory_bytes // 2**20 for node in ordered], float
        ),
        by_node=_rows(nodes_of_devices, len(ordered)),
        by_island=_rows(np.array(device_island, np.int64), island_count),
        node_number={node.name: number for number, node in enumerate(ordered)},
        device_number={device.uuid: number for number, device in enumerate(devices)},
        source=ordered,
    )


def _rows(group_of: Ints, count: int) -> Ints:
    sizes = np.bincount(group_of, minlength=count)
    rows = np.full((count, int(sizes.max(initial=1))), len(group_of), np.int64)
    order = np.argsort(group_of, kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows[group_of[order], place] = order
    return rows


def _levels(nodes: Sequence[Node]) -> tuple[Ints, ...]:
    """Group numbers per level, narrowest first; a level at which every node is alone or all are together says nothing.

    A node with a shorter path than others keeps its full path at the narrower levels.
    """
    deepest = max((len(node.topology) for node in nodes), default=0)
    levels = []
    for length in range(deepest, 0, -1):
        numbers: dict[tuple[str, ...], int] = {}
        group = np.array([numbers.setdefault(node.topology[:length], len(numbers)) for node in nodes], np.int64)
        if 1 < len(numbers) < len(nodes):
            levels.append(group)
    return tuple(levels)


def _named_levels(nodes: Sequence[Node]) -> dict[str, Ints]:
    """A path's last part is the rack; the one before it the zone, or the block when there is one before that."""
    found: dict[str, Ints] = {}
    for name, back in (("rack", 0), ("block", 1), ("zone", 2)):
        numbers: dict[tuple[str, ...], int] = {}
        groups = np.full(len(nodes), -1, np.int64)
        for index, node in enumerate(nodes):
            depth = len(node.topology)
            length = max(depth - back, 1 if name == "zone" and depth > 1 else 0) if depth > 2 or back != 1 else 0
            if length:
                groups[index] = numbers.setdefault(node.topology[:length], len(numbers))
        found[name] = groups
    return found


def _first_class(device_node: Sequence[int], classes: Sequence[int], count: int) -> Ints:
    first = np.full(count, -1, np.int64)
    for node, kind in zip(reversed(device_node), reversed(classes), strict=True):
        first[node] = kind
    return first
