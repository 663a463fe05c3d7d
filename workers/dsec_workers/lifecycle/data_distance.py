"""How far each node is from the data that a gang needs, in seconds of fetching: placement goes where the data is.

What a start costs on a node is the bytes it lacks, divided by what its fetches get. `plan()` is given the difference
to a typical node that has none of it, so a node that nothing is known of stands at zero: unknown data, an inventory
that nobody has confirmed for long, and a bandwidth that is near the typical one all say nothing. An address stands for
what its origin was last seen to have by any node; a node with older content has of it what both share. Pure.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median_low
from typing import Any

from dsec_blocks.ledger import CachedBundle, Inventory
from dsec_blocks.model.content_sketch import shared_bytes
from dsec_blocks.model.devices import Node
from dsec_blocks.model.units import format_duration, format_memory

ASSUMED_BANDWIDTH_BYTES_PER_S = 125e6
"""Where no node has measured any: one gigabit a second."""
SAME_BANDWIDTH = 2.0
"""A bandwidth within this factor of the typical one counts as typical: measurements differ by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOnNode:
    """What one node has of a gang's inputs, and what that is worth."""

    node: str
    bytes_resident: int
    bytes_total: int
    """0: not known, because nobody has had more than some of its files."""
    seconds_saved: float
    """Against a typical node that has none; below zero on a slow node."""

    def describe(self) -> str:
        """In a few words: "3.1 of 4 GiB on node-2, saves 41 s there"."""
        worth = "saves" if self.seconds_saved >= 0 else "costs"
        held, total = format_memory(self.bytes_resident), format_memory(self.bytes_total)
        if not self.bytes_total:
            held = f"{held} of it"
        elif held.split()[1] == total.split()[1]:
            held = f"{held.split()[0]} of {total}"
        else:
            held = f"{held} of {total}"
        return f"{held} on {self.node}, {worth} {format_duration(abs(self.seconds_saved))} there"


class NodeSeconds(tuple[tuple[str, float], ...]):
    """(node, seconds) pairs that many gangs share: compared and looked up often, so hashed once."""

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = tuple.__hash__(self)
        return known


class DataDistance:
    """The distance of `nodes` from any inputs, by those of their inventories that are believed at `now`."""

    def __init__(self, inventories: Mapping[str, Inventory], *, nodes: Sequence[Node], now: float) -> None:
        self.believed = believed(inventories, nodes=nodes, now=now)
        measured = [each.bandwidth_bytes_per_s for each in self.believed.values() if each.bandwidth_bytes_per_s]
        self.typical_bytes_per_s = median_low(measured) if measured else ASSUMED_BANDWIDTH_BYTES_PER_S
        self._held: dict[str, dict[str, CachedBundle]] = {}
        self._sized: set[str] = set()
        newest = _newest(self.believed.values())
        for name, inventory in self.believed.items():
            for bundle in inventory.bundles:
                self._sized.add(bundle.address)
                for address in {bundle.address, whole_of(bundle.address)}:
                    on = self._held.setdefault(address, {})
                    on[name] = _most(_of_use(bundle, newest.get(address)), on.get(name))
        self._known: dict[tuple[str, ...], tuple[tuple[DataOnNode, ...], NodeSeconds]] = {}

    def of(self, inputs: Sequence[str]) -> tuple[DataOnNode, ...]:
        """What nodes have of `inputs`, the one that saves most first; nodes that make no difference are left out."""
        return self._of(inputs)[0]

    def seconds_saved(self, inputs: Sequence[str]) -> NodeSeconds:
        """The same as `plan()` takes it: (node, seconds) by node. Empty when nothing is known of any input."""
        return self._of(inputs)[1]

    def on(self, inputs: Sequence[str], nodes: Collection[str]) -> list[dict[str, Any]]:
        """What the chosen `nodes` have of `inputs`, for the decision log."""
        wanted = set(nodes)
        return [asdict(each) for each in self.of(inputs) if each.node in wanted]

    def _of(self, inputs: Sequence[str]) -> tuple[tuple[DataOnNode, ...], NodeSeconds]:
        asked = tuple(inputs)
        if asked not in self._known:
            addresses = sorted({spelling_of(uri) for uri in asked})
            known = [address for address in addresses if address in self._held]
            found = self._compare([self._held[address] for address in known], is_sized=self._sized.issuperset(known))
            pairs = sorted((each.node, each.seconds_saved) for each in found if each.seconds_saved)
            self._known[asked] = (tuple(found), NodeSeconds(pairs))
        return self._known[asked]

    def _compare(self, held: Sequence[Mapping[str, CachedBundle]], *, is_sized: bool) -> list[DataOnNode]:
        sizes = [max(bundle.bytes_total for bundle in on.values()) for on in held]
        total = sum(sizes)
        found = []
        for name in self.believed if total else ():
            resident = sum(
                min(on[name].bytes_resident, size) for on, size in zip(held, sizes, strict=True) if name in on
            )
            bandwidth = self._bandwidth(name)
            # Whole seconds: less would only make nodes differ that are as good as equal.
            saved = float(round(total / self.typical_bytes_per_s - (total - resident) / bandwidth))
            if resident or saved:
                each = DataOnNode(
                    node=name, bytes_resident=resident, bytes_total=total if is_sized else 0, seconds_saved=saved
                )
                found.append(each)
        return sorted(found, key=lambda each: (-each.seconds_saved, -each.bytes_resident, each.node))

    def _bandwidth(self, node: str) -> float:
        typical, measured = self.typical_bytes_per_s, self.believed[node].bandwidth_bytes_per_s
        if not measured or typical / SAME_BANDWIDTH <= measured <= typical * SAME_BANDWIDTH:
            return typical
        return measured


