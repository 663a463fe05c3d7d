"""The ledger's records made into a snapshot, and the plan carried out: admissions first, then reasons."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dsec_blocks.model.devices import Node
from dsec_blocks.model.errors import ReservationConflict
from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState
from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_workers.lifecycle import claims, evictions, reasons
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.records import queued, running_gang
from dsec_workers.lifecycle.term import Term, key_of
from dsec_workers.scheduling.decisions import Admit, Hold, Plan, Shadow
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import Frozen, QueuedGang, Snapshot, build_snapshot

Planner = Callable[[Snapshot, Sequence[QueuedGang], Policy, float], Plan]


@dataclass(kw_only=True)
class Planning:
    """One leader's planner and what it remembers between cycles."""

    plan: Planner
    policy: Policy
    nodes: tuple[Node, ...] = ()
    conditional: dict[str, float] = field(default_factory=dict)
    evictions: dict[str, str | None] = field(default_factory=dict)

    async def cycle(self, term: Term, intake: Intake, gangs: Mapping[str, Gang], drained: Mapping[str, str]) -> Plan:
        """Plan once and carry it out."""
        now = term.clock.now()
        waiting = [gang for gang in gangs.values() if gang.state is GangState.WAITING]
        if not waiting:
            return Plan()
        queue, refused = self._queue(term, intake, waiting)
        snapshot = await self._snapshot(term, gangs, drained)
        plan = await term.read(self.plan, snapshot, queue, self.policy, now)
        await term.write(term.ledger.put_shadows, [_shadow_row(shadow) for shadow in plan.shadows])
        self.conditional = {r: t for r, t in {**self.conditional, **plan.conditional}.items() if r in gangs}
        for admit in plan.admits:
            await self._admit(term, admit, plan, gangs)
        await reasons.tell(term, [*refused, *plan.holds], gangs)
        return plan

    def _queue(self, term: Term, intake: Intake, waiting: Sequence[Gang]) -> tuple[list[QueuedGang], list[Hold]]:
        queue, refused = [], []
        for gang in waiting:
            reason = term.refused.get(gang.run_id)
            if reason is None and intake.pool_paused:
                reason = Reason(code=ReasonCode.ADMISSION_FROZEN, text=f"work pool {term.pool} is paused")
            elif reason is None and gang.team in intake.paused_queues:
                reason = Reason(code=ReasonCode.ADMISSION_FROZEN, text=f"work queue {gang.team} is paused")
            if reason is not None:
                refused.append(Hold(run_id=gang.run_id, reason=reason))
            elif gang.run_id not in term.astray and not term.errands.running_for(gang.run_id, "cancel"):
                queue.append(queued(gang))
        return queue, refused

    async def _snapshot(self, term: Term, gangs: Mapping[str, Gang], drained: Mapping[str, str]) -> Snapshot:
        held = [gang for gang in gangs.values() if gang.state in HOLDING_STATES and gang.placement is not None]
        holdings = await term.read(term.ledger.holders, term.pool)
        open_evictions = await term.read(term.ledger.evictions, term.pool) if any(_leaving(g) for g in held) else []
        for_run = {eviction.run_id: eviction.for_run for eviction in open_evictions}
        running = [
            running_gang(gang, holdings, for_run=for_run, conditional_until=self.conditional.get(gang.run_id))
            for gang in held
        ]
        return build_snapshot(
            nodes=self.nodes,
            running=running,
            teams=await term.read(term.ledger.teams, term.pool),
            shadows=[_shadow(row) for row in await term.read(term.ledger.shadows, term.pool)],
            usage=await term.read(term.ledger.usage, term.pool),
            frozen=Frozen(nodes=dict(drained)),
            pool=term.pool,
        )

    async def _admit(self, term: Term, admit: Admit, plan: Plan, gangs: Mapping[str, Gang]) -> None:
        now = term.clock.now()
        victims = [victim.run_id for victim in admit.victims]
        grace = max([0.0, *(gangs[run_id].request.grace_seconds for run_id in victims if run_id in gangs)])
        gang = gangs[admit.run_id]
        try:
            admitted = await term.write(
                term.ledger.admit,
                admit.run_id,
                admit.placement,
                victims=victims,
                expires_at=now + grace + term.settings.reservation_seconds,
                why=f"Preempted by {gang.name} (team {gang.team}, priority {gang.request.priority})",
                costs={victim.run_id: victim.cost for victim in admit.victims},
            )
        except ReservationConflict as error:
            # Something changed since the snapshot; the next cycle sees it.
            term.log.info("%s was not admitted: %s", admit.run_id, error)
            term.wake.ring()
            return
        term.admitted_at[key_of(admitted)] = now
        detail = {
            "placement": admit.placement.to_json(),
            "victims": [asdict(victim) for victim in admit.victims],
            "optimal": admit.optimal,
        }
        term.decide(
            "plan", "admit", run_id=admit.run_id, why=admit.why, detail=detail, policy_version=plan.policy_version
        )
        if victims:
            for run_id in victims:
                victim = await term.read(term.ledger.gang, run_id)
                if victim is not None and victim.state is GangState.EVICTING:
                    why = f"Preempted by {gang.name} (team {gang.team}, priority {gang.request.priority})"
                    term.errands.start(f"notice:{run_id}", "notice", evictions.notify, term, victim, why)
        else:
            holdings = await term.read(term.ledger.holders, term.pool)
            if not evictions.blockers_of(admit.run_id, holdings):
                term.errands.start(admit.run_id, "claim", claims.claim, term, admit.run_id, False)


def _leaving(gang: Gang) -> bool:
    return gang.state is GangState.EVICTING


def _shadow_row(shadow: Shadow) -> dict[str, Any]:
    return {**asdict(shadow), "devices": list(shadow.devices)}


def _shadow(row: Mapping[str, Any]) -> Shadow:
    return Shadow(**{**row, "devices": tuple(row["devices"])})
