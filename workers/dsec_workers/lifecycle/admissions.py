"""A plan's admissions, carried out: reserved many to a transaction, then claimed, or first their victims told to leave.

Each admission is still all or nothing and compared with the ledger device by device, and its entry in the decision log
is written with it. One that lost its devices meanwhile takes nothing from the others; the next cycle sees why.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dsec_blocks.ledger import AdmissionRequest
from dsec_blocks.model.errors import ReservationConflict
from dsec_blocks.model.gangs import Gang, GangState
from dsec_workers.lifecycle import claims, evictions, resuming
from dsec_workers.lifecycle.data_distance import DataDistance
from dsec_workers.lifecycle.term import Term, key_of
from dsec_workers.scheduling.decisions import Admit, Move, Plan, Resize, Victim

MOST = 128
"""Admissions in one transaction: the first of them wait for the last, and the beat for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Where a cycle's time went, for the decision log: `began` is monotonic."""

    began: float
    plan_seconds: float

    def until(self, now: float) -> dict[str, float]:
        """What is not planning is the ledger: reading it, and the admissions so far."""
        return {"plan": round(self.plan_seconds, 6), "ledger": round(now - self.began - self.plan_seconds, 6)}


@dataclass
class Admissions:
    """What carrying out one plan needs to know. `overrides` are operators' wishes, answered once they are fulfilled."""

    term: Term
    plan: Plan
    gangs: Mapping[str, Gang]
    spent: Spent
    data: DataDistance
    overrides: Mapping[str, int]
    failures: Mapping[str, float] = field(default_factory=dict)
    """Node → what lately failed there, as the plan knew it."""

    async def carry_out(self, admits: Sequence[Admit]) -> None:
        """Reserve for these in their order, and start what follows for those that were admitted."""
        for start in range(0, len(admits), MOST):
            some = admits[start : start + MOST]
            requests = [self._request(admit) for admit in some]
            answers = await self.term.write(self.term.ledger.admit_all, requests)
            admitted: list[Admit] = []
            for admit, request, answer in zip(some, requests, answers, strict=True):
                if isinstance(answer, ReservationConflict):
                    # Something changed since the snapshot; the next cycle sees it.
                    self.term.log.info("%s was not admitted: %s", admit.run_id, answer)
                    self.term.wake.ring()
                    continue
                assert request.entry is not None
                self.term.admitted_at[key_of(answer)] = request.entry.at
                self.term.count(request.entry)
                admitted.append(admit)
            await self._go_on(admitted)

    def _request(self, admit: Admit) -> AdmissionRequest:
        term, plan, gang = self.term, self.plan, self.gangs[admit.run_id]
        victims = [each.run_id for each in _leaving(admit)]
        going_on = [
            resuming.resumption(term, self.gangs[change.run_id], change.placement, gang)
            for change in _going_on(admit)
            if change.run_id in self.gangs
        ]
        graces = (self.gangs[run_id].request.grace_seconds for run_id in victims if run_id in self.gangs)
        detail: dict[str, Any] = {
            "placement": admit.placement.to_json(),
            "victims": [asdict(victim) for victim in admit.victims],
            **({"goes_on": {each.run_id: each.why for each in going_on}} if going_on else {}),
            "optimal": admit.optimal,
            "seconds": self.spent.until(term.clock.monotonic()),
        }
        nodes = [member.node for member in admit.placement.members]
        if failing := {node: self.failures[node] for node in nodes if node in self.failures}:
            detail["failures"] = failing
        if gang.request.inputs:
            detail["data"] = self.data.on(gang.request.inputs, nodes)
        return AdmissionRequest(
            run_id=admit.run_id,
            placement=admit.placement,
            victims=victims,
            resumptions=going_on,
            expires_at=term.steady() + max([0.0, *graces]) + term.settings.reservation_seconds,
            why=preempted_by(gang),
            costs={each.run_id: each.cost for each in _leaving(admit)},
            lifted=admit.run_id in plan.lifted,
            conditional_until=plan.conditional.get(admit.run_id),
            entry=term.entry(
                "plan", "admit", run_id=admit.run_id, why=admit.why, detail=detail, policy_version=plan.policy_version
            ),
        )

    async def _go_on(self, admitted: Sequence[Admit]) -> None:
        term = self.term
        for admit in admitted:
            if admit.run_id in self.overrides:
                await term.write(term.ledger.fulfil, self.overrides[admit.run_id], "admitted")
        told = {each.run_id: self.gangs[admit.run_id] for admit in admitted for each in _leaving(admit)}
        leaving = await term.read(term.ledger.named, told) if told else {}
        for run_id, for_gang in told.items():
            victim = leaving.get(run_id)
            if victim is not None and victim.state is GangState.EVICTING:
                why = (
                    preempted_by(for_gang)
                    if victim.resumes_at is None
                    else resuming.why(victim, victim.resumes_at, for_gang)
                )
                if victim.resumes_at is not None:
                    resuming.tell(term, victim, why, policy_version=self.plan.policy_version)
                term.errands.start(f"notice:{run_id}", "notice", evictions.notify, term, victim, why)
        # Who waits for nobody took free devices, and need not ask who holds them.
        waits = any(admit.waits_for for admit in admitted if not any(_leaving(admit)))
        blocked = evictions.blockers(await term.read(term.ledger.holders, term.pool)) if waits else {}
        for admit in admitted:
            if not any(_leaving(admit)) and admit.run_id not in blocked:
                term.errands.start(admit.run_id, "claim", claims.claim, term, admit.run_id, False)


def _going_on(admit: Admit) -> Iterator[Move | Resize]:
    yield from admit.moves
    yield from admit.resizes


def _leaving(admit: Admit) -> Iterator[Victim | Move | Resize]:
    """Who is to be told to leave. Who is to move or to shrink is among them, and goes on in the place it is given."""
    yield from admit.victims
    yield from _going_on(admit)


def preempted_by(gang: Gang) -> str:
    """What its victims are told."""
    return f"Preempted by {gang.name} (team {gang.team}, priority {gang.request.priority})"
