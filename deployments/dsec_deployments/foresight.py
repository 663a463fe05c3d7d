"""What the next plan would say: the same `plan()` over the ledger as it is now, carried out by nobody.

Positions, estimates and factors change with every cycle and are not stored; whoever wants to see them plans.
"""

from collections.abc import Sequence

from dsec_blocks.ledger import Ledger
from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import HOLDING_STATES, GangState
from dsec_blocks.model.reasons import Reason
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.lifecycle.records import queued, running_gang
from dsec_workers.scheduling.cycle import plan
from dsec_workers.scheduling.decisions import Hold, Shadow
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import QueuedGang, build_snapshot


def holds(ledger: Ledger, pool: str, *, now: float) -> dict[str, Hold]:
    """By run: why each waiting gang waits, its place, its estimate and its factors."""
    gangs = ledger.gangs(pool, {*HOLDING_STATES, GangState.WAITING})
    holdings = ledger.holders(pool)
    for_run = {eviction.run_id: eviction.for_run for eviction in ledger.evictions(pool)}
    running = [
        running_gang(gang, holdings, for_run=for_run, conditional_until=None)
        for gang in gangs
        if gang.state in HOLDING_STATES and gang.placement is not None
    ]
    snapshot = build_snapshot(
        nodes=ledger.nodes(pool),
        running=running,
        teams=ledger.teams(pool),
        shadows=[Shadow(**{**row, "devices": tuple(row["devices"])}) for row in ledger.shadows(pool)],
        usage=ledger.usage(pool),
        pool=pool,
    )
    waiting = [queued(gang) for gang in gangs if gang.state is GangState.WAITING]
    return {hold.run_id: hold for hold in plan(snapshot, waiting, Policy(), now).holds}


def reason_if_alone(request: GangRequest, *, team: Team, nodes: Sequence[Node]) -> Reason | None:
    """Why a gang would wait even if nobody else were there; None if it would start."""
    snapshot = build_snapshot(nodes=nodes, running=(), teams={team.name: team}, pool="")
    alone = QueuedGang(run_id="alone", team=team.name, request=request, submitted_at=0.0, eligible_at=0.0)
    for hold in plan(snapshot, [alone], Policy(), 0.0).holds:
        return hold.reason
    return None
