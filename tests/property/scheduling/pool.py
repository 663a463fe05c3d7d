"""A pool that carries plans out as the worker does, on a clock of its own: what property tests let run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Plan, Policy, QueuedGang, RunningGang, Snapshot, build_snapshot, plan
from dsec_workers.scheduling.consolidation import COMING, to_come


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
                self._goes_on(change.run_id, change.placement, for_run=admit.run_id)
            gang = self.waiting.pop(admit.run_id)
            behind = bool(admit.victims or admit.resizes or admit.moves or admit.waits_for)
            self._set(self._starting(gang, admit.placement, result, promised=behind))
            if not self.running[admit.run_id].promised:
                self.started.setdefault(admit.run_id, self.now)
        for recall in result.recalls:
            if not recall.passed:
                self.pairs.add((recall.for_run, recall.run_id))
            self._set(replace(self.running[recall.run_id], evicting=True, evicting_for=recall.for_run))
        for growth in result.growths:
            self._goes_on(growth.run_id, growth.placement, for_run=growth.run_id)
        self.snapshot = self.snapshot.apply(shadows=result.shadows)
        return result

    def victims_leave(self) -> None:
        """All that were told are gone, and wait again, but for those that go on at once elsewhere."""
        leaving = [gang for gang in self.running.values() if gang.evicting]
        for gang in leaving:
            del self.running[gang.run_id]
            self._touched[gang.run_id] = None
            coming = self.running.pop(gang.run_id + COMING, None)
            if coming is not None:
                self._touched[coming.run_id] = None
                self.ran[gang.run_id] = self.ran.get(gang.run_id, 0.0) + self.now - gang.started_at
                attained = gang.attained_seconds + (self.now - gang.started_at) * len(gang.placement.devices)
                self._set(
                    replace(
                        coming, run_id=gang.run_id, promised=False, started_at=self.now, evictions=gang.evictions + 1,
                        attained_seconds=attained,
                    )
                )  # fmt: skip
                continue
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

    def _goes_on(self, run_id: str, placement: Placement, *, for_run: str) -> None:
        """It is told to leave, and the place where it goes on is reserved for it with that."""
        gang = replace(self.running[run_id], evicting=True, evicting_for=for_run, moved_at=self.now)
        free = self._unheld(placement, but_by=run_id)
        assert free, f"{run_id} was sent to {placement}, where others are"
        self.changes.append((self.now, run_id))
        self._set(gang)
        self._set(to_come(gang, placement, since=self.now))

    def _unheld(self, placement: Placement, *, but_by: str) -> bool:
        others = [gang for name, gang in self.running.items() if name != but_by]
        return not {uuid for gang in others for uuid in gang.placement.devices} & set(placement.devices)

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
            if gang.run_id.endswith(COMING):
                continue  # its present attempt has to leave first
            if gang.promised and not held & set(gang.placement.devices) and self._enough_beside(gang):
                self._set(replace(gang, promised=False, started_at=self.now))
                self.started.setdefault(gang.run_id, self.now)
                held |= set(gang.placement.devices)

    def _enough_beside(self, gang: RunningGang) -> bool:
        """Whether those who have not left yet leave it the processors and memory that it needs."""
        stay = [other for other in self.running.values() if not other.promised]
        on = {member.node for member in gang.placement.members}
        return all(not self.overdrawn(node, [*stay, gang]) for node in self.nodes if node.name in on)

    @staticmethod
    def overdrawn(node: Node, gangs: Sequence[RunningGang]) -> bool:
        """Whether these use more of its processors or memory together than a node has."""
        here = [gang.request for gang in gangs for member in gang.placement.members if member.node == node.name]
        cpus, memory = sum(r.cpus or 0 for r in here), sum(r.memory_bytes or 0 for r in here)
        return (node.cpus is not None and cpus > node.cpus) or (
            node.memory_bytes is not None and memory > node.memory_bytes
        )
