"""Who is told to leave for a gang that still waits: passers, in time for the head of line, and those that give way by
priority to a gang without devices.

The notice is one row of the ledger, like that of any victim, and the devices stay with the gang until it has left: a
worker that dies before the row is written has changed nothing, and the next plan says the same; after it, whoever
leads next finds the gang evicting and tells it. Those that give way by priority are told in one transaction.
"""

import datetime
from collections.abc import Mapping, Sequence

from dsec_blocks.model.gangs import Gang, GangState
from dsec_workers.lifecycle import evictions
from dsec_workers.lifecycle.admissions import preempted_by
from dsec_workers.lifecycle.term import Term
from dsec_workers.scheduling.decisions import Plan, Recall
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.recalls import due_times
from dsec_workers.scheduling.snapshot import Snapshot


async def begin(term: Term, plan: Plan, gangs: Mapping[str, Gang]) -> None:
    """Tell those whom the plan has leave, if nothing has changed since for them and for the gang that waits."""
    together: dict[str, list[Recall]] = {}
    for recall in plan.recalls:
        # A passer leaves whatever others do; of the rest all do or none.
        together.setdefault(f"passer {recall.run_id}" if recall.passed else recall.for_run, []).append(recall)
    for recalls in together.values():
        await _tell(term, plan, gangs, recalls)


async def _tell(term: Term, plan: Plan, gangs: Mapping[str, Gang], recalls: Sequence[Recall]) -> None:
    head = await term.read(term.ledger.gang, recalls[0].for_run)
    present = [await term.read(term.ledger.gang, recall.run_id) for recall in recalls]
    planned = [gangs[recall.run_id] for recall in recalls]
    stays = [
        now is not None and (now.attempt, now.placement) == (then.attempt, then.placement)
        for now, then in zip(present, planned, strict=True)
    ]
    if not all(stays) or head is None or head.state is not GangState.WAITING:
        term.wake.ring()
        return
    why = reason(recalls[0], head)
    costs = {recall.run_id: recall.cost for recall in recalls}
    # Who is left out is not running yet, or no longer: the next plan sees which.
    leaving = await term.write(term.ledger.evict, list(costs), why=why, for_run=head.run_id, costs=costs)
    for recall, gang in zip(recalls, planned, strict=True):
        if recall.run_id not in leaving:
            continue
        outcome, which = ("recall", ", which passed it in line,") if recall.passed else ("preempt", "")
        for run_id in (recall.run_id, head.run_id):
            detail = {"passer": recall.run_id, "head": head.run_id, "start": recall.start, "cost": recall.cost}
            text = why if run_id == recall.run_id else f"{gang.name}{which} was told to leave"
            term.decide("plan", outcome, run_id=run_id, why=text, detail=detail, policy_version=plan.policy_version)
        told = await term.read(term.ledger.gang, recall.run_id)
        if told is not None and told.state is GangState.EVICTING:
            term.errands.start(f"notice:{recall.run_id}", "notice", evictions.notify, term, told, why)


def reason(recall: Recall, head: Gang) -> str:
    """What the gang is told."""
    if not recall.passed:
        return preempted_by(head)
    at = datetime.datetime.fromtimestamp(recall.start, tz=datetime.UTC)
    return (
        f"It started before {head.name} (team {head.team}), which was ahead of it in line, on the condition that it "
        f"leaves in time: {head.name} starts on its devices at {at:%H:%M:%S} UTC"
    )


def wake_in_time(term: Term, snapshot: Snapshot, plan: Plan, policy: Policy, now: float) -> None:
    """Plan again at the moment a passer is due to be told."""
    for due in due_times(snapshot.gangs(), plan.shadows, policy, now):
        term.wake.at(due)