def whole_of(address: str) -> str:
    """The address without its patterns: who has some of the files need not fetch them for the whole."""
    if " (include " not in address and " (exclude " not in address:
        return address
    from dsec_blocks.cache.bundles import BundleAddress
    from dsec_blocks.cache.errors import CacheError

    try:
        return BundleAddress.parse(address).uri
    except CacheError:
        return address


def _newest(inventories: Iterable[Inventory]) -> dict[str, CachedBundle]:
    """By address the content that its origin was last seen to have."""
    found: dict[str, CachedBundle] = {}
    for inventory in inventories:
        for bundle in inventory.bundles:
            if bundle.sketch and bundle.checked_at is not None:
                last = found.get(bundle.address)
                if last is None or bundle.checked_at > (last.checked_at or 0.0):
                    found[bundle.address] = bundle
    return found


def _of_use(bundle: CachedBundle, newest: CachedBundle | None) -> CachedBundle:
    """What a node has of the `newest` content of an address, which may have been another one when it fetched."""
    if newest is None or bundle.checked_at is None or bundle.digest == newest.digest:
        return bundle
    if bundle.checked_at >= (newest.checked_at or 0.0):
        return bundle
    shared = shared_bytes(newest.sketch, bundle.sketch, total_bytes=newest.bytes_total)
    return replace(bundle, bytes_total=newest.bytes_total, bytes_resident=shared)


def _most(one: CachedBundle, other: CachedBundle | None) -> CachedBundle:
    """The larger of both in each respect: parts of one bundle may be the same files, so they are not added up."""
    if other is None:
        return one
    total = max(one.bytes_total, other.bytes_total)
    return replace(one, bytes_total=total, bytes_resident=max(one.bytes_resident, other.bytes_resident))


def weighed(known: Sequence[DataOnNode], seconds_per_card: float) -> list[dict[str, Any]]:
    """Each with what it weighs in a placement by the policy's `cache_seconds_per_card`, in values and in words."""
    return [
        {
            **asdict(each),
            "cards": each.seconds_saved / seconds_per_card,
            "text": f"{each.describe()}; weighs {each.seconds_saved / seconds_per_card:.2g} cards in its placement",
        }
        for each in known
    ]


def believed(inventories: Mapping[str, Inventory], *, nodes: Sequence[Node], now: float) -> dict[str, Inventory]:
    """The inventories of these nodes that somebody has confirmed lately, by node."""
    names = sorted({node.name for node in nodes} & set(inventories))
    return {name: inventories[name] for name in names if not inventories[name].is_stale(now)}


def spelling_of(uri: str) -> str:
    """An address in the spelling in which nodes report it; one that is none stays as it is, and nobody holds it."""
    # Most gangs have no inputs, and commands that plan should not load what only these need.
    from dsec_blocks.cache.bundles import BundleAddress
    from dsec_blocks.cache.errors import CacheError

    try:
        return str(BundleAddress.of(uri))
    except CacheError:
        return uri


NOTHING_KNOWN = DataDistance({}, nodes=(), now=0.0)
