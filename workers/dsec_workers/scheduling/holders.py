"""The running gangs as arrays, kept from cycle to cycle: what each record says, by row; for one snapshot by slot."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from dsec_blocks.model.requests import Kind
from dsec_workers.scheduling.fleet import Bools, Fleet, Floats, Ints
from dsec_workers.scheduling.hosts import Hosts, host_needs
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.seen import Seen, grown
from dsec_workers.scheduling.snapshot import RunningGang

_FLOATS = (
    "submitted_at", "started_at", "first_commit_at", "max_runtime", "expected", "grace", "conditional_until",
    "checkpoint", "moved_at", "attained",
)  # fmt: skip
_INTS = ("team", "devices", "priority", "members", "least", "stranded", "cpu_milli", "memory_mib")
_BOOLS = ("evictable", "evicting", "promised", "endless", "shares")


@dataclass(slots=True)
class Slots:
    """One snapshot's running gangs by slot; slots that were left have `there` false. NaN is what is not known."""

    there: Bools
    submitted_at: Floats
    started_at: Floats
    first_commit_at: Floats
    max_runtime: Floats
    expected: Floats
    """Seconds from start to end, by runs like it."""
    grace: Floats
    conditional_until: Floats
    checkpoint: Floats
    """Measured seconds of a checkpoint."""
    moved_at: Floats
    attained: Floats
    team: Ints
    """Index in `names`."""
    devices: Ints
    priority: Ints
    members: Ints
    least: Ints
    """Members that it accepts, 0 when it is not elastic."""
    stranded: Ints
    """Devices of it that nobody could take, were they free."""
    cpu_milli: Ints
    """Of each member, as `memory_mib` is."""
    memory_mib: Ints
    evictable: Bools
    evicting: Bools
    promised: Bools
    endless: Bools
    """A service: without a contract it is not expected to end."""
    shares: Bools
    """It would share its time, if the policy has it so."""
    names: list[str]
    """Of teams."""
    load: Ints
    """Members on each node."""
    beside: Hosts
    """What all leave of processors and memory."""
    beside_staying: Hosts
    """What those leave that are not being evicted."""

    def expected_ends(self, policy: Policy, now: float) -> Floats:
        """When each is expected to leave its devices; see `shadow.expected_end`, which says the same of one."""
        default = np.where(self.expected > 0, self.expected, policy.default_runtime_seconds)
        elapsed = now - self.started_at
        doubled = np.ldexp(default, np.frexp(np.maximum(elapsed / default, 0.5))[1])
        runtime = np.where(elapsed < default, default, doubled)
        runtime = np.where(self.endless, inf, runtime)
        runtime = np.where(np.isnan(self.max_runtime), runtime, self.max_runtime)
        ends = np.fmin(self.started_at + runtime, self.conditional_until)
        ends = np.where(self.evicting, now + self.grace, np.maximum(now, ends))
        return np.asarray(np.where(self.there, ends, now), float)


class Holders:
    """See the module; of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.seen: Seen[RunningGang] = Seen()
        self.names: dict[str, int] = {}
        self._arrays: dict[str, npt.NDArray[Any]] = {
            **{name: np.zeros(1) for name in _FLOATS},
            **{name: np.zeros(1, np.int64) for name in _INTS},
            **{name: np.zeros(1, bool) for name in _BOOLS},
        }
        self._load: Ints = np.zeros(len(fleet.nodes), np.int64)
        self._beside, self._beside_staying = Hosts.empty(fleet), Hosts.empty(fleet)

    def update(self, running: Sequence[RunningGang | None]) -> Slots:
        """The arrays of these, which are copies. O(n), and more only for those that were not there before."""
        rows, entered, gone = self.seen.update(running)
        self._count([gang for _, gang in gone], -1)
        if entered:
            self._enter(entered)
        there = rows >= 0
        by_slot = {name: values[rows] for name, values in self._arrays.items()}
        for name in (*_INTS, *_BOOLS):
            by_slot[name][~there] = 0
        return Slots(
            there=there,
            names=list(self.names),
            load=self._load.copy(),
            beside=self._beside.copy(),
            beside_staying=self._beside_staying.copy(),
            **by_slot,
        )

    def _enter(self, rows: Sequence[int]) -> None:
        size = len(self.seen.records)
        for name, values in self._arrays.items():
            self._arrays[name] = grown(values, size)
        entered = [gang for row in rows if (gang := self.seen.records[row]) is not None]
        facts = [self._facts(gang) for gang in entered]
        where = np.array(rows, np.int64)
        for name, column in zip((*_FLOATS, *_INTS, *_BOOLS), zip(*facts, strict=True), strict=True):
            self._arrays[name][where] = column
        self._count(entered, 1)

    def _facts(self, gang: RunningGang) -> tuple[float, ...]:
        request, devices = gang.request, gang.placement.devices
        known, usable = self.fleet.device_number, self.fleet.device_usable
        evictable = request.evictable
        return (
            gang.submitted_at,
            gang.started_at,
            nan if gang.first_commit_at is None else gang.first_commit_at,
            nan if request.max_runtime_seconds is None else request.max_runtime_seconds,
            nan if gang.expected_seconds is None else gang.expected_seconds,
            request.grace_seconds,
            nan if gang.conditional_until is None else gang.conditional_until,
            nan if gang.checkpoint_seconds is None else gang.checkpoint_seconds,
            nan if gang.moved_at is None else gang.moved_at,
            gang.attained_seconds,
            self.names.setdefault(gang.team, len(self.names)),
            len(devices),
            request.priority,
            len(gang.placement.members),
            request.min_nodes or 0,
            sum(uuid not in known or not usable[known[uuid]] for uuid in devices),
            *host_needs(request),
            evictable,
            gang.evicting,
            gang.promised,
            request.max_runtime_seconds is None and request.kind is Kind.INFERENCE,
            evictable and request.kind is Kind.TRAINING,
        )

    def _count(self, gangs: Sequence[RunningGang], times: int) -> None:
        """Their members sit on their nodes; −1 times: do no longer."""
        known = self.fleet.node_number
        nodes = [known[m.node] for gang in gangs for m in gang.placement.members if m.node in known]
        np.add.at(self._load, np.array(nodes, np.int64), times)
        for gang in gangs:
            if gang.request.cpus or gang.request.memory_bytes:
                mine = np.array([known[m.node] for m in gang.placement.members if m.node in known], np.int64)
                self._beside.take(gang.request, mine, times)
                if not gang.evicting:
                    self._beside_staying.take(gang.request, mine, times)
