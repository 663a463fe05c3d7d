"""What one scheduling cycle sees: records from the ledger and the cluster, and the arrays made of them.

Records come first, because they are what a test writes down and what the ledger stores; `Snapshot` is built from
them and adds the numpy arrays over nodes that the cycle works on.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling.decisions import Shadow
from dsec_workers.scheduling.fleet import Fleet, Ints, build_fleet
from dsec_workers.scheduling.shapes import MemberShape, member_shape
from dsec_workers.scheduling.withheld import Withheld


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedGang:
    """A gang that waits. Times are seconds since the epoch.

    `wait_before` is the reason the worker already knows (unknown parent wait, backing off), see `not_before`.
    """

    run_id: str
    team: str
    request: GangRequest
    submitted_at: float
    eligible_at: float
    attempt: int = 0
    evictions: int = 0
    not_before: float | None = None
    parent_run_id: str | None = None
    checkpoint_seconds: float | None = None
    restart_seconds: float | None = None
    seconds_saved: tuple[tuple[str, float], ...] = ()
    """Nodes whose cache holds inputs of it, each with the seconds of fetching that it saves there."""
    created_by: str = ""
    """The person whose limit inside the team it counts against."""
    tags: tuple[str, ...] = ()
    evicted_for: tuple[str, ...] = ()
    """The gangs it was ever evicted for: it evicts none of them in turn."""
    attained_seconds: float = 0.0
    """Device-seconds that its earlier attempts have had, for time sharing; counted anew from a lift."""
    expected_seconds: float | None = None
    """How long its next attempt will last, by runs like it that have ended; None: nothing known. For estimates only."""
    waiting_since: float | None = None
    """When it came (back) into the queue; None: at `eligible_at`."""
    lifted: bool = False
    """It has had the one lift that time sharing gives to whoever waits too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGang:
    """A gang that holds devices: reserved, launching, running or evicting."""

    run_id: str
    team: str
    request: GangRequest
    placement: Placement
    submitted_at: float
    started_at: float
    """When this attempt was admitted."""
    first_commit_at: float | None = None
    last_commit_at: float | None = None
    checkpoint_seconds: float | None = None
    restart_seconds: float | None = None
    has_on_evict: bool = False
    evictions: int = 0
    evicting: bool = False
    evicting_for: str | None = None
    """The gang that its devices are promised to, when it is being evicted."""
    promised: bool = False
    """It holds its devices only behind victims that have not left yet."""
    conditional_until: float | None = None
    """A passer's condition: the head of line may evict it from then on, at any priority."""
    created_by: str = ""
    tags: tuple[str, ...] = ()
    attained_seconds: float = 0.0
    """Device-seconds that it had before this attempt, for time sharing."""
    expected_seconds: float | None = None
    """How long this attempt will last, by runs like it that have ended; None: nothing known. For estimates only."""
    moved_at: float | None = None
    """When it was last moved or resized for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What an operator has closed for admission, each with the reason that the waiting are shown."""

    everything: str | None = None
    teams: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """An operator's word on one gang: start it whatever its rank and its limits (`admit`), or keep it waiting."""

    admit: bool
    text: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Snapshot:
    """One pool at one instant. Nothing in it changes: a cycle works on copies, `apply` makes a new one.

    Arrays over devices hold the *slot* of a gang in `running`, or −1.
    """

    pool: str
    fleet: Fleet
    teams: Mapping[str, Team]
    running: tuple[RunningGang | None, ...]
    """By slot; None is a slot that its gang has left."""
    slots: Mapping[str, int]
    holder: Ints
    """Who has the device now."""
    next_holder: Ints
    """To whom the device is promised when its holder has left."""
    shadows: tuple[Shadow, ...] = ()
    usage: Mapping[str, float] = field(default_factory=dict)
    """Device-seconds by team, decayed to now and weighted by GPU model."""
    frozen: Frozen = Frozen()
    withheld: tuple[Withheld, ...] = ()
    overrides: Mapping[str, Override] = field(default_factory=dict)
    """By run id."""
    evicted_lately: Mapping[str, int] = field(default_factory=dict)
    """Evictions that each team's gangs have suffered within the policy's `eviction_window_seconds`."""
    seen: Mapping[MemberShape, float] = field(default_factory=dict)
    """How often members of each shape have arrived lately (a decayed count), beside those who wait and run."""
    failures: Mapping[str, float] = field(default_factory=dict)
    """Node → how many gangs have lately failed there for reasons of the machine, faded to now."""
    demand: Mapping[MemberShape, int] = field(default_factory=dict)
    """Members of each shape that run; kept by `apply`."""

    def gangs(self) -> Iterable[RunningGang]:
        """The gangs that hold devices or are promised some."""
        return (gang for gang in self.running if gang is not None)

    def apply(
        self,
        *,
        finished: Collection[str] = (),
        updated: Sequence[RunningGang] = (),
        nodes: Sequence[Node] | None = None,
        teams: Mapping[str, Team] | None = None,
        shadows: Sequence[Shadow] | None = None,
        usage: Mapping[str, float] | None = None,
        frozen: Frozen | None = None,
        withheld: tuple[Withheld, ...] | None = None,
        overrides: Mapping[str, Override] | None = None,
        evicted_lately: Mapping[str, int] | None = None,
        seen: Mapping[MemberShape, float] | None = None,
        failures: Mapping[str, float] | None = None,
    ) -> "Snapshot":
        """The snapshot after these changes; equal in every decision to one built anew.

        `updated` are gangs that are new or whose record changed; `finished` are the run ids of those that are gone.
        None leaves a part as it is. Costs a copy of the arrays plus the changed gangs, unless nodes changed.
        """
        changed: dict[str, Any] = {
            name: value
            for name, value in {
                "teams": teams,
                "usage": usage,
                "frozen": frozen,
                "withheld": withheld,
                "overrides": overrides,
                "evicted_lately": evicted_lately,
                "seen": seen,
                "failures": failures,
            }.items()
            if value is not None
        }
        if shadows is not None:
            changed["shadows"] = tuple(shadows)
        leaving = set(finished)
        if nodes is not None:
            entering = {gang.run_id: gang for gang in updated}
            kept = [gang for gang in self.gangs() if gang.run_id not in leaving and gang.run_id not in entering]
            fleet = self.fleet if tuple(nodes) == self.fleet.source else build_fleet(nodes)
            fields = _occupied(fleet, [*kept, *updated])
            return replace(self, fleet=fleet, **fields, **changed)
        running, slots = list(self.running), dict(self.slots)
        free_slots = [slot for slot, gang in enumerate(running) if gang is None]
        holder, next_holder, demand = self.holder.copy(), self.next_holder.copy(), dict(self.demand)
        touched: set[int] = set()
        for run_id in leaving | {gang.run_id for gang in updated}:
            slot = slots.get(run_id)
            gang = None if slot is None else running[slot]
            if slot is not None and gang is not None:
                touched.update(_numbers(self.fleet, gang))
                _count(demand, gang, -1)
                if run_id in leaving:
                    del slots[run_id]
                    running[slot] = None
                    free_slots.append(slot)
        for gang in updated:
            if gang.run_id in leaving:
                continue
            slot = slots.get(gang.run_id)
            if slot is None:
                if free_slots:
                    slot = free_slots.pop()
                else:
                    slot = len(running)
                    running.append(None)
                slots[gang.run_id] = slot
            running[slot] = gang
            _count(demand, gang, +1)
            touched.update(_numbers(self.fleet, gang))
        where = np.fromiter(touched, np.int64, len(touched))
        holder[where], next_holder[where] = -1, -1
        around = {int(s) for s in self.holder[where]} | {int(s) for s in self.next_holder[where]}
        around |= {slots[gang.run_id] for gang in updated if gang.run_id in slots}
        around |= {slot for slot, gang in enumerate(running) if gang is not None and (gang.evicting or gang.promised)}
        for slot in sorted(around):
            gang = running[slot] if slot >= 0 else None
            if gang is not None:
                _occupy(self.fleet, gang, slot, running, holder, next_holder, touched)
        changed |= {"running": tuple(running), "slots": slots, "holder": holder, "next_holder": next_holder}
        return replace(self, demand=demand, **changed)


