"""Gangs that move or shrink to make room, and those that grow: they checkpoint, leave, and go on at once.

The place is reserved with the notice (`dsec_blocks/ledger/resuming.py`), so whoever leads next goes on from any
instruction: an evicting gang is told, one that has left is reserved where it goes on and claimed like any other.
"""

from dsec_blocks.ledger import Resumption
from dsec_blocks.model.gangs import Gang, Placement
from dsec_workers.lifecycle.term import Term


def resumption(term: Term, gang: Gang, placement: Placement, for_gang: Gang | None) -> Resumption:
    """What the ledger is asked for; the place is kept for as long as the gang may take to leave, and to start."""
    expires_at = term.steady() + gang.request.grace_seconds + term.settings.reservation_seconds
    told = why(gang, placement, for_gang)
    return Resumption(run_id=gang.run_id, placement=placement, why=told, expires_at=expires_at)


def why(gang: Gang, placement: Placement, for_gang: Gang | None) -> str:
    """What the gang is told, and its run's page says; `for_gang` is None for one that grows."""
    assert gang.placement is not None
    present, coming = len(gang.placement.members), len(placement.members)
    if for_gang is None:
        return f"Grows from {present} to {_nodes(coming)}"
    if coming < present:
        return f"Shrinks from {present} to {_nodes(coming)} to make room for {for_gang.name}"
    return f"Moves to make room for {for_gang.name}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def tell(term: Term, gang: Gang, told: str, *, cost: float | None = None, policy_version: str = "") -> None:
    """Put it into the decision log of the gang itself."""
    assert gang.placement is not None and gang.resumes_at is not None
    more = len(gang.resumes_at.members) - len(gang.placement.members)
    detail = {"placement": gang.resumes_at.to_json(), **({} if cost is None else {"cost": cost})}
    outcome = "grow" if more > 0 else "shrink" if more < 0 else "move"
    term.decide("plan", outcome, run_id=gang.run_id, why=told, detail=detail, policy_version=policy_version)
