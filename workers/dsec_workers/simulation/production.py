"""The pool's own scheduler in a replay: the production `plan()` on a snapshot that is kept current.

`plan()` is asked with the same values that the worker gives it, and no others. It is not asked when its answer is
known: a job like one that was refused a moment ago, in a cluster where nothing has changed since, is refused too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from dsec_blocks.model.devices import Node
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Plan, Policy, QueuedGang, RunningGang, Snapshot, build_snapshot, plan
from dsec_workers.scheduling.cost import hand_over_seconds
from dsec_workers.simulation.jobs import Waiting
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.schedulers import Start
from dsec_workers.simulation.site import Site


class Production:
    """See the module."""

    def __init__(
        self,
        nodes: Sequence[Node],
        teams: Mapping[str, Team],
        policy: Policy,
        *,
        overheads: Overheads,
        name: str = "dsec",
    ) -> None:
        self.name, self.policy, self.overheads = name, policy, overheads
        self.time_shares = bool(getattr(policy, "time_sharing", False))
        self.half_life_seconds = float(getattr(policy, "usage_half_life_seconds", 86400.0))
        self.snapshot: Snapshot = build_snapshot(nodes=nodes, running=(), teams=teams, pool="simulated")
        self.waiting: dict[str, QueuedGang] = {}
        self.plan: Plan = Plan()
        """What was decided last, reasons included."""
        self._jobs: dict[str, Waiting] = {}
        self._finished: list[str] = []
        self._updated: dict[str, RunningGang] = {}
        self._usage = dict.fromkeys(teams, 0.0)
        self._held = dict.fromkeys(teams, 0)
        self._used_until = 0.0
        self._dirty = True
        self._refused: set[tuple[str, int]] = set()
        self._wake: float | None = None

    # ---- what happens -----------------------------------------------------------------------------------------

    def arrived(self, job: Waiting, now: float) -> None:
        """In the line; the age of one that was evicted counts from its first arrival."""
        self._jobs[job.id] = job
        self.waiting[job.id] = QueuedGang(
            run_id=job.id,
            team=job.team,
            request=job.request,
            submitted_at=job.submitted_at,
            eligible_at=job.submitted_at,
            evictions=job.evictions,
            checkpoint_seconds=self.overheads.checkpoint_seconds,
            restart_seconds=self.overheads.restart_seconds,
        )
        if job.evictions or (job.team, id(job.request)) not in self._refused:
            self._dirty = True

    def began(self, id: str, now: float) -> None:
        """A promise is kept: its devices are its own."""
        gang = self._record(id)
        self._charge(now)
        self._held[gang.team] = self._held.get(gang.team, 0) + len(gang.placement.devices)
        if gang.promised or gang.started_at != now:
            self._updated[id] = replace(gang, promised=False, started_at=now)
            self._dirty = True

    def left(self, id: str, now: float, *, finished: bool) -> None:
        """Its devices are free."""
        gang = self._record(id)
        self._charge(now)
        if not gang.promised:
            self._held[gang.team] -= len(gang.placement.devices)
        self._updated.pop(id, None)
        self._finished.append(id)
        if finished:
            del self._jobs[id]
        self._dirty = True

    def wake_at(self) -> float | None:
        """When somebody may be evicted who may not now."""
        return self._wake

    def _record(self, id: str) -> RunningGang:
        gang = self._updated.get(id) or self.snapshot.running[self.snapshot.slots[id]]
        assert gang is not None
        return gang

    def _charge(self, now: float) -> None:
        """Usage as the ledger keeps it: device-seconds that lose half their weight every half-life."""
        elapsed = now - self._used_until
        if elapsed > 0:
            left = 0.5 ** (elapsed / self.half_life_seconds)
            for team, held in self._held.items():
                self._usage[team] = self._usage.get(team, 0.0) * left + held * elapsed
            self._used_until = now

    # ---- what is decided --------------------------------------------------------------------------------------

    def decide(self, site: Site, now: float) -> Sequence[Start]:
        """One cycle, if anything may have changed."""
        if not (self._dirty or (self._wake is not None and self._wake <= now)):
            return []
        self._charge(now)
        self.snapshot = self.snapshot.apply(
            finished=self._finished, updated=list(self._updated.values()), usage=dict(self._usage)
        )
        self._finished, self._updated = [], {}
        if not self.waiting:
            self._settle(now)
            return []
        self.plan = plan(self.snapshot, list(self.waiting.values()), self.policy, now)
        starts = [self._start(admit_number, site, now) for admit_number in range(len(self.plan.admits))]
        self.snapshot = self.snapshot.apply(updated=list(self._updated.values()), shadows=self.plan.shadows)
        self._updated = {}
        self._settle(now)
        # What the budget of one cycle left undecided is decided in the next.
        self._dirty = len(self.plan.admits) >= self.policy.max_admissions
        return starts

    def _start(self, number: int, site: Site, now: float) -> Start:
        admit = self.plan.admits[number]
        gang = self.waiting.pop(admit.run_id)
        for victim in admit.victims:
            self._updated[victim.run_id] = replace(
                self._record(victim.run_id), evicting=True, evicting_for=admit.run_id
            )
        self._updated[gang.run_id] = RunningGang(
            run_id=gang.run_id,
            team=gang.team,
            request=gang.request,
            placement=admit.placement,
            submitted_at=gang.submitted_at,
            started_at=now,
            checkpoint_seconds=gang.checkpoint_seconds,
            restart_seconds=gang.restart_seconds,
            has_on_evict=self.overheads.snapshot_on_evict,
            evictions=gang.evictions,
            promised=bool(admit.victims or admit.waits_for),
            conditional_until=self.plan.conditional.get(gang.run_id),
        )
        return Start(
            id=gang.run_id,
            seats=site.seats_of(admit.placement),
            victims=tuple(victim.run_id for victim in admit.victims),
            waits_for=admit.waits_for,
        )

    def _settle(self, now: float) -> None:
        self._dirty = False
        self._refused = {(gang.team, id(gang.request)) for gang in self.waiting.values()}
        self._wake = self._next_change(now) if self.waiting else None

    def _next_change(self, now: float) -> float | None:
        """The first time at which a minimum run ends or a passer's condition falls due."""
        first = inf
        for gang in self.snapshot.gangs():
            if gang.evicting or gang.promised:
                continue
            due = gang.started_at + self.policy.min_run_seconds
            if gang.first_commit_at is None and due > now:
                first = min(first, due)
            if gang.conditional_until is not None:
                due = gang.conditional_until - hand_over_seconds(gang, self.policy)
                if due > now:
                    first = min(first, due)
        return None if first == inf else first
