"""What the command line and the sweeps wish for, made so by the leader.

A wish is closed when it has been set in motion durably; an order (a freeze, a drain, a reservation, a word on a single
run) stays open for as long as it is to hold, and is logged when it is first taken up.
"""

from collections.abc import Mapping, Sequence

from dsec_blocks.ledger import STANDING_KINDS, Decision, Wish
from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import Gang
from dsec_workers.lifecycle.orders import FREEZE_SCOPES, Orders, must_leave, standing
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import ApiRefused, ApiUnavailable
from dsec_workers.scheduling.policy import Policy


async def fulfil(term: Term, gangs: Mapping[str, Gang], policy: Policy, nodes: Sequence[Node]) -> Orders:
    """Act on the open wishes, and on the orders that stand. Returns what stands now."""
    wishes = await term.read(term.ledger.wishes, term.pool)
    answered: set[int] = set()
    for wish in wishes:
        refusal = _refusal(wish)
        if wish.kind in STANDING_KINDS and refusal is None and not wish.args.get("undo"):
            if wish.taken_up_at is None:
                await term.write(term.ledger.take_up, wish.id, _entry(term, wish))
            continue
        if refusal is not None:
            outcome = f"refused: {refusal}"
        elif wish.kind in _ENDS:
            outcome, ended = await _end(term, wish, wishes)
            answered |= ended
        else:
            try:
                outcome = await _once(term, wish, gangs.get(wish.run_id or ""))
            except ApiRefused as error:
                outcome = f"refused: {error}"
            except ApiUnavailable as error:  # it stays open; the others, and the plan, do not wait for it
                term.log.warning("%s of %s waits for the Prefect API: %s", wish.kind, wish.run_id, error)
                continue
        await term.write(term.ledger.fulfil, wish.id, outcome)
        answered.add(wish.id)
        term.decide("wish", wish.kind, run_id=wish.run_id, why=f"{wish.by}: {wish.why}", detail=wish.args)
    now = term.clock.now()
    orders = standing((wish for wish in wishes if wish.id not in answered), nodes, now)
    for wish_id, outcome in orders.over:
        await term.write(term.ledger.fulfil, wish_id, outcome)
    for why, run_ids in must_leave(orders, gangs.values(), policy, now).items():
        await term.write(term.ledger.evict, run_ids, why=why)
    return orders


def _entry(term: Term, wish: Wish) -> Decision:
    return Decision(
        at=term.clock.now(),
        pool=term.pool,
        run_id=wish.run_id,
        stage="order",
        outcome=wish.kind,
        why=f"{wish.by}: {wish.why}",
        detail=wish.args,
    )


def _refusal(wish: Wish) -> str | None:
    """What is wrong with a wish that no command line would have written."""
    args = wish.args
    if wish.kind == "drain" and not args.get("node"):
        return "a drain names its node"
    if wish.kind in ("freeze", "thaw"):
        if args.get("scope") not in FREEZE_SCOPES:
            return f"a {wish.kind} is of {', '.join(FREEZE_SCOPES)}"
        if args["scope"] != "all" and not args.get("name"):
            return f"a {wish.kind} of a {args['scope']} names it"
    if wish.kind == "reserve" and not (args.get("devices") and args.get("end", 0) > args.get("start", 0)):
        return "a reservation has devices, and an end after its start"
    if wish.kind in ("override", "lift") and wish.run_id is None:
        return f"{wish.kind} names no run"
    return None


_ENDS = {"drain": "drain", "thaw": "freeze", "unreserve": "reserve", "lift": "override"}
"""Kinds that end an order of another kind (a drain with `undo` ends drains)."""


async def _end(term: Term, wish: Wish, wishes: Sequence[Wish]) -> tuple[str, set[int]]:
    """Close the orders that the wish takes back."""
    ended = {other.id for other in wishes if other.kind == _ENDS[wish.kind] and _same(wish, other)}
    for wish_id in sorted(ended):
        await term.write(term.ledger.fulfil, wish_id, f"ended by {wish.by}")
    if wish.kind == "drain":
        return f"{wish.args.get('node')} is in use again", ended
    return ("ended" if ended else "refused: there is no such order"), ended


def _same(wish: Wish, other: Wish) -> bool:
    match wish.kind:
        case "drain":
            return not other.args.get("undo") and other.args.get("node") == wish.args.get("node")
        case "thaw":
            return all(other.args.get(key) == wish.args.get(key) for key in ("scope", "name"))
        case "unreserve":
            return other.id == wish.args.get("id")
        case _:
            return other.run_id == wish.run_id


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
    await term.api.override_job_variables(run_id, {**run.job_variables, "priority": priority})
    term.left(run_id)
    term.mention(run_id)
    return f"priority {priority}"
