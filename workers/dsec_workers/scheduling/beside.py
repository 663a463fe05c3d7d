"""A trial's books of what is beside the cards: who leaves when, when a node has enough, what is kept for whom.

A waiting gang's place is kept from its start on: whoever is still there then may only use what the holder does not
need. Nodes that declare nothing, and gangs that ask for nothing, are in none of these books.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

import numpy as np

from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.fleet import Bools, Floats, Ints
from dsec_workers.scheduling.holders import Slots
from dsec_workers.scheduling.hosts import Hosts, host_needs
from dsec_workers.scheduling.placement import Seats, Shape, cpu_seats
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.shadow import Kept
from dsec_workers.scheduling.snapshot import Snapshot
from dsec_workers.scheduling.tenants import Tenants


class Beside:
    """See the module. `free` is what is free now; its owner changes it."""

    def __init__(self, snapshot: Snapshot, slots: Slots, free: Hosts, policy: Policy, now: float) -> None:
        self.snapshot, self.slots, self.free, self.policy, self.now = snapshot, slots, free, policy, now
        fleet = snapshot.fleet
        self._declared = bool(np.isfinite(fleet.cpu_milli).any()), bool(np.isfinite(fleet.memory_mib).any())
        self._tenants: Tenants | None = None
        self._ends: Floats = np.empty(0)
        """By tenant."""
        self._changes: dict[str, tuple[GangRequest, Ints, float]] = {}
        """Who came in this cycle, where, until when."""
        self._told: list[tuple[int, Ints, float]] = []
        """Slot, nodes, and when it has left them, of those told to in this cycle."""

    def counts(self, shape: Shape) -> bool:
        """Whether some node may have too little for a member of that shape."""
        cpu, memory = self._declared
        return (cpu and shape.cpu_milli > 0) or (memory and shape.memory_mib > 0)

    def enter(self, run_id: str, request: GangRequest, nodes: Ints, until: float) -> None:
        """What came in this cycle under that name has members on `nodes`, and no longer on others."""
        if request.cpus or request.memory_bytes:
            self._changes[run_id] = (request, nodes, until)
            self._tenants = None

    def told(self, slot: int, nodes: Ints, until: float) -> None:
        """The gang in `slot` has left `nodes` by `until`."""
        if self.slots.cpu_milli[slot] or self.slots.memory_mib[slot]:
            self._told.append((slot, nodes, until))
            self._tenants = None

    def is_told(self, slot: int) -> bool:
        """Whether the gang in `slot` has been told in this cycle to leave some nodes."""
        return any(told == slot for told, _, _ in self._told)

    @property
    def tenants(self) -> Tenants:
        """All, by node and then in the order in which they leave."""
        if self._tenants is None:
            found = Tenants.of(self.snapshot, self.slots)
            times = self.slots.expected_ends(self.policy, self.now)[found.slot]
            for slot, nodes, until in self._told:
                times[(found.slot == slot) & np.isin(found.node, nodes)] = until
            for request, nodes, until in self._changes.values():
                cpu_milli, memory_mib = host_needs(request)
                here = np.ones(len(nodes))
                found = found.and_of(Tenants(np.full(len(nodes), -1), nodes, here * cpu_milli, here * memory_mib))
                times = np.append(times, np.full(len(nodes), until))
            order = np.lexsort((times, found.node))
            self._tenants, self._ends = found.only(order), times[order]
        return self._tenants

    def ready(self, shape: Shape, kept: Sequence[Kept], *, among: Sequence[tuple[Ints, Shape, float]] = ()) -> Floats:
        """Per node, when it will have what a member of `shape` needs beside what is `kept`; −∞: it has it now.

        `among` are further gangs that are expected there, with when they leave.
        """
        tenants, free = self.tenants, self._less(kept)
        ends = self._ends
        needy = [entry for entry in among if entry[1].cpu_milli or entry[1].memory_mib]
        if needy:
            counts = [len(nodes) for nodes, _, _ in needy]
            more = Tenants(
                np.full(sum(counts), -1),
                np.concatenate([nodes for nodes, _, _ in needy]),
                np.repeat([float(other.cpu_milli) for _, other, _ in needy], counts),
                np.repeat([float(other.memory_mib) for _, other, _ in needy], counts),
            )
            np.subtract.at(free.cpu_milli, more.node, more.cpu_milli)
            np.subtract.at(free.memory_mib, more.node, more.memory_mib)
            tenants, ends = tenants.and_of(more), np.append(ends, np.repeat([end for _, _, end in needy], counts))
            order = np.lexsort((ends, tenants.node))
            tenants, ends = tenants.only(order), ends[order]
        return np.maximum(
            _when(tenants.node, tenants.cpu_milli, ends, shape.cpu_milli - free.cpu_milli),
            _when(tenants.node, tenants.memory_mib, ends, shape.memory_mib - free.memory_mib),
        )

    def earliest(
        self, shape: Shape, nodes: Bools, load: Ints, kept: Sequence[Kept], against: Floats | None
    ) -> tuple[float, Seats] | None:
        """When a gang that asks for no device finds room on these nodes for all its members, and where; None: never.

        What is `kept` for others is not for it; `load` and `against` are as in `cpu_seats`.
        """
        tenants, free = self.tenants, self._less(kept)

        def seats(at: float) -> Seats | None:
            then = free.copy()
            tenants.only(self._ends <= at).leave(then)
            return cpu_seats(nodes, load, shape, then, against=against)

        times = np.unique(np.append(self._ends[np.isfinite(self._ends)], self.now)).tolist()
        first = bisect_left(times, True, key=lambda at: seats(at) is not None)
        found = seats(times[first]) if first < len(times) else None
        return None if found is None else (times[first], found)

    def in_time(self, keep: Kept, others: Sequence[Kept]) -> bool:
        """Whether the holder finds what it needs at its start, if the `others` find theirs."""
        if not self.counts(keep.shape) or not len(keep.nodes):
            return True
        return _holds(self._then(keep, others), keep)

    def left_by(self, kept: Sequence[Kept], gone: Sequence[tuple[int, Ints]] = ()) -> Hosts | None:
        """Per node, what those whom `kept` binds may use so that each of its holders finds what it needs.

        `gone` are slots and the nodes that they leave before. None where that is no limit.
        """
        found: Hosts | None = None
        for keep in kept:
            if not self.counts(keep.shape) or not len(keep.nodes):
                continue
            others = [other for other in kept if other is not keep]
            then, (nodes, members) = self._then(keep, others, gone), np.unique(keep.nodes, return_counts=True)
            if found is None:
                found = Hosts(np.full(len(then.cpu_milli), inf), np.full(len(then.cpu_milli), inf))
            for room, left, need in (
                (found.cpu_milli, then.cpu_milli, keep.shape.cpu_milli),
                (found.memory_mib, then.memory_mib, keep.shape.memory_mib),
            ):
                if need:
                    room[nodes] = np.minimum(room[nodes], left[nodes] - need * members)
        return found

    def in_the_way(self, keep: Kept, others: Sequence[Kept], passing: Bools, first: Sequence[int]) -> list[int]:
        """Slots among `passing` without whose leaving the holder would lack something at its start.

        Those in `first` leave anyway; `passing` are expected to stay unless they are told.
        """
        if not self.counts(keep.shape):
            return []
        tenants, found = self.tenants, list(first)
        mine = np.isin(tenants.node, keep.nodes)
        stays = mine & passing[tenants.slot] & (tenants.slot >= 0)
        then = self._less(_there_before(keep, others))
        tenants.only(mine & ~stays & (self._ends <= max(keep.start, self.now))).leave(then)
        tenants.only(stays & np.isin(tenants.slot, np.array(found, np.int64))).leave(then)
        rest = [slot for slot in np.unique(tenants.slot[stays]).tolist() if slot not in found]
        for slot in sorted(rest, key=lambda s: (-float(self.slots.started_at[s]), s)):
            if _holds(then, keep):
                break
            tenants.only(stays & (tenants.slot == slot)).leave(then)
            found.append(slot)
        return found[len(first) :]

    def relied_on(self, keep: Kept) -> Ints:
        """Slots whose leaving until its start gives the holder what it needs beside its devices."""
        if not self.counts(keep.shape):
            return np.empty(0, np.int64)
        tenants = self.tenants
        here = np.isin(tenants.node, keep.nodes) & (tenants.slot >= 0)
        return np.unique(tenants.slot[here & (self._ends <= max(keep.start, self.now))])

    def slots_on(self, nodes: Ints) -> Ints:
        """The slots that have members on these nodes, and use something of them."""
        tenants = self.tenants
        found = tenants.slot[np.isin(tenants.node, nodes)]
        return np.unique(found[found >= 0])

    def _then(self, keep: Kept, others: Sequence[Kept], gone: Sequence[tuple[int, Ints]] = ()) -> Hosts:
        """What is free on the holder's nodes when it starts, without what those of the `others` need that start first.

        Who starts later has a place that leaves the holder its own, and needs nothing before.
        """
        tenants, then = self.tenants, self._less(_there_before(keep, others))
        if keep.pledge:  # as soon as those who were told have left
            left = np.append(self.slots.evicting, False)[tenants.slot]
        else:
            left = self._ends <= max(keep.start, self.now)
        for slot, nodes in gone:
            left = left | ((tenants.slot == slot) & np.isin(tenants.node, nodes))
        tenants.only(left).leave(then)
        return then

    def _less(self, kept: Sequence[Kept]) -> Hosts:
        free = self.free.copy()
        for keep in kept:
            np.subtract.at(free.cpu_milli, keep.nodes, keep.shape.cpu_milli)
            np.subtract.at(free.memory_mib, keep.nodes, keep.shape.memory_mib)
        return free


def _there_before(keep: Kept, others: Sequence[Kept]) -> list[Kept]:
    """Those of the `others` who have their places when the holder starts; a pledge is for as soon as it can be."""
    return [other for other in others if other.pledge or other.start <= keep.start]


def _holds(hosts: Hosts, keep: Kept) -> bool:
    """Whether every member of the holder finds what it needs on its node."""
    nodes, members = np.unique(keep.nodes, return_counts=True)
    room = hosts.times(keep.shape.cpu_milli, keep.shape.memory_mib, int(members.max(initial=0)))
    return bool((room[nodes] >= members).all())


def _when(node: Ints, amounts: Floats, ends: Floats, lacking: Floats) -> Floats:
    """Per node, when so much has come back; −∞ where nothing lacks. Entries lie by node, the first to leave first."""
    times: Floats = np.where(lacking > 0, inf, -inf)
    if not len(node) or not (lacking > 0).any():
        return times
    total = np.cumsum(amounts)
    before = np.append(0.0, total)[np.searchsorted(node, node)]
    enough = (total - before >= lacking[node]) & (lacking[node] > 0)
    np.minimum.at(times, node[enough], ends[enough])
    return times
