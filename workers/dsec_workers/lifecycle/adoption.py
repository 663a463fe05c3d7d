"""A new leader finds what its predecessor left: gangs that run on, claims half made, ends nobody wrote down.

Two lists are compared, the ledger's and the cluster's. What is in both goes on; what only the cluster has is an old
attempt and is swept; what only the ledger has is lost, unless it was never launched. A gang of a newer DSec is touched
by nobody: where the ledger has it, too, a newer worker has led this pool and this one can only leave. Else anybody may
have written that on a pod, who must not be able to stop a pool with it.
"""

from dsec_blocks.model.errors import GangTooNew
from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState
from dsec_workers.clusters.protocol import DevicesReleased, GangKey, Gone, ObservedGang
from dsec_workers.lifecycle.happenings import apply
from dsec_workers.lifecycle.term import Term, key_of


async def adopt(term: Term) -> None:
    """Bring the ledger up to what the cluster shows. Running it twice writes nothing the second time.

    Raises `GangTooNew`, with nothing written, when a newer DSec has started a gang of the ledger.
    """
    observed = {gang.key: gang for gang in await term.cluster.adopt()}
    holding = await term.read(term.ledger.gangs, term.pool, HOLDING_STATES | {GangState.LEAVING})
    current = {key_of(gang): gang for gang in holding}
    for key, found in [*observed.items()]:
        if found.too_new is not None:
            _leave_alone(term, observed.pop(key), is_ours=key in current)
    for key, found in observed.items():
        if key in current:
            await _go_on(term, current[key], found)
        else:
            await _sweep(term, key, found)
    for key, gang in current.items():
        if key not in observed and gang.launch and gang.state is not GangState.LEAVING:
            outcome = {"kind": "lost", "at": term.clock.now(), "last_commit_step": gang.last_step, "flow_exit": None}
            await term.write(term.ledger.leave, gang.run_id, gang.attempt, outcome)
    await _recall_notices(term)
    if observed:
        term.log.info("adopted %d of %d gangs on the cluster", len(observed.keys() & current.keys()), len(observed))


def _leave_alone(term: Term, found: ObservedGang, *, is_ours: bool) -> None:
    assert found.too_new is not None
    if is_ours:
        raise GangTooNew(found.too_new)
    if found.key not in term.left_alone:
        term.left_alone.add(found.key)
        term.log.warning("left alone, and what it takes is foreign: no gang of this pool's ledger; %s", found.too_new)


async def _go_on(term: Term, gang: Gang, found: ObservedGang) -> None:
    if gang.state in (GangState.LAUNCHING, GangState.EVICTING) and not gang.launch:
        await term.write(term.ledger.launched, gang.run_id, gang.attempt, dict(found.launch))
    if gang.state is GangState.RESERVED:
        # Launched by a leader that had been replaced before it wrote the claim down.
        await term.cluster.stop(found.key, 0.0)
        return
    for event in found.events:
        await apply(term, event)


async def _sweep(term: Term, key: GangKey, found: ObservedGang) -> None:
    if any(isinstance(event, Gone) for event in found.events):
        await term.cluster.forget(key)
        return
    if not any(isinstance(event, DevicesReleased) for event in found.events):
        term.decide("adopt", "swept", run_id=key.run_id, why=f"attempt {key.attempt} is no longer current")
    await term.cluster.stop(key, 0.0)


async def _recall_notices(term: Term) -> None:
    """The predecessor's notices: why each was given, so that the run's page can say so."""
    for eviction in await term.read(term.ledger.evictions, term.pool):
        term.noticed_at.setdefault(GangKey(eviction.run_id, eviction.attempt), eviction.noticed_at)