def build_snapshot(
    *,
    nodes: Sequence[Node],
    running: Sequence[RunningGang],
    teams: Mapping[str, Team],
    shadows: Sequence[Shadow] = (),
    usage: Mapping[str, float] | None = None,
    frozen: Frozen | None = None,
    withheld: Sequence[Withheld] = (),
    overrides: Mapping[str, Override] | None = None,
    evicted_lately: Mapping[str, int] | None = None,
    seen: Mapping[MemberShape, float] | None = None,
    failures: Mapping[str, float] | None = None,
    pool: str,
    fleet: Fleet | None = None,
) -> Snapshot:
    """The snapshot of these records. `shadows` are those of the previous plan; `fleet` saves building it again.

    A device that several records claim belongs to the one that is neither leaving nor promised, so that a gang whose
    devices were released early and not yet recorded as gone hides nobody.
    """
    fleet = fleet or build_fleet(nodes)
    return Snapshot(
        pool=pool,
        fleet=fleet,
        teams=dict(teams),
        shadows=tuple(shadows),
        usage=dict(usage or {}),
        frozen=frozen or Frozen(),
        withheld=tuple(withheld),
        overrides=dict(overrides or {}),
        evicted_lately=dict(evicted_lately or {}),
        seen=dict(seen or {}),
        failures=dict(failures or {}),
        **_occupied(fleet, sorted(running, key=lambda gang: gang.run_id)),
    )


