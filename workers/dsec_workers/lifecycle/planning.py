"""The ledger's records made into a snapshot, and the plan carried out: admissions first, then reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, Protocol

from dsec_blocks.ledger import ACTIVE, SHADOW, Inventory, PolicyRecord
from dsec_blocks.model.devices import Node
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_workers.lifecycle import growing, reasons, recalling
from dsec_workers.lifecycle.admissions import Admissions, Spent
from dsec_workers.lifecycle.data_distance import NOTHING_KNOWN, DataDistance, believed
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.orders import Orders
from dsec_workers.lifecycle.records import evicted_lately, queued, snapshot_of
from dsec_workers.lifecycle.rules import policy_of
from dsec_workers.lifecycle.run_limits import Room
from dsec_workers.lifecycle.shadow_policy import ShadowPolicy
from dsec_workers.lifecycle.term import Term
from dsec_workers.scheduling.decisions import Hold, Plan, Shadow
from dsec_workers.scheduling.memory import Memory
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import QueuedGang, Snapshot


class Planner(Protocol):
    """`plan()`, or what stands in for it."""

    def __call__(
        self,
        snapshot: Snapshot,
        queue: Sequence[QueuedGang],
        policy: Policy,
        now: float,
        /,
        *,
        memory: Memory | None = None,
    ) -> Plan:
        """The decisions of one cycle."""
        ...


@dataclass(kw_only=True)
class Planning:
    """One leader's planner and what it remembers between cycles."""

    plan: Planner
    policy: Policy
    nodes: tuple[Node, ...] = ()
    memory: Memory = field(default_factory=Memory)
    """Of `plan`: what it knows of the records that come again."""
    last: Snapshot | None = None
    given: Policy = field(init=False)
    """What this worker was started with: in force where nobody set a policy."""
    shadow: ShadowPolicy = field(default_factory=ShadowPolicy)
    refreshed: bool = False
    """Whether the policy in force is known."""
    unreadable: set[int] = field(default_factory=set)
    data: DataDistance = NOTHING_KNOWN
    inventories: dict[str, Inventory] = field(default_factory=dict)
    """As last read, so that only news are read again."""
    overrides: dict[str, int] = field(default_factory=dict)
    """Orders to start one run: run id → the wish that is answered when it has been admitted."""

    def __post_init__(self) -> None:
        self.given = self.policy

    async def cycle(self, term: Term, intake: Intake, gangs: Mapping[str, Gang], orders: Orders) -> Plan:
        """Plan once and carry it out."""
        now, began = term.clock.now(), term.clock.monotonic()
        waiting = [gang for gang in gangs.values() if gang.state is GangState.WAITING]
        if not waiting and not (self.policy.resizing and growing.could_anyone(gangs.values())):
            return Plan()
        evicted_before = any(gang.evictions for gang in waiting)
        preemptors = await term.read(term.ledger.preemptors, term.pool) if evicted_before else {}
        self.overrides = dict(orders.to_admit)
        await self._look_for_data(term, waiting, now)
        room = intake.form.limits.room(gangs.values(), term.cluster.allowance(gangs, term.manifests))
        queue, refused = self._queue(term, intake, waiting, preemptors, room, now)
        snapshot = await self._snapshot(term, gangs, orders, now)
        planned = term.clock.monotonic()
        plan = await self._asked(term, snapshot, queue, now)
        spent = Spent(began=began, plan_seconds=term.clock.monotonic() - planned)
        recalling.wake_in_time(term, snapshot, plan, self.policy, now)
        await term.write(term.ledger.put_shadows, [_shadow_row(shadow) for shadow in plan.shadows])
        started = [admit for admit in plan.admits if room.holds(gangs[admit.run_id], admit)]
        if len(started) < len(plan.admits):
            term.wake.ring()  # the next cycle tells the others why
        admissions = Admissions(term, plan=plan, gangs=gangs, spent=spent, data=self.data, overrides=self.overrides)
        await admissions.carry_out(started)
        await recalling.begin(term, plan, gangs)
        await growing.begin(term, plan, gangs)
        await reasons.tell(term, refused, plan.holds, gangs)
        if self.shadow.policy is not None:
            shadow = await term.read(self.plan, snapshot, queue, self.shadow.policy, now)
            self.shadow.log(term, plan, shadow, gangs)
        return plan

    async def _asked(self, term: Term, snapshot: Snapshot, queue: Sequence[QueuedGang], now: float) -> Plan:
        memory, self.memory = self.memory, Memory()  # what a plan that fails leaves behind is not trusted
        plan = await term.read(self.plan, snapshot, queue, self.policy, now, memory=memory)
        self.memory = memory
        return plan

    def _queue(
        self,
        term: Term,
        intake: Intake,
        waiting: Sequence[Gang],
        preemptors: Mapping[str, tuple[str, ...]],
        room: Room,
        now: float = inf,
    ) -> tuple[list[QueuedGang], list[Hold]]:
        queue, refused = [], []
        for gang in waiting:
            reason = term.refused.get(gang.run_id)
            if reason is None and intake.form.is_paused:
                reason = Reason(code=ReasonCode.ADMISSION_FROZEN, text=f"work pool {term.pool} is paused")
            elif reason is None and gang.team in intake.form.paused_queues:
                reason = Reason(code=ReasonCode.ADMISSION_FROZEN, text=f"work queue {gang.team} is paused")
            elif reason is None:
                reason = room.refusal(gang)
            if reason is not None:
                refused.append(Hold(run_id=gang.run_id, reason=reason))
            elif gang.run_id not in term.astray and not term.errands.running_for(gang.run_id, "cancel"):
                saved = self.data.seconds_saved(gang.request.inputs) if gang.request.inputs else ()
                queue.append(queued(gang, preemptors.get(gang.run_id, ()), saved, now=now))
        return queue, refused

    async def _look_for_data(self, term: Term, waiting: Sequence[Gang], now: float) -> None:
        """Know what the nodes' caches hold, if anybody who waits asks for data."""
        if not any(gang.request.inputs for gang in waiting):
            return
        found = await term.read(term.ledger.inventories, self.inventories)
        if believed(found, nodes=self.nodes, now=now) != self.data.believed:
            self.data = DataDistance(found, nodes=self.nodes, now=now)
        self.inventories = found

    async def _snapshot(self, term: Term, gangs: Mapping[str, Gang], orders: Orders, now: float) -> Snapshot:
        leaving = any(gang.state is GangState.EVICTING for gang in gangs.values())
        usage = {
            "half_life_seconds": self.policy.usage_half_life_seconds,
            "model_weights": self.policy.model_weights,
        }
        lately, moved_at = await self._past_evictions(term, now)
        self.last = snapshot_of(
            last=self.last,
            pool=term.pool,
            nodes=self.nodes,
            gangs=gangs.values(),
            holdings=await term.read(term.ledger.holders, term.pool),
            evictions=await term.read(term.ledger.evictions, term.pool) if leaving else [],
            teams=await term.read(term.ledger.teams, term.pool),
            usage=await term.read(term.ledger.decayed_usage, term.pool, now, **usage),
            shadows=await term.read(term.ledger.shadows, term.pool),
            orders=orders,
            evicted_lately=lately,
            moved_at=moved_at,
            arrivals=await term.read(term.ledger.arrivals, term.pool),
        )
        return self.last

    async def _past_evictions(self, term: Term, now: float) -> tuple[dict[str, int], dict[str, float]]:
        """Evictions by team in the policy's window, and when each run last made way; where the policy asks for them.

        A run that made way counts as moved, however it did: it is asked at most once in the policy's interval.
        """
        policy = self.policy
        window = policy.eviction_window_seconds if policy.evictions_per_team is not None else 0.0
        interval = policy.move_interval_seconds if policy.consolidation or policy.resizing else 0.0
        if not window and not interval:
            return {}, {}
        rows = await term.read(term.ledger.evicted_since, term.pool, now - max(window, interval))
        return evicted_lately(rows, since=now - window), {run_id: at for run_id, _, at, _ in rows}

    async def refresh(self, term: Term) -> None:
        """Take over the policy that somebody set meanwhile; one that cannot be read leaves the last in force."""
        found = await term.read(term.ledger.policy, term.pool, role=ACTIVE)
        shadow = await term.read(term.ledger.policy, term.pool, role=SHADOW)
        self.policy = self._adopted(term, found, "policy", self.policy) or self.given
        self.shadow.policy = self._adopted(term, shadow, "shadow policy", self.shadow.policy)
        self.refreshed = True

    def _adopted(self, term: Term, record: PolicyRecord | None, name: str, last: Policy | None) -> Policy | None:
        if record is None:
            return self.given if name == "policy" else None
        if last is not None and last.version == str(record.version):
            return last
        if record.version in self.unreadable:
            return last
        try:
            policy = policy_of(record)
        except InvalidRequest as error:
            self.unreadable.add(record.version)
            term.log.error("%s %d is not obeyed: %s", name, record.version, error)
            term.decide("policy", "refused", why=str(error), policy_version=str(record.version))
            return last
        term.log.info("%s %d, set by %s, is in force", name, record.version, record.by)
        term.decide(
            "policy",
            "in force" if name == "policy" else "in shadow",
            why=f"{record.by}: {record.why}",
            detail=record.body or {},
            policy_version=str(record.version),
        )
        return policy


def _shadow_row(shadow: Shadow) -> dict[str, Any]:
    return {**asdict(shadow), "devices": list(shadow.devices)}
