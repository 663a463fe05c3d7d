"""Gangs in every state, in one line each."""

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.gangs import Gang, GangState, MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_workers.lifecycle.mirror import view_of

POOL = "pool"
LATER = 2_000_000.0


def waiting(
    run_id: str, *, team: str = "default", pool: str = POOL, submitted_at: float = 10.0, inputs: tuple[str, ...] = ()
) -> Gang:
    return Gang(
        run_id=run_id,
        name=f"run of {run_id}",
        pool=pool,
        team=team,
        request=GangRequest(nodes=1, devices_per_node=2, inputs=inputs),
        state=GangState.WAITING,
        submitted_at=submitted_at,
        eligible_at=submitted_at,
    )


def on(*devices: str) -> Placement:
    """A placement on devices written `node/device`; without any, one CPU-only member."""
    nodes: dict[str, list[str]] = {}
    for device in devices:
        nodes.setdefault(device.partition("/")[0], []).append(device)
    if not nodes:
        return Placement(members=(MemberPlacement(node="n1"),))
    return Placement(members=tuple(MemberPlacement(node=node, devices=tuple(uuids)) for node, uuids in nodes.items()))


def admitted(
    ledger: Ledger,
    fence: Fence,
    run_id: str,
    *devices: str,
    victims: tuple[str, ...] = (),
    inputs: tuple[str, ...] = (),
) -> Gang:
    ledger.enqueue(fence, [waiting(run_id, pool=fence.pool, inputs=inputs)])
    return ledger.admit(fence, run_id, on(*devices), victims=victims, expires_at=LATER)


def launching(ledger: Ledger, fence: Fence, run_id: str, *devices: str, victims: tuple[str, ...] = ()) -> Gang:
    gang = admitted(ledger, fence, run_id, *devices, victims=victims)
    ledger.claimed(fence, run_id, gang.attempt, user_retries=None)
    return known(ledger, run_id)


def running(ledger: Ledger, fence: Fence, run_id: str, *devices: str) -> Gang:
    gang = launching(ledger, fence, run_id, *devices)
    ledger.started(fence, run_id, gang.attempt, 20.0)
    return known(ledger, run_id)


def known(ledger: Ledger, run_id: str) -> Gang:
    gang = ledger.gang(run_id)
    assert gang is not None
    return gang


def held(ledger: Ledger) -> set[tuple[str, int, str]]:
    """(device, turn, run) of every reservation."""
    return {(holding.device, holding.turn, holding.run_id) for holding in ledger.holders(POOL)}


def expired(ledger: Ledger, now: float) -> list[str]:
    """The runs for which something is reserved that was not bound in time, as their leader sees it."""
    return sorted(view_of(ledger.whole(POOL)).expired(now))
