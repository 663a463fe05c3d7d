"""What the command line and the sweeps wish for, made so by the leader.

A wish is closed when it has been set in motion durably; a drain stays open for as long as its node is to stay empty.
"""

from dsec_blocks.ledger import Wish
from dsec_blocks.model.gangs import Gang
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import ApiRefused


async def fulfil(term: Term, gangs: dict[str, Gang]) -> dict[str, str]:
    """Act on the open wishes. Returns the nodes that are being drained, each with its reason."""
    drained: dict[str, str] = {}
    for wish in await term.read(term.ledger.wishes, term.pool):
        if wish.kind == "drain":
            node = str(wish.args.get("node") or "")
            if wish.args.get("undo"):
                await _end_drain(term, node, wish)
            elif node:
                drained[node] = f"{node} is being drained by {wish.by}: {wish.why}"
                await _empty(term, node, wish, gangs)
            else:
                await term.write(term.ledger.fulfil, wish.id, "refused: a drain names its node")
            continue
        outcome = await _once(term, wish, gangs.get(wish.run_id or ""))
        await term.write(term.ledger.fulfil, wish.id, outcome)
        term.decide("wish", wish.kind, run_id=wish.run_id, why=f"{wish.by}: {wish.why}", detail=wish.args)
    return drained


async def _once(term: Term, wish: Wish, gang: Gang | None) -> str:
    run_id = wish.run_id
    if run_id is None:
        return f"refused: {wish.kind} names no run"
    if wish.kind == "evict":
        if gang is None:
            return f"refused: run {run_id} holds nothing"
        told = await term.write(term.ledger.evict, [run_id], why=f"Evicted by {wish.by}: {wish.why}")
        return "evicting" if told else f"refused: the gang is {gang.state}"
    if wish.kind == "cancel":
        transition = await term.api.cancel(run_id, f"Cancelled by {wish.by}: {wish.why}")
        state = transition.state.name if transition.state else transition.detail
        return "cancelling" if transition.accepted or state == "Cancelled" else f"refused: the run is {state}"
    return await _prioritize(term, wish, run_id)


async def _prioritize(term: Term, wish: Wish, run_id: str) -> str:
    priority = wish.args.get("priority")
    run = await term.api.run(run_id)
    if run is None:
        return f"refused: there is no run {run_id}"
    try:
        await term.api.override_job_variables(run_id, {**run.job_variables, "priority": priority})
    except ApiRefused as error:
        return f"refused: {error}"
    term.left(run_id)
    term.mention(run_id)
    return f"priority {priority}"


async def _empty(term: Term, node: str, wish: Wish, gangs: dict[str, Gang]) -> None:
    on_it = [
        gang.run_id
        for gang in gangs.values()
        if gang.placement is not None and any(member.node == node for member in gang.placement.members)
    ]
    if on_it:
        await term.write(term.ledger.evict, on_it, why=f"Node {node} is being drained: {wish.why}")


async def _end_drain(term: Term, node: str, wish: Wish) -> None:
    for other in await term.read(term.ledger.wishes, term.pool):
        if other.kind == "drain" and other.args.get("node") == node and not other.args.get("undo"):
            await term.write(term.ledger.fulfil, other.id, f"ended by {wish.by}")
    await term.write(term.ledger.fulfil, wish.id, f"{node} is in use again")
