"""A pool that carries plans out as the worker does, on a clock of its own: what property tests let run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Plan, Policy, QueuedGang, RunningGang, Snapshot, build_snapshot, plan


class Pool:
    """Nodes, teams, gangs and a clock. `history` are all plans, oldest first, each with its time.

    Every gang commits all the time, and is over once it has run its `max_runtime_seconds`, however often it was
    evicted; None runs for ever.
    """

    def __init__(self, nodes: Sequence[Node], teams: dict[str, Team], policy: Policy, now: float) -> None:
        self.nodes, self.teams, self.policy, self.now = list(nodes), teams, policy, now
        self.waiting: dict[str, QueuedGang] = {}
        self.running: dict[str, RunningGang] = {}
        self.history: list[tuple[float, Plan]] = []
        self.started: dict[str, float] = {}
        """Run id → when it first had its devices."""
        self.ran: dict[str, float] = {}
        """Run id → seconds of work behind it in earlier attempts."""
        self.pairs: set[tuple[str, str]] = set()
        """(preemptor, victim), by priority or reclaim."""
        self.changes: list[tuple[float, str]] = []
        """Moves and resizes, with their time."""
        self.snapshot = build_snapshot(nodes=self.nodes, running=[], teams=teams, pool="p")
        self._touched: dict[str, RunningGang | None] = {}

    # ---- what happens to it -----------------------------------------------------------------------------------

    def submit(self, *gangs: QueuedGang) -> None:
        self.waiting.update({gang.run_id: gang for gang in gangs})

    def put(self, *gangs: RunningGang) -> None:
        """Gangs that run already."""
        for gang in gangs:
            self._set(gang)
            self.started[gang.run_id] = gang.started_at

    def finish(self, run_id: str) -> None:
        del self.running[run_id]
        self._touched[run_id] = None
        self._promote()

    def cycle(self) -> Plan:
        """Plan once and carry it out; victims are told, not gone."""
        self._renew()
        result = plan(self.snapshot, list(self.waiting.values()), self.policy, self.now)
        self.history.append((self.now, result))
        for admit in result.admits:
            for victim in admit.victims:
                self._set(replace(self.running[victim.run_id], evicting=True, evicting_for=admit.run_id))
                self.pairs.add((admit.run_id, victim.run_id))
            for change in (*admit.resizes, *admit.moves):
                self._change(change.run_id, change.placement)
            gang = self.waiting.pop(admit.run_id)
            self._set(self._starting(gang, admit.placement, result, promised=bool(admit.victims or admit.waits_for)))
            if not self.running[admit.run_id].promised:
                self.started.setdefault(admit.run_id, self.now)
        for recall in result.recalls:
            self._set(replace(self.running[recall.run_id], evicting=True, evicting_for=recall.for_run))
        for growth in result.growths:
            self._change(growth.run_id, growth.placement)
        self.snapshot = self.snapshot.apply(shadows=result.shadows)
        return result

    def victims_leave(self) -> None:
        """All that were told are gone, and wait again."""
        leaving = [gang for gang in self.running.values() if gang.evicting]
        for gang in leaving:
            del self.running[gang.run_id]
            self._touched[gang.run_id] = None
            past = () if gang.evicting_for is None else (gang.evicting_for,)
            known = self._past.get(gang.run_id, ())
            self._past[gang.run_id] = (*known, *(name for name in past if name not in known))
            seconds = 0.0 if gang.promised else self.now - gang.started_at
            self.ran[gang.run_id] = self.ran.get(gang.run_id, 0.0) + seconds
            self.waiting[gang.run_id] = QueuedGang(
                run_id=gang.run_id, team=gang.team, request=gang.request, submitted_at=gang.submitted_at,
                eligible_at=gang.submitted_at, evictions=gang.evictions + 1, evicted_for=self._past[gang.run_id],
                attained_seconds=gang.attained_seconds + seconds * len(gang.placement.devices),
                waiting_since=self.now, lifted=gang.run_id in self._lifted,
            )  # fmt: skip
        self._promote()

    def advance(self, seconds: float) -> None:
        """Time passes; what has run its time is over."""
        self.now += seconds
        for gang in list(self.running.values()):
            limit = gang.request.max_runtime_seconds
            done = self.ran.get(gang.run_id, 0.0) + self.now - gang.started_at
            if limit is not None and not gang.promised and not gang.evicting and done >= limit:
                self.finish(gang.run_id)

    def next_end(self) -> float | None:
        """Seconds until the next gang has run its time."""
        left = [
            gang.request.max_runtime_seconds - self.ran.get(gang.run_id, 0.0) - (self.now - gang.started_at)
            for gang in self.running.values()
            if gang.request.max_runtime_seconds is not None and not gang.promised
        ]
        return max(0.0, min(left)) if left else None

    def rebuilt(self) -> Snapshot:
        """The snapshot built anew from the records."""
        return build_snapshot(
            nodes=self.nodes, running=list(self.running.values()), teams=self.teams,
            shadows=self.snapshot.shadows, pool="p",
        )  # fmt: skip

    def current(self) -> Snapshot:
        """The snapshot kept up to date change by change."""
        self._renew()
        return self.snapshot

    # ---- how it keeps its books -------------------------------------------------------------------------------

    @property
    def _past(self) -> dict[str, tuple[str, ...]]:
        return self.__dict__.setdefault("_evicted_for", {})

    @property
    def _lifted(self) -> set[str]:
        return {run_id for _, result in self.history for run_id in result.lifted}

    def _renew(self) -> None:
        for run_id, gang in list(self.running.items()):
            if not gang.evicting and not gang.promised:
                self.running[run_id] = replace(gang, last_commit_at=self.now, first_commit_at=gang.started_at)
                self._touched[run_id] = self.running[run_id]
        self.snapshot = self.snapshot.apply(
            finished=[run_id for run_id, gang in self._touched.items() if gang is None],
            updated=[gang for gang in self._touched.values() if gang is not None],
        )
        self._touched.clear()

    def _set(self, gang: RunningGang) -> None:
        self.running[gang.run_id] = self._touched[gang.run_id] = gang

    def _change(self, run_id: str, placement: Placement) -> None:
        gang = self.running[run_id]
        self.changes.append((self.now, run_id))
        self._set(replace(gang, placement=placement, moved_at=self.now))

    def _starting(self, gang: QueuedGang, placement: Placement, result: Plan, *, promised: bool) -> RunningGang:
        known: dict[str, Any] = {"attained_seconds": 0.0 if gang.run_id in result.lifted else gang.attained_seconds}
        return RunningGang(
            run_id=gang.run_id, team=gang.team, request=gang.request, placement=placement,
            submitted_at=gang.submitted_at, started_at=self.now, evictions=gang.evictions, promised=promised,
            conditional_until=result.conditional.get(gang.run_id), **known,
        )  # fmt: skip

    def _promote(self) -> None:
        """Promises whose devices are free are kept."""
        held = {uuid for gang in self.running.values() if not gang.promised for uuid in gang.placement.devices}
        for gang in list(self.running.values()):
            if gang.promised and not held & set(gang.placement.devices):
                self._set(replace(gang, promised=False, started_at=self.now))
                self.started.setdefault(gang.run_id, self.now)
                held |= set(gang.placement.devices)
