"""The waiting as arrays, kept from cycle to cycle: what each gang says of itself, and which gangs say the same.

A *kind* is all that a gang says of itself but for its age; gangs of a kind are one class of a cycle unless something
outside them tells them apart (an order, a parent that runs, evictions in flight).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from dsec_blocks.model.requests import GangRequest
from dsec_workers.scheduling.fleet import Bools, Floats, Ints
from dsec_workers.scheduling.seen import Seen, grown
from dsec_workers.scheduling.snapshot import QueuedGang

MOST_FORGOTTEN = 4096
"""Kinds that nobody is of any more are remembered until there are so many beside those who wait."""


FEW = 64
"""So many that are new are put in their places one by one."""


@dataclass(frozen=True, slots=True)
class GangKind:
    """What gangs of one kind have in common."""

    team: str
    request: GangRequest
    evicted_for: tuple[str, ...]
    devices: int


class Line:
    """See the module. Arrays are by row; `kinds` are numbered."""

    def __init__(self) -> None:
        self.seen: Seen[QueuedGang] = Seen()
        self.kinds: list[GangKind] = []
        self.persons: dict[str, int] = {}
        self.teams: dict[str, int] = {}
        self._kind_of: dict[object, int] = {}
        self.run_ids: npt.NDArray[Any] = np.zeros(0, object)
        self.submitted: Floats = np.zeros(0)
        self.eligible: Floats = np.zeros(0)
        self.returned: Floats = np.zeros(0)
        """When it came back into the line, where that is known; else when it became eligible."""
        self.not_before: Floats = np.zeros(0)
        self.attained: Floats = np.zeros(0)
        self.devices: Ints = np.zeros(0, np.int64)
        self.team: Ints = np.zeros(0, np.int64)
        """Index in `teams`."""
        self.kind: Ints = np.zeros(0, np.int64)
        self.person: Ints = np.zeros(0, np.int64)
        self.child: Bools = np.zeros(0, bool)
        """Another run waits for it."""
        self.seniority: Ints = np.zeros(0, np.int64)
        """Rank by first submit time, then id."""
        self.sparing: dict[str, tuple[str, ...]] = {}
        """Those that were ever evicted, with the gangs that they were evicted for."""
        self._by_submit: Ints = np.zeros(0, np.int64)
        """Rows, first submitted first."""

    def update(self, queue: Sequence[QueuedGang]) -> Ints:
        """The row of each gang of the queue. O(n) for those that are known, whatever they ask for."""
        rows, entered, gone = self.seen.update(queue)
        for _, gang in gone:
            if gang.evicted_for and self.seen.row_of(gang.run_id) is None:
                self.sparing.pop(gang.run_id, None)
        if gone:
            stays = np.ones(len(self.submitted), bool)
            stays[[row for row, _ in gone]] = False
            self._by_submit = self._by_submit[stays[self._by_submit]]
        if entered:
            self._enter(entered)
            self._line_up(entered)
        if entered or gone:
            self.seniority[self._by_submit] = np.arange(len(self._by_submit))
        return rows

    def _line_up(self, rows: Sequence[int]) -> None:
        """Put new rows in their places by first submit time, then run id."""
        records = self.seen.records

        def key(row: int) -> tuple[float, str]:
            gang = records[row]
            assert gang is not None
            return gang.submitted_at, gang.run_id

        if len(rows) > FEW:
            self._by_submit = np.array(sorted([*self._by_submit.tolist(), *rows], key=key), np.int64)
            return
        for row in rows:
            times = self.submitted[self._by_submit]
            low = int(np.searchsorted(times, self.submitted[row], side="left"))
            high = int(np.searchsorted(times, self.submitted[row], side="right"))
            place = bisect_left(self._by_submit[low:high].tolist(), key(row), key=key) + low
            self._by_submit = np.insert(self._by_submit, place, row)

    @property
    def overgrown(self) -> bool:
        """Whether most of its kinds are of gangs that are gone."""
        return len(self.kinds) > 2 * len(self.seen.records) + MOST_FORGOTTEN

    def number_of(self, person: str) -> int:
        """The number of a person."""
        return self.persons.setdefault(person, len(self.persons))

    def _enter(self, rows: Sequence[int]) -> None:
        size = len(self.seen.records)
        for name in (
            "run_ids", "submitted", "eligible", "returned", "not_before", "attained", "devices", "team", "kind",
            "person", "child", "seniority",
        ):  # fmt: skip
            setattr(self, name, grown(getattr(self, name), size))
        for row in rows:
            gang = self.seen.records[row]
            assert gang is not None
            self.run_ids[row] = gang.run_id
            self.submitted[row], self.eligible[row] = gang.submitted_at, gang.eligible_at
            self.returned[row] = gang.eligible_at if gang.waiting_since is None else gang.waiting_since
            self.not_before[row] = -inf if gang.not_before is None else gang.not_before
            self.attained[row], self.devices[row] = gang.attained_seconds, gang.request.devices
            self.team[row] = self.teams.setdefault(gang.team, len(self.teams))
            self.kind[row] = self._kind(gang)
            self.person[row] = self.number_of(gang.created_by)
            self.child[row] = gang.parent_run_id is not None
            if gang.evicted_for:
                self.sparing[gang.run_id] = gang.evicted_for

    def _kind(self, gang: QueuedGang) -> int:
        request = gang.request
        # What an eviction would cost it matters where no contract says when it ends.
        overhead = None if request.max_runtime_seconds is not None else (gang.checkpoint_seconds, gang.restart_seconds)
        key = (
            gang.team, request.nodes, request.devices_per_node, request.gpu_model, request.gpu_memory_bytes,
            request.topology, request.priority, request.kind, request.preemptible, request.min_nodes, request.cpus,
            request.memory_bytes, request.share, gang.seconds_saved, request.max_runtime_seconds,
            request.grace_seconds, overhead, gang.evicted_for,
        )  # fmt: skip
        number = self._kind_of.get(key)
        if number is None:
            number = self._kind_of[key] = len(self.kinds)
            self.kinds.append(GangKind(gang.team, request, gang.evicted_for, request.devices))
        return number
