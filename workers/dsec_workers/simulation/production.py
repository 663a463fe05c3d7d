"""The pool's own scheduler in a replay: the production `plan()` on a snapshot that is kept current.

`plan()` is asked with the values that the worker gives it, and no others: the commits that a gang has made, what has
arrived lately, the planner's memory. It is not asked when its answer is known: a job like one that was refused a
moment ago, in a cluster where nothing has changed since, is refused too.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dsec_blocks.ledger.arrivals import Arrivals
from dsec_blocks.model.devices import Node
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.lifecycle.records import seen
from dsec_workers.scheduling import Plan, Policy, QueuedGang, RunningGang, Snapshot, build_snapshot, plan
from dsec_workers.scheduling.consolidation import COMING, to_come
from dsec_workers.scheduling.decisions import Move, Resize
from dsec_workers.scheduling.memory import Memory
from dsec_workers.scheduling.recalls import due_times
from dsec_workers.scheduling.shapes import MemberShape
from dsec_workers.scheduling.time_sharing import attained
from dsec_workers.simulation.beginning import Beginning, askings_after, on_their_way, to_leave
from dsec_workers.simulation.jobs import Waiting
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.schedulers import Decision, Grow, Leave, Start
from dsec_workers.simulation.site import Seats, Site
from dsec_workers.simulation.waking import changes_of, levels_in_line, may_grow


class Production:
    """See the module."""

    elastic = True

    def __init__(
        self,
        nodes: Sequence[Node],
        teams: Mapping[str, Team],
        policy: Policy,
        *,
        overheads: Overheads,
        name: str = "dsec",
        beginning: Beginning | None = None,
    ) -> None:
        self.name, self.policy, self.overheads = name, policy, overheads
        self.time_shares = policy.time_sharing
        self.snapshot: Snapshot = build_snapshot(nodes=nodes, running=(), teams=teams, pool="simulated")
        self._referee = Site(nodes)
        self.waiting: dict[str, QueuedGang] = {}
        self.plan: Plan = Plan()
        """What was decided last, reasons included."""
        self._memory = Memory()
        self._arrivals = Arrivals()
        self._attempts: dict[str, int] = {}
        self._began: dict[str, float] = {}
        """When the attempts that run began in this replay; one that it adopted began earlier."""
        self._finished: list[str] = []
        self._updated: dict[str, RunningGang] = {}
        self._usage = dict.fromkeys(teams, 0.0)
        self._held = dict.fromkeys(teams, 0)
        self._used_until: float | None = None
        self._attained: dict[str, float] = {}
        """Device-seconds by earlier attempts, as the ledger keeps them for time sharing."""
        self._evicted_for: dict[str, tuple[str, ...]] = {}
        self._made_way_at: dict[str, float] = {}
        """When a run last made way or grew; whoever did counts as moved, as in the worker's input."""
        self._coming: dict[str, RunningGang] = {}
        """Of those that are on their way, the attempt to come."""
        self._resizable: set[str] = set()
        """Those present whose size may change, where the policy has it so."""
        self._had_lift: set[str] = set()
        self._evictions: deque[tuple[float, str]] = deque()
        self._dirty = True
        self._fresh: Counter[tuple[str, int]] = Counter()
        """How many wait, by team and request, that have had no device yet."""
        self._refused: set[tuple[str, int]] = set()
        self._wake: float | None = None
        self._known: dict[str, QueuedGang] = {}
        """Records of those who wait when the replay begins."""
        self._pauses: list[float] = []
        """When those of them may start that were backing off."""
        self._evictions_before: dict[str, int] = {}
        self._seen_before: dict[MemberShape, float] = {}
        if beginning is not None:
            self._go_on_from(beginning)

    def _go_on_from(self, beginning: Beginning) -> None:
        self.snapshot = beginning.snapshot
        self._coming = on_their_way(self.snapshot)
        self._usage |= beginning.snapshot.usage
        self._seen_before = dict(beginning.snapshot.seen)
        self._known = dict(beginning.waiting)
        self._attempts = dict.fromkeys(self._known, 0)
        self._pauses = [gang.not_before for gang in self._known.values() if gang.not_before is not None]
        self._evictions_before = {gang.run_id: gang.evictions for gang in beginning.snapshot.gangs()}
        for record in beginning.waiting.values():
            self._evictions_before[record.run_id] = record.evictions
            self._evicted_for[record.run_id] = record.evicted_for
            if record.attained_seconds or record.attempt:
                self._attained[record.run_id] = record.attained_seconds
            if record.lifted:
                self._had_lift.add(record.run_id)

    # ---- what happens -----------------------------------------------------------------------------------------

    def arrived(self, job: Waiting, now: float) -> None:
        """In the line; the age of one that was evicted counts from its first arrival."""
        if self._coming.pop(job.id, None) is not None:  # it failed on its way
            self._finished.append(job.id + COMING)
        before = job.id in self._attained
        if not before:
            self._fresh[job.team, id(job.request)] += 1
        if job.id in self._known:
            self.waiting[job.id] = replace(
                self._known.pop(job.id),
                checkpoint_seconds=self.overheads.checkpoint_seconds,
                restart_seconds=self.overheads.restart_seconds,
            )
            self._dirty = True
            return
        if job.id not in self._attempts:
            self._attempts[job.id] = 0
            self._arrivals = self._arrivals.after([job.request])
        self.waiting[job.id] = QueuedGang(
            run_id=job.id,
            team=job.team,
            request=job.request,
            submitted_at=job.submitted_at,
            eligible_at=job.submitted_at,
            evictions=self._evictions_before.get(job.id, 0) + job.evictions,
            checkpoint_seconds=self.overheads.checkpoint_seconds,
            restart_seconds=self.overheads.restart_seconds,
            evicted_for=self._evicted_for.get(job.id, ()),
            attained_seconds=self._attained.get(job.id, 0.0),
            waiting_since=now if before else None,
            lifted=job.id in self._had_lift,
        )
        if before or (job.team, id(job.request)) not in self._refused:
            self._dirty = True

    def adopted(self, job: Waiting, seats: Seats, now: float, *, leaving: bool = False, promised: bool = False) -> None:
        """It runs already: as it was captured, or as if it had just begun."""
        self._attempts[job.id] = 1
        self._enter(job.id, job.request)
        if job.id in self.snapshot.slots:
            gang = self._record(job.id)
            if not promised:
                self._began[job.id] = now
        else:
            gang = RunningGang(
                run_id=job.id,
                team=job.team,
                request=job.request,
                placement=self._referee.placement_of(seats),
                submitted_at=job.submitted_at,
                started_at=now,
                evicting=leaving,
                promised=promised,
            )
        self._updated[job.id] = replace(
            gang,
            checkpoint_seconds=self.overheads.checkpoint_seconds,
            restart_seconds=self.overheads.restart_seconds,
            has_on_evict=self.overheads.snapshot_on_evict,
        )
        self._dirty = True

    def began(self, id: str, now: float) -> None:
        """A promise is kept: its devices are its own."""
        if id in self._coming and id in self._finished:  # at this instant it left, to go on
            coming = self._coming.pop(id)
            self._finished.remove(id)
            self._finished.append(id + COMING)
            self._attempts[id] += 1
            self._enter(id, coming.request)
            self._updated[id] = replace(
                coming, run_id=id, evictions=coming.evictions + 1, attained_seconds=self._attained[id]
            )
        gang = self._record(id)
        self._charge(now)
        self._held[gang.team] = self._held.get(gang.team, 0) + len(gang.placement.devices)
        if id not in self._began and (gang.promised or gang.started_at != now):
            self._updated[id] = replace(gang, promised=False, started_at=now)
            self._dirty = True
        self._began[id] = now

    def left(self, id: str, now: float, *, finished: bool) -> None:
        """Its devices are free."""
        gang = self._record(id)
        self._charge(now)
        if not gang.promised:
            self._held[gang.team] -= len(gang.placement.devices)
            self._attained[id] = attained(gang, now)
        self._updated.pop(id, None)
        self._began.pop(id, None)
        self._resizable.discard(id)
        self._finished.append(id)
        if finished:
            for known in (self._attained, self._evicted_for, self._attempts, self._made_way_at):
                known.pop(id, None)
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
        elapsed = 0.0 if self._used_until is None else now - self._used_until
        if self._used_until is None:
            self._used_until = now
        elif elapsed > 0:
            left = 0.5 ** (elapsed / self.policy.usage_half_life_seconds)
            for team, held in self._held.items():
                self._usage[team] = self._usage.get(team, 0.0) * left + held * elapsed
            self._used_until = now

    # ---- what is decided --------------------------------------------------------------------------------------

    def decide(self, site: Site, now: float) -> Sequence[Decision]:
        """One cycle, if anything may have changed."""
        if not (self._dirty or (self._wake is not None and self._wake <= now)):
            return []
        if not self._is_worth_asking():  # changes are entered when somebody asks
            self._settle(now)
            return []
        self._charge(now)
        self._commit(now)
        self.snapshot = self.snapshot.apply(
            finished=self._finished,
            updated=list(self._updated.values()),
            usage=dict(self._usage),
            evicted_lately=self._evicted_lately(now),
            seen=self._seen_before | seen(self._arrivals),
        )
        self._finished, self._updated = [], {}
        decided = self._order_out(now)
        self.plan = plan(self.snapshot, list(self.waiting.values()), self.policy, now, memory=self._memory)
        self._had_lift.update(self.plan.lifted)
        decided += [self._start(number, site, now) for number in range(len(self.plan.admits))]
        for recall in self.plan.recalls:
            self._evicted(recall.run_id, recall.for_run, now)
            decided.append(Leave(id=recall.run_id))
        for growth in self.plan.growths:  # it leaves for itself, as the ledger has it
            self._goes_on(growth, growth.run_id, now)
            decided.append(Grow(id=growth.run_id, seats=site.seats_of(growth.placement)))
        self.snapshot = self.snapshot.apply(updated=list(self._updated.values()), shadows=self.plan.shadows)
        self._updated = {}
        self._settle(now)
        # What the budget of one cycle left undecided is decided in the next.
        self._dirty = len(self.plan.admits) >= self.policy.max_admissions
        return decided

    def _commit(self, now: float) -> None:
        """What running gangs have committed by now, as the ledger would tell it."""
        if self.overheads.interval_seconds is None:
            return
        present = {gang.run_id: gang for gang in self.snapshot.gangs()} | self._updated
        for id in present.keys() - self._finished:
            gang, began = present[id], self._began.get(id)
            if began is None or gang.evicting:
                continue
            commits = self.overheads.commits(now - began, attempt=self._attempts[id])
            if commits is not None and began + commits[1] != gang.last_commit_at:
                first = began + commits[0] if gang.first_commit_at is None else gang.first_commit_at
                self._updated[id] = replace(gang, first_commit_at=first, last_commit_at=began + commits[1])

    def _is_worth_asking(self) -> bool:
        """As the worker asks: with nobody in line only for gangs that might grow."""
        return bool(self.waiting) or any(may_grow(self._record(id)) for id in self._resizable)

    def _enter(self, id: str, request: GangRequest) -> None:
        if self.policy.resizing and request.min_nodes is not None:
            self._resizable.add(id)

    def _order_out(self, now: float) -> list[Decision]:
        """Who has to leave because an operator wants the devices empty."""
        ids = to_leave(self.snapshot, self.policy, now)
        if ids:
            self.snapshot = self.snapshot.apply(updated=[replace(self._record(id), evicting=True) for id in ids])
        return [Leave(id=id) for id in ids]

    def _start(self, number: int, site: Site, now: float) -> Start:
        admit = self.plan.admits[number]
        gang = self.waiting.pop(admit.run_id)
        self._attempts[gang.run_id] += 1
        if gang.run_id not in self._attained:
            kind = (gang.team, id(gang.request))
            self._fresh[kind] -= 1
            if not self._fresh[kind]:
                del self._fresh[kind]
        for victim in admit.victims:
            self._evicted(victim.run_id, admit.run_id, now)
        going_on: list[Move | Resize] = [*admit.moves, *admit.resizes]
        for change in going_on:
            self._goes_on(change, admit.run_id, now)
        self._enter(gang.run_id, gang.request)
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
            promised=bool(admit.victims or admit.waits_for or going_on),
            moved_at=self._made_way_at.get(gang.run_id),
            conditional_until=self.plan.conditional.get(gang.run_id),
            attained_seconds=0.0 if gang.run_id in self.plan.lifted else gang.attained_seconds,
        )
        return Start(
            id=gang.run_id,
            seats=site.seats_of(admit.placement),
            victims=tuple(victim.run_id for victim in admit.victims),
            waits_for=admit.waits_for,
            goes_on=tuple((change.run_id, site.seats_of(change.placement)) for change in going_on),
        )

    def _goes_on(self, change: Move | Resize, for_run: str, now: float) -> None:
        """It is told to leave, and the place where it goes on is its own from now on."""
        self._evicted(change.run_id, for_run, now)
        leaving = self._updated[change.run_id] = replace(self._updated[change.run_id], moved_at=now)
        coming = self._coming[change.run_id] = to_come(leaving, change.placement, since=now)
        self._updated[coming.run_id] = coming

    def _evicted(self, id: str, for_run: str, now: float) -> None:
        """As the ledger keeps a notice; who leaves to grow was told for itself, and is evicted by nobody."""
        record = self._record(id)
        self._updated[id] = replace(record, evicting=True, evicting_for=for_run)
        if self.policy.consolidation or self.policy.resizing:
            self._made_way_at[id] = now
        self._evicted_for[id] = tuple(sorted({*self._evicted_for.get(id, ()), for_run}))
        if for_run != id:
            self._evictions.append((now, record.team))

    def _evicted_lately(self, now: float) -> Mapping[str, int]:
        if self.policy.evictions_per_team is None:
            self._evictions.clear()
            return {}
        while self._evictions and self._evictions[0][0] <= now - self.policy.eviction_window_seconds:
            self._evictions.popleft()
        counts: dict[str, int] = {}
        for _, team in self._evictions:
            counts[team] = counts.get(team, 0) + 1
        return counts

    def _settle(self, now: float) -> None:
        self._dirty = False
        self._refused = set(self._fresh)
        self._wake = min(self._changes(now), default=None) if self._is_worth_asking() else None

    def _changes(self, now: float) -> Iterator[float]:
        """Times to come at which somebody may be evicted, or may evict, or may grow, who may not now."""
        policy = self.policy
        yield from due_times(self.snapshot.gangs(), self.snapshot.shadows, policy, now)
        yield from askings_after(self.snapshot, policy, now)
        yield from (at for at in self._pauses if at > now)
        lowest, lifts = 0, list[float]()
        if policy.time_sharing:
            lowest, lifts = levels_in_line(self.waiting.values(), policy, now, some_are_new=bool(self._fresh))
        yield from lifts
        for gang in self.snapshot.gangs():
            if not (gang.evicting or gang.promised):
                attempt, began = self._attempts[gang.run_id], self._began.get(gang.run_id, gang.started_at)
                yield from changes_of(gang, policy, self.overheads, now, attempt=attempt, began=began, lowest=lowest)
        if self._evictions and policy.evictions_per_team is not None:
            yield self._evictions[0][0] + policy.eviction_window_seconds
