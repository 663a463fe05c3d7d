"""Gangs that make room by going on elsewhere, or smaller, or that grow: where they resume is theirs from the notice on.

The reservation is made in the transaction that tells the gang to leave, under its next attempt: a row of that attempt
holds a free device (turn 0), or stands behind the gang's own present row (turn 1) where it keeps the device. So no
newcomer and no other pool's leader takes the place, and whoever leads next finds it. When the gang has left, the step
that would put it back into the queue reserves it there instead. A gang that ends some other way, whose notice is
withdrawn, or that has not left by `expires_at` gives the place up whole.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dsec_blocks.ledger import prefetches, reservations, schema
from dsec_blocks.ledger.reservations import Holder
from dsec_blocks.ledger.rows import GANG_COLUMNS, chunks, fresh_attempt, gangs_of
from dsec_blocks.model.gangs import Gang, GangState, Placement

_gangs = schema.gangs
_rows = schema.reservations


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """Where the gang goes on once it has left, what it is told, and until when its user code must run there."""

    run_id: str
    placement: Placement
    why: str
    expires_at: float


class Unavailable(Exception):
    """A device of the place is held or promised; the text says which."""


def rows_of(
    resumption: Resumption, *, pool: str, attempt: int, holders: Mapping[tuple[str, int], str], now: float
) -> Iterator[dict[str, Any]]:
    """The reservations of the gang's next `attempt`, given who holds (device, turn). Raises `Unavailable`."""
    for member in resumption.placement.members:
        for uuid in member.devices:
            holder = holders.get((uuid, 0))
            turn = 0 if holder is None else 1
            if holder not in (None, resumption.run_id) or (uuid, turn) in holders:
                raise Unavailable(
                    f"device {uuid} on {member.node}, where run {resumption.run_id} would go on, is taken"
                )
            yield {
                "device": uuid,
                "turn": turn,
                "run_id": resumption.run_id,
                "attempt": attempt,
                "pool": pool,
                "node": member.node,
                "state": "reserved",
                "charged_until": now if turn == 0 else None,
            }


def reserve(connection: sa.Connection, resumption: Resumption, *, now: float) -> bool:
    """Reserve where a running gang will go on; False if it does not run, or a device of the place is taken."""
    mine = (_gangs.c.run_id == resumption.run_id, _gangs.c.state.in_([GangState.LAUNCHING, GangState.RUNNING]))
    gang = connection.execute(sa.select(_gangs.c.pool, _gangs.c.attempt).where(*mine).with_for_update()).one_or_none()
    if gang is None:
        return False
    holders: dict[tuple[str, int], str] = {}
    for some in chunks(sorted(resumption.placement.devices)):
        held = sa.select(_rows.c.device, _rows.c.turn, _rows.c.run_id).where(_rows.c.device.in_(some))
        holders |= {(row.device, row.turn): row.run_id for row in connection.execute(held)}
    try:
        rows = list(rows_of(resumption, pool=gang.pool, attempt=gang.attempt + 1, holders=holders, now=now))
        with connection.begin_nested():
            connection.execute(sa.insert(_rows), sorted(rows, key=lambda row: (row["device"], row["turn"])))
    except (Unavailable, IntegrityError):  # the latter: another pool's leader was faster
        return False
    return True


def remember(connection: sa.Connection, resumptions: Sequence[Resumption], *, now: float) -> None:
    """These gangs, which have just been told to leave, go on where rows were reserved; the nodes fetch their inputs."""
    if not resumptions:
        return
    places = {each.run_id: each for each in resumptions}
    values = {
        "resumes_at": sa.bindparam("to", type_=_gangs.c.resumes_at.type),
        "expires_at": sa.bindparam("until"),
    }
    changed = [{"known": each.run_id, "to": each.placement.to_json(), "until": each.expires_at} for each in resumptions]
    connection.execute(sa.update(_gangs).where(_gangs.c.run_id == sa.bindparam("known")).values(**values), changed)
    with_inputs: list[Gang] = []
    for some in chunks(sorted(places)):
        for gang in gangs_of(connection.execute(sa.select(*GANG_COLUMNS).where(_gangs.c.run_id.in_(some))).all()):
            if gang.request.inputs:
                coming = replace(gang, attempt=gang.attempt + 1, placement=places[gang.run_id].placement)
                with_inputs.append(coming)
    prefetches.order(connection, with_inputs, now=now)


def deadline() -> sa.ColumnElement[Any]:
    """What `expires_at` becomes when a gang has no reservation left to bind but, maybe, the one where it goes on."""
    return sa.case((_gangs.c.resumes_at.is_(None), sa.null()), else_=_gangs.c.expires_at)


def on_their_way(connection: sa.Connection, run_ids: Collection[str]) -> dict[str, int]:
    """Those of the runs that are to go on somewhere, with their present attempt."""
    found: dict[str, int] = {}
    for some in chunks(sorted(set(run_ids))):
        mine = (_gangs.c.run_id.in_(some), _gangs.c.resumes_at.is_not(None))
        for row in connection.execute(sa.select(_gangs.c.run_id, _gangs.c.attempt).where(*mine)):
            found[row.run_id] = row.attempt
    return found


def resume(connection: sa.Connection, run_id: str, attempt: int, *, expires_at: float, now: float) -> bool:
    """Leaving → reserved where it goes on, as its next attempt, an eviction the more; False if that cannot be."""
    leaving = (_gangs.c.run_id == run_id, _gangs.c.attempt == attempt, _gangs.c.state == GangState.LEAVING)
    place = connection.execute(sa.select(_gangs.c.resumes_at).where(*leaving)).scalar_one_or_none()
    if place is None:
        return False
    held = reservations.devices_held(connection, run_id=run_id, attempt=attempt + 1)
    if set(held) != set(Placement.from_json(place).devices):
        return False
    values: dict[str, Any] = {
        "state": GangState.RESERVED,
        "attempt": attempt + 1,
        "placement": place,
        "resumes_at": None,
        "admitted_at": now,
        "expires_at": expires_at,
        "evictions": _gangs.c.evictions + 1,
        **fresh_attempt(),
    }
    return connection.execute(sa.update(_gangs).where(*leaving).values(**values)).rowcount == 1


def give_up(connection: sa.Connection, run_ids: Iterable[str], *, now: float) -> None:
    """What is reserved for the next attempts of these gangs is free again; they are no longer to go on there."""
    for run_id, attempt in on_their_way(connection, list(run_ids)).items():
        mine = _gangs.c.run_id == run_id
        gang = connection.execute(sa.select(_gangs.c.pool, _gangs.c.team).where(mine)).one()
        coming = attempt + 1
        held = Holder(run_id, coming, gang.pool, gang.team)
        reservations.release(connection, [held], now=now, written=[run_id])
        prefetches.withdraw(connection, [(run_id, coming)], now=now)
        connection.execute(sa.update(_gangs).where(mine).values(resumes_at=None, expires_at=None))
