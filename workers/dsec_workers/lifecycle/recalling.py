"""Passers that are told to leave for the head of line, in time for its start.

The notice is one row of the ledger, like that of any victim, and the devices stay with the passer until it has left: a
worker that dies before the row is written has changed nothing, and the next plan says the same; after it, whoever
leads next finds the gang evicting and tells it.
"""

import datetime
from collections.abc import Mapping

from dsec_blocks.model.gangs import Gang, GangState
from dsec_workers.lifecycle import evictions
from dsec_workers.lifecycle.term import Term
from dsec_workers.scheduling.decisions import Plan, Recall
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.recalls import due_times
from dsec_workers.scheduling.snapshot import Snapshot


async def begin(term: Term, plan: Plan, gangs: Mapping[str, Gang]) -> None:
    """Tell those whom the plan calls back, if nothing has changed since for them and for the head."""
    for recall in plan.recalls:
        planned = gangs[recall.run_id]
        passer = await term.read(term.ledger.gang, recall.run_id)
        head = await term.read(term.ledger.gang, recall.for_run)
        stays = passer is not None and (passer.attempt, passer.placement) == (planned.attempt, planned.placement)
        if not stays or head is None or head.state is not GangState.WAITING:
            term.wake.ring()
            continue
        why = reason(recall, head)
        costs = {recall.run_id: recall.cost}
        if not await term.write(term.ledger.evict, [recall.run_id], why=why, for_run=head.run_id, costs=costs):
            continue  # it is not running yet, or no longer: the next plan sees which
        for run_id in (recall.run_id, head.run_id):
            detail = {"passer": recall.run_id, "head": head.run_id, "start": recall.start, "cost": recall.cost}
            text = why if run_id == recall.run_id else f"{planned.name}, which passed it in line, was told to leave"
            term.decide("plan", "recall", run_id=run_id, why=text, detail=detail, policy_version=plan.policy_version)
        told = await term.read(term.ledger.gang, recall.run_id)
        if told is not None and told.state is GangState.EVICTING:
            term.errands.start(f"notice:{recall.run_id}", "notice", evictions.notify, term, told, why)


def reason(recall: Recall, head: Gang) -> str:
    """What the passer is told."""
    at = datetime.datetime.fromtimestamp(recall.start, tz=datetime.UTC)
    return (
        f"It started before {head.name} (team {head.team}), which was ahead of it in line, on the condition that it "
        f"leaves in time: {head.name} starts on its devices at {at:%H:%M:%S} UTC"
    )


def wake_in_time(term: Term, snapshot: Snapshot, plan: Plan, policy: Policy, now: float) -> None:
    """Plan again at the moment a passer is due to be told."""
    for due in due_times(snapshot.gangs(), plan.shadows, policy, now):
        term.wake.at(due)
