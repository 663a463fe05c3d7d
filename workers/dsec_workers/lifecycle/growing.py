"""Running elastic gangs that grow into devices which nobody else needs.

A gang grows as it shrinks: it checkpoints, leaves, and goes on at once, now with what was free beside what it had,
which is reserved with its notice (`resuming`). The planner sees when it last moved and leaves it alone for a while.
"""

from collections.abc import Iterable, Mapping

from dsec_blocks.model.gangs import Gang, GangState
from dsec_workers.lifecycle import evictions, resuming
from dsec_workers.lifecycle.term import Term
from dsec_workers.scheduling.decisions import Plan


def could_anyone(gangs: Iterable[Gang]) -> bool:
    """Whether a running gang has fewer members than it would like, so that planning pays with nobody in line."""
    return any(
        gang.state is GangState.RUNNING
        and gang.request.min_nodes is not None
        and gang.placement is not None
        and len(gang.placement.members) < gang.request.nodes
        for gang in gangs
    )


async def begin(term: Term, plan: Plan, gangs: Mapping[str, Gang]) -> None:
    """Ask those that are to grow to leave with a checkpoint."""
    for growth in plan.growths:
        gang = gangs.get(growth.run_id)
        if gang is None or gang.placement is None:
            continue
        place = resuming.resumption(term, gang, growth.placement, None)
        notice = {"why": place.why, "for_run": gang.run_id, "resumption": place}
        if not await term.write(term.ledger.evict, [gang.run_id], **notice):
            continue
        evicting = await term.read(term.ledger.gang, gang.run_id)
        if evicting is not None and evicting.resumes_at is not None:
            resuming.tell(term, evicting, place.why, cost=growth.cost, policy_version=plan.policy_version)
            term.errands.start(f"notice:{gang.run_id}", "notice", evictions.notify, term, evicting, place.why)
