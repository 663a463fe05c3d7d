"""Whom a gang that asks for no device has told to leave, so that its members find the processors and memory they need.

It holds no device that could be promised behind its victims. So they are told first, what they leave is kept for it as
a place is kept for a head of line, and it is admitted once they have gone.

Rights: strictly lower base priority, and nothing else. Who takes no device borrows nothing and reclaims nothing, and
levels of time sharing are about devices. Minimum runs, the rate at which teams suffer evictions, and that nobody evicts
whom it was evicted for hold as for everybody.

Price: that of any eviction, in device-seconds (`cost`). A gang without devices costs none, so those go first. Of equals
the fewest, then the newest. Nobody is moved or shrunk for it: who makes room leaves whole.

Members may be several on one node, so what counts is how many all nodes hold together: one member looks at each node by
itself, several at all of them. Exact up to the policy's `exact_candidates`; above, the nodes are cleared for one member
after the other where that costs least, and whoever is not needed is left out again.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.hosts import Hosts
from dsec_workers.scheduling.options import How, Option
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.tenants import nodes_of
from dsec_workers.scheduling.trial import Trial
from dsec_workers.scheduling.victims import Budget

Key = tuple[int, int, tuple[float, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Tenant:
    """What one gang uses on the nodes that are looked at: place in them → thousandths of processors, MiB of memory."""

    slot: int
    cost: int
    newest: tuple[float, str]
    uses: tuple[tuple[int, int, int], ...]


class Clearing:
    """One search for gang `number` of a class that asks for no device; `budget` are the sets it may look at."""

    def __init__(self, trial: Trial, kind: GangClass, number: int, budget: int) -> None:
        self.trial, self.kind, self.shape, self.budget = trial, kind, kind.least, Budget(budget)
        self.avoided = trial.avoided(kind, number, by_contract=False)
        self.before = trial.hosts_for(trial.soon, self.avoided)
        self.best: tuple[Key, tuple[_Tenant, ...]] | None = None
        self._keeps = [trial.kept[index] for index in self.avoided]

    def run(self) -> tuple[Option, ...]:
        """Who leaves; nobody where nothing helps, or where those who are leaving anyway leave enough."""
        trial, roster = self.trial, self.trial.roster
        allowed = roster.movable & roster.exposed & (roster.allowance > 0)[roster.team]
        allowed &= roster.priority < self.kind.request.priority
        for run_id in self.kind.evicted_for:
            if run_id in trial.snapshot.slots:
                allowed[trial.snapshot.slots[run_id]] = False
        if not allowed.any() or self._hold(self.before):
            return ()
        tenants = trial.beside.tenants.of_slots(allowed)
        most = self.before.copy()
        tenants.leave(most)
        if not self._hold(most):
            return ()
        helped = trial.open_nodes & (self._times(most) > self._times(self.before))
        if self.shape.members == 1:
            domains: Iterator[Sequence[int]] = ([node] for node in np.flatnonzero(helped).tolist())
        else:
            domains = iter([np.flatnonzero(helped).tolist()])
        by_node: dict[int, list[tuple[int, int, int]]] = {}
        for slot, node, cpu, memory in zip(
            tenants.slot.tolist(), tenants.node.tolist(), tenants.cpu_milli.tolist(), tenants.memory_mib.tolist(),
            strict=True,
        ):  # fmt: skip
            by_node.setdefault(node, []).append((slot, int(cpu), int(memory)))
        for nodes in domains:
            if self.budget.left < 0:
                break
            self._solve(nodes, by_node)
        return () if self.best is None else tuple(map(self._option, self.best[1]))

    # ---- what there is ----------------------------------------------------------------------------------------

    def _times(self, hosts: Hosts) -> Ints:
        return hosts.times(self.shape.cpu_milli, self.shape.memory_mib, self.shape.members)

    def _hold(self, hosts: Hosts) -> bool:
        """Whether all members find room on the nodes that take work."""
        open_nodes: Bools = self.trial.open_nodes
        return int(self._times(hosts)[open_nodes].sum()) >= self.shape.members

    def _holds(self, chosen: Collection[_Tenant]) -> bool:
        """Whether the gang fits once these have left, beside what is kept for others, and they may all be told."""
        if not self._tolerable(chosen):
            return False
        hosts, gone = self.before.copy(), []
        for tenant in chosen:
            gang = self.trial.roster.gang(tenant.slot)
            nodes = nodes_of(self.trial.fleet, gang.placement.members)
            hosts.take(gang.request, nodes, -1)
            gone.append((tenant.slot, nodes))
        return self._hold(hosts.least(self.trial.beside.left_by(self._keeps, gone)))

    def _tolerable(self, chosen: Collection[_Tenant]) -> bool:
        """Whether no team suffers more evictions than it may."""
        roster = self.trial.roster
        teams = [int(roster.team[tenant.slot]) for tenant in chosen]
        return all(teams.count(team) <= roster.allowance[team] for team in teams)

    def _option(self, tenant: _Tenant) -> Option:
        return Option(tenant.slot, How.EVICT, tenant.cost, int(self.trial.roster.devices[tenant.slot]))

    # ---- one domain -------------------------------------------------------------------------------------------

    def _solve(self, nodes: Sequence[int], by_node: dict[int, list[tuple[int, int, int]]]) -> None:
        uses: dict[int, list[tuple[int, int, int]]] = {}
        for place, node in enumerate(nodes):
            for slot, cpu, memory in by_node[node]:
                uses.setdefault(slot, []).append((place, cpu, memory))
        candidates = sorted((self._tenant(slot, mine) for slot, mine in uses.items()), key=lambda t: (t.cost, t.newest))
        free = [(float(self.before.cpu_milli[node]), float(self.before.memory_mib[node])) for node in nodes]
        elsewhere = self.trial.open_nodes.copy()
        elsewhere[list(nodes)] = False
        need = self.shape.members - int(self._times(self.before)[elsewhere].sum())
        if len(candidates) <= self.trial.policy.exact_candidates:
            self._branch(candidates, 0, (), free, need)
        else:
            found = self._greedy(candidates, free, need)
            if found is not None:
                self._offer(self._trimmed(found))

    def _tenant(self, slot: int, uses: list[tuple[int, int, int]]) -> _Tenant:
        gang = self.trial.roster.gang(slot)
        return _Tenant(slot, self.trial.roster.cost(slot), (-gang.started_at, gang.run_id), tuple(uses))

    def _room(self, free: Sequence[tuple[float, float]]) -> int:
        """How many members these nodes hold."""
        cpu, memory, most = self.shape.cpu_milli, self.shape.memory_mib, self.shape.members
        total = 0
        for cpu_free, memory_free in free:
            times = most
            for left, wanted in ((cpu_free, cpu), (memory_free, memory)):
                if wanted and left < inf:
                    times = min(times, int(max(0.0, left) // wanted))
            total += times
        return total

    def _branch(
        self,
        candidates: Sequence[_Tenant],
        index: int,
        chosen: tuple[_Tenant, ...],
        free: list[tuple[float, float]],
        need: int,
    ) -> None:
        """The best set that has `chosen` and any of the candidates from `index` on."""
        if not self.budget.spend():
            return
        if self._room(free) >= need and (not self._keeps or self._holds(chosen)):
            self._offer(chosen)
            return
        rest = candidates[index:]
        if not rest or self._room(_without(free, rest)) < need:
            return
        if self.best is not None and (_cost(chosen) + rest[0].cost, len(chosen) + 1) > self.best[0][:2]:
            return
        if self._tolerable((*chosen, rest[0])):
            self._branch(candidates, index + 1, (*chosen, rest[0]), _without(free, rest[:1]), need)
        self._branch(candidates, index + 1, chosen, free, need)

    def _greedy(
        self, candidates: Sequence[_Tenant], free: list[tuple[float, float]], need: int
    ) -> tuple[_Tenant, ...] | None:
        """Room for one member after the other, each time on the node where that costs least."""
        chosen: tuple[_Tenant, ...] = ()
        on: dict[int, list[_Tenant]] = {}
        for tenant in candidates:
            for place, _, _ in tenant.uses:
                on.setdefault(place, []).append(tenant)
        while self._room(free) < need or not self._holds(chosen):
            fills = (
                self._fill(place, [t for t in mine if t not in chosen], chosen, free) for place, mine in on.items()
            )
            fill = min((fill for fill in fills if fill), key=lambda f: (_cost(f), len(f), f[0].newest), default=None)
            if fill is None or not self.budget.spend():
                return None
            chosen, free = (*chosen, *fill), _without(free, fill)
        return chosen

    def _fill(
        self, place: int, tenants: Sequence[_Tenant], chosen: tuple[_Tenant, ...], free: list[tuple[float, float]]
    ) -> tuple[_Tenant, ...]:
        """The cheapest first on one node until it holds a member more; nobody where it never does."""
        fill: tuple[_Tenant, ...] = ()
        before = self._room(free[place : place + 1])
        for tenant in tenants:
            if self._tolerable((*chosen, *fill, tenant)):
                fill = (*fill, tenant)
                if self._room(_without(free, fill)[place : place + 1]) > before:
                    return fill
        return ()

    def _trimmed(self, chosen: tuple[_Tenant, ...]) -> tuple[_Tenant, ...]:
        """The choice without anybody who is not needed, the dearest left out first."""
        kept = list(chosen)
        for tenant in sorted(chosen, key=lambda t: (-t.cost, t.newest)):
            rest = [other for other in kept if other is not tenant]
            if self._holds(rest):
                kept = rest
        return tuple(kept)

    def _offer(self, chosen: tuple[_Tenant, ...]) -> None:
        """The last check, and whether it is better: everybody may be told, all fit, and nobody can be left out."""
        if not self._holds(chosen) or any(self._holds([o for o in chosen if o is not out]) for out in chosen):
            return
        key = (
            _cost(chosen),
            len(chosen),
            tuple(sorted(tenant.newest[0] for tenant in chosen)),
            tuple(sorted(tenant.newest[1] for tenant in chosen)),
        )
        if self.best is None or key < self.best[0]:
            self.best = (key, chosen)


def _cost(chosen: Collection[_Tenant]) -> int:
    return sum(tenant.cost for tenant in chosen)


def _without(free: list[tuple[float, float]], gone: Sequence[_Tenant]) -> list[tuple[float, float]]:
    """What is free once these have left."""
    after = list(free)
    for tenant in gone:
        for place, cpu, memory in tenant.uses:
            after[place] = (after[place][0] + cpu, after[place][1] + memory)
    return after