def _occupied(fleet: Fleet, gangs: Sequence[RunningGang]) -> dict[str, Any]:
    running = tuple(gangs)
    demand: dict[MemberShape, int] = {}
    holder, next_holder = np.full(fleet.size, -1, np.int64), np.full(fleet.size, -1, np.int64)
    for slot, gang in enumerate(running):
        _occupy(fleet, gang, slot, running, holder, next_holder, None)
        _count(demand, gang, +1)
    return {
        "demand": demand,
        "running": running,
        "slots": {gang.run_id: slot for slot, gang in enumerate(running)},
        "holder": holder,
        "next_holder": next_holder,
    }


@lru_cache(maxsize=4096)
def _shape(
    devices: int, share: str | None, cpus: float | None, memory: int | None, model: str | None, card_bytes: int | None
) -> MemberShape:
    request = GangRequest(
        devices_per_node=devices,
        share=share,
        cpus=cpus,
        memory_bytes=memory,
        gpu_model=model,
        gpu_memory_bytes=card_bytes,
    )
    return member_shape(request)


def _count(demand: dict[MemberShape, int], gang: RunningGang, sign: int) -> None:
    asked = gang.request
    shape = _shape(
        asked.devices_per_node, asked.share, asked.cpus, asked.memory_bytes, asked.gpu_model, asked.gpu_memory_bytes
    )
    left = demand.get(shape, 0) + sign * len(gang.placement.members)
    if left:
        demand[shape] = left
    else:
        demand.pop(shape, None)


def _numbers(fleet: Fleet, gang: RunningGang) -> list[int]:
    known = fleet.device_number
    return [known[uuid] for member in gang.placement.members for uuid in member.devices if uuid in known]


def _occupy(
    fleet: Fleet,
    gang: RunningGang,
    slot: int,
    running: Sequence[RunningGang | None],
    holder: Ints,
    next_holder: Ints,
    only: set[int] | None,
) -> None:
    """Enter one gang's devices (those in `only`, when given)."""
    for number in _numbers(fleet, gang):
        if only is not None and number not in only:
            continue
        if gang.promised:
            next_holder[number] = slot
            continue
        present = running[holder[number]] if holder[number] >= 0 else None
        if present is None or not gang.evicting:
            holder[number] = slot
