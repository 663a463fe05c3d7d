"""Who uses the processors and memory of which node, of those who say how much they use, and until when.

A gang that says nothing is not here: it holds nothing of them (see `hosts`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsec_blocks.model.gangs import MemberPlacement
from dsec_workers.scheduling.fleet import Bools, Fleet, Floats, Ints
from dsec_workers.scheduling.holders import Slots
from dsec_workers.scheduling.hosts import Hosts
from dsec_workers.scheduling.snapshot import Snapshot


def nodes_of(fleet: Fleet, members: Sequence[MemberPlacement]) -> Ints:
    """The numbers of the members' nodes, without those that the fleet has lost."""
    known = fleet.node_number
    return np.array([known[member.node] for member in members if member.node in known], np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Tenants:
    """One entry a member."""

    slot: Ints
    """Of its gang; −1 of a gang that does not run yet."""
    node: Ints
    cpu_milli: Floats
    memory_mib: Floats

    @classmethod
    def of(cls, snapshot: Snapshot, slots: Slots) -> "Tenants":
        """All members of running gangs. O(devices), for gangs that hold what was given to them."""
        fleet, width = snapshot.fleet, len(snapshot.fleet.nodes)
        needy = (slots.cpu_milli > 0) | (slots.memory_mib > 0)
        held = [
            holder[mine] * width + fleet.device_node[mine]
            for holder in (snapshot.holder, snapshot.next_holder)
            if (mine := np.flatnonzero((holder >= 0) & np.append(needy, False)[holder])).size
        ]
        pairs = np.unique(np.concatenate(held)) if held else np.empty(0, np.int64)
        slot = pairs // max(1, width)
        whole = np.bincount(slot, minlength=len(needy)) == slots.members
        slot, node = slot[whole[slot]], pairs[whole[slot]] % max(1, width)
        # Who has no cards, or has given some back already, is not found by them.
        for odd in np.flatnonzero(needy & ~whole).tolist():
            gang = snapshot.running[odd]
            assert gang is not None
            nodes = nodes_of(fleet, gang.placement.members)
            slot, node = np.append(slot, np.full(len(nodes), odd)), np.append(node, nodes)
        return cls(slot, node, slots.cpu_milli[slot].astype(float), slots.memory_mib[slot].astype(float))

    def only(self, chosen: Bools | Ints) -> "Tenants":
        """Those entries, in that order."""
        return Tenants(self.slot[chosen], self.node[chosen], self.cpu_milli[chosen], self.memory_mib[chosen])

    def of_slots(self, chosen: Bools) -> "Tenants":
        """The members of the gangs in those slots."""
        return self.only(np.append(chosen, False)[self.slot])

    def and_of(self, others: "Tenants") -> "Tenants":
        """These and the others."""
        return Tenants(
            np.concatenate((self.slot, others.slot)),
            np.concatenate((self.node, others.node)),
            np.concatenate((self.cpu_milli, others.cpu_milli)),
            np.concatenate((self.memory_mib, others.memory_mib)),
        )

    def leave(self, hosts: Hosts) -> None:
        """Give all that these use back to `hosts`."""
        np.add.at(hosts.cpu_milli, self.node, self.cpu_milli)
        np.add.at(hosts.memory_mib, self.node, self.memory_mib)
