"""What is free beside the cards: the processors and memory of nodes, for gangs that say how much of them they need.

A gang that says nothing holds nothing of them, and a node whose sizes nobody has declared has no end of them: whoever
does not count processors is not troubled by them.
"""

from dataclasses import dataclass

import numpy as np

from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.fleet import Bools, Fleet, Floats, Ints


def host_needs(request: GangRequest) -> tuple[int, int]:
    """Thousandths of a processor and MiB of memory of one member; memory is rounded up."""
    return round((request.cpus or 0) * 1000), -(-(request.memory_bytes or 0) // 2**20)


@dataclass(eq=False, slots=True)
class Hosts:
    """Node → what is free of each; `take` and `give` change it."""

    cpu_milli: Floats
    memory_mib: Floats

    @classmethod
    def empty(cls, fleet: Fleet) -> "Hosts":
        """Nothing taken."""
        return cls(fleet.cpu_milli.copy(), fleet.memory_mib.copy())

    def copy(self) -> "Hosts":
        """The same, to be changed by somebody else."""
        return Hosts(self.cpu_milli.copy(), self.memory_mib.copy())

    def take(self, request: GangRequest, nodes: Ints, times: int = 1) -> None:
        """A member of the request sits on each of `nodes`; −1 times: it has left."""
        cpu, memory = host_needs(request)
        if cpu or memory:
            np.subtract.at(self.cpu_milli, nodes, cpu * times)
            np.subtract.at(self.memory_mib, nodes, memory * times)

    def least(self, other: "Hosts | None") -> "Hosts":
        """Of each the smaller; `self` where there is no other."""
        if other is None:
            return self
        return Hosts(np.minimum(self.cpu_milli, other.cpu_milli), np.minimum(self.memory_mib, other.memory_mib))

    def able(self, cpu_milli: int, memory_mib: int) -> Bools:
        """The nodes that have so much; of what is not wanted one may be overdrawn."""
        found = np.ones(len(self.cpu_milli), bool)
        for free, wanted in ((self.cpu_milli, cpu_milli), (self.memory_mib, memory_mib)):
            if wanted:
                found &= free >= wanted
        return found

    def times(self, cpu_milli: int, memory_mib: int, most: int) -> Ints:
        """How many such members each node could take, up to `most`."""
        count = np.full(len(self.cpu_milli), float(most))
        for free, wanted in ((self.cpu_milli, cpu_milli), (self.memory_mib, memory_mib)):
            if wanted:
                np.minimum(count, np.floor(np.maximum(free, 0) / wanted), out=count)
        return count.astype(np.int64)
