"""The ledger's records made into a snapshot, and the plan carried out: admissions first, then reasons."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Protocol

from dsec_blocks.ledger import ACTIVE, SHADOW, Inventory, Ledger, PolicyRecord
from dsec_blocks.model.devices import Node
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.gangs import Gang
from dsec_workers.lifecycle import growing, reasons, recalling
from dsec_workers.lifecycle.admission_checks import AdmissionChecks
from dsec_workers.lifecycle.admissions import Admissions, Spent
from dsec_workers.lifecycle.data_distance import NOTHING_KNOWN, DataDistance, believed
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.mirror import View
from dsec_workers.lifecycle.orders import Orders
from dsec_workers.lifecycle.plan_input import Line, facts_of, snapshot_of
from dsec_workers.lifecycle.rules import policy_of
from dsec_workers.lifecycle.run_limits import Room
from dsec_workers.lifecycle.shadow_policy import ShadowPolicy
from dsec_workers.lifecycle.term import Term
from dsec_workers.scheduling.decisions import Hold, Plan
from dsec_workers.scheduling.memory import Memory
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import QueuedGang, Snapshot

_INPUTS = attrgetter("request.inputs")


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
    """What the last cycle saw."""
    line: Line = field(default_factory=Line)
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

    async def cycle(self, term: Term, intake: Intake, view: View, orders: Orders) -> Plan:
        """Plan once and carry it out."""
        now, began = term.clock.now(), term.clock.monotonic()
        gangs, policy = view.gangs, self.policy
        if not view.waiting and not (policy.resizing and growing.could_anyone(gangs.values())):
            return Plan()
        self.overrides = dict(orders.to_admit)
        await self._look_for_data(term, view.waiting, now)
        facts = await term.read(
            facts_of, term.ledger, term.pool, now=now, policy=policy, nodes=self.nodes, view=view, orders=orders
        )
        room = intake.form.limits.room(gangs.values(), term.cluster.allowance(gangs, term.manifests))
        queue, refused = self._queue(term, intake, view, room, now)
        self.last = snapshot = snapshot_of(facts, self.last)
        planned = term.clock.monotonic()
        plan = await self._asked(term, snapshot, queue, now)
        spent = Spent(began=began, plan_seconds=term.clock.monotonic() - planned)
        recalling.wake_in_time(term, snapshot, plan, self.policy, now)
        if (shadows := [shadow.to_json() for shadow in plan.shadows]) != facts.shadows:
            await term.write(term.ledger.put_shadows, shadows)
        started = [admit for admit in plan.admits if room.holds(gangs[admit.run_id], admit)]
        if len(started) < len(plan.admits):
            term.wake.ring()  # the next cycle tells the others why
        admissions = Admissions(
            term, plan=plan, gangs=gangs, spent=spent, data=self.data, overrides=self.overrides,
            failures=snapshot.failures,
        )  # fmt: skip
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
        self, term: Term, intake: Intake, view: View, room: Room, now: float = inf
    ) -> tuple[list[QueuedGang], list[Hold]]:
        form = intake.form
        checks = AdmissionChecks(pool=term.pool, is_paused=form.is_paused, paused_queues=form.paused_queues, room=room)
        cancelling = term.errands.keys_of("cancel")
        left_out = term.astray | cancelling
        return self.line.queue(view, checks, now=now, data=self.data, refused=term.refused, left_out=left_out)

    async def _look_for_data(self, term: Term, waiting: Sequence[Gang], now: float) -> None:
        """Know what the nodes' caches hold, if anybody who waits asks for data."""
        if not any(map(_INPUTS, waiting)):
            return
        found = await term.read(term.ledger.inventories, self.inventories)
        if believed(found, nodes=self.nodes, now=now) != self.data.believed:
            self.data = DataDistance(found, nodes=self.nodes, now=now)
        self.inventories = found

    async def refresh(self, term: Term) -> None:
        """Take over the policy that somebody set meanwhile; one that cannot be read leaves the last in force."""
        found, shadow = await term.read(_policies, term.ledger, term.pool)
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


def _policies(ledger: Ledger, pool: str) -> tuple[PolicyRecord | None, PolicyRecord | None]:
    """The policy in force and the one in shadow, where somebody set them."""
    with ledger.reading():
        return ledger.policy(pool, role=ACTIVE), ledger.policy(pool, role=SHADOW)
