"""Many admissions in one transaction: each is judged alone and in its order, and what was judged is written in sets.

A commit waits for the disk, and a leader that admits a thousand gangs one commit each does little else. So a batch is
read with a few statements, judged in memory, each admission seeing those before it, and written with a few
statements. The unique key of (device, turn) stays the last word: if another pool's leader took a device in between,
what the batch has written is undone, and each of its gangs is read, judged and written alone, so that only the one
which lost gets nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dsec_blocks.ledger import durations, evictions, prefetches, resuming, schema
from dsec_blocks.ledger.decisions import Decision
from dsec_blocks.ledger.resuming import Resumption, Unavailable
from dsec_blocks.ledger.rows import GANG_COLUMNS, chunks, fresh_attempt, gangs_of
from dsec_blocks.model.errors import ReservationConflict
from dsec_blocks.model.gangs import Gang, GangState, Placement

_gangs = schema.gangs
_rows = schema.reservations

Answer = Gang | ReservationConflict
"""The gang with its new attempt, or why it was not admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """A waiting gang, the place it is to get, and until when its user code must run there.

    A device that a victim (or a gang already evicting, not yet promised to anybody) holds is promised behind it.
    Victims that are to go on at once have their `resumptions`: what these need is reserved for them with it; one that
    has begun to leave meanwhile leaves as it was told.
    `costs` are the victims' costs in device-seconds, for the record. What a gang that is `lifted` has had counts
    anew, and it is not lifted again. One that passes the head of line on a condition may stay until
    `conditional_until`. `entry` goes into the decision log with the admission, and only with it.
    """

    run_id: str
    placement: Placement
    expires_at: float
    victims: Sequence[str] = ()
    resumptions: Sequence[Resumption] = ()
    why: str = ""
    costs: Mapping[str, float] = field(default_factory=dict)
    lifted: bool = False
    conditional_until: float | None = None
    entry: Decision | None = None


def admit(connection: sa.Connection, requests: Sequence[AdmissionRequest], *, now: float) -> list[Answer]:
    """Admit each of them whole or not at all; the answers in their order."""
    if connection.dialect.name == "sqlite":  # nobody else writes before we have committed
        return _admit(connection, requests, now)
    if len(requests) > 1:
        try:
            with connection.begin_nested():
                return _admit(connection, requests, now)
        except _Taken:
            pass
    return [_admit_alone(connection, request, now) for request in requests]


def _admit_alone(connection: sa.Connection, request: AdmissionRequest, now: float) -> Answer:
    try:
        with connection.begin_nested():
            return _admit(connection, [request], now)[0]
    except _Taken:
        return _promised_away(request.run_id)


def _admit(connection: sa.Connection, requests: Sequence[AdmissionRequest], now: float) -> list[Answer]:
    books = _Books.read(connection, requests)
    answers: list[Answer] = []
    won: list[tuple[AdmissionRequest, Gang]] = []
    resumptions: list[Resumption] = []
    for request in requests:
        going_on = books.resumptions(request)
        try:
            gang = books.enter(request, now)
        except ReservationConflict as conflict:
            answers.append(conflict)
        else:
            answers.append(gang)
            won.append((request, gang))
            resumptions += going_on
    if won:
        _write(connection, won, books.reserved, now)
        resuming.remember(connection, resumptions, now=now)
    return answers


class _Taken(Exception):
    """A device was reserved by another leader between our look and our writing."""


@dataclass(kw_only=True)
class _Books:
    """What a batch was judged by: the database as read under its locks, and what the batch has entered since."""

    gangs: dict[str, Gang]
    states: dict[str, str]
    """Of every gang that waits in this batch, is a victim in it, or holds a device that it asks for."""
    holders: dict[tuple[str, int], str]
    """(device, turn) → run."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Of the victims."""
    spoken_for: set[str] = field(default_factory=set)
    """Devices at which somebody is to go on once it has left: its state says that it leaves, but not from there."""
    reserved: list[dict[str, Any]] = field(default_factory=list)
    """Rows of reservations that the batch will write."""

    @classmethod
    def read(cls, connection: sa.Connection, requests: Sequence[AdmissionRequest]) -> "_Books":
        """Lock and read the gangs that are to be admitted, and the reservations of the devices that they ask for."""
        gangs: dict[str, Gang] = {}
        states: dict[str, str] = {}
        attempts: dict[str, int] = {}
        holders: dict[tuple[str, int], str] = {}
        spoken_for: set[str] = set()
        for some in chunks(sorted({request.run_id for request in requests})):
            query = sa.select(*GANG_COLUMNS).where(_gangs.c.run_id.in_(some)).order_by(_gangs.c.run_id)
            gangs |= {gang.run_id: gang for gang in gangs_of(connection.execute(query.with_for_update()))}
        for some in chunks(sorted({victim for request in requests for victim in request.victims})):
            query = sa.select(_gangs.c.run_id, _gangs.c.state, _gangs.c.attempt).where(_gangs.c.run_id.in_(some))
            for row in connection.execute(query):
                states[row.run_id], attempts[row.run_id] = row.state, row.attempt
        places = [request.placement for request in requests]
        places += [resumption.placement for request in requests for resumption in request.resumptions]
        for some in chunks(sorted({uuid for place in places for uuid in place.devices})):
            is_coming = (_rows.c.attempt > _gangs.c.attempt).label("is_coming")
            held = (
                sa.select(_rows.c.device, _rows.c.turn, _rows.c.run_id, _gangs.c.state, is_coming)
                .join_from(_rows, _gangs)
                .where(_rows.c.device.in_(some))
                .order_by(_rows.c.device, _rows.c.turn)
                .with_for_update(of=_rows)
            )
            for row in connection.execute(held):
                holders[row.device, row.turn] = row.run_id
                states[row.run_id] = row.state
                if row.is_coming:
                    spoken_for.add(row.device)
        states |= {run_id: gang.state for run_id, gang in gangs.items()}
        return cls(gangs=gangs, states=states, holders=holders, attempts=attempts, spoken_for=spoken_for)

    def enter(self, request: AdmissionRequest, now: float) -> Gang:
        """Judge one admission by the books, and enter it; the gang as it is then.

        Raises `ReservationConflict`, and has entered nothing.
        """
        run_id, gang = request.run_id, self.gangs.get(request.run_id)
        if gang is None or self.states[run_id] != GangState.WAITING:
            state = "unknown to the ledger" if gang is None else f"{self.states[run_id]}, attempt {gang.attempt}"
            raise ReservationConflict(f"run {run_id}: it is {state}; nothing was reserved")
        rows = list(self._rows(request, gang, now))
        for victim in request.victims:
            if self.states.get(victim) == GangState.RESERVED:
                raise ReservationConflict(
                    f"run {run_id}: its victim {victim} has not started; undo that admission instead"
                )
        taken = {(row["device"], row["turn"]): run_id for row in rows}
        coming = self._rows_of_resumptions(request, gang.pool, taken, now)
        self.reserved += rows + coming
        self.holders |= taken
        self.spoken_for.update(row["device"] for row in coming)
        for victim in request.victims:
            if self.states.get(victim) in (GangState.LAUNCHING, GangState.RUNNING):
                self.states[victim] = GangState.EVICTING
        self.states[run_id] = GangState.RESERVED
        entered = self.gangs[run_id] = replace(
            gang,
            state=GangState.RESERVED,
            attempt=gang.attempt + 1,
            placement=request.placement,
            admitted_at=now,
            expires_at=request.expires_at,
            conditional_until=request.conditional_until,
            **fresh_attempt(),
            **(_lift() if request.lifted else {}),
        )
        return entered

    def _rows(self, request: AdmissionRequest, gang: Gang, now: float) -> Iterator[dict[str, Any]]:
        run_id = request.run_id
        wanted = sorted((uuid, member.node) for member in request.placement.members for uuid in member.devices)
        if len({uuid for uuid, _node in wanted}) < len(wanted):
            raise ReservationConflict(f"run {run_id}: its placement names a device twice; nothing was reserved")
        for uuid, node in wanted:
            holder = self.holders.get((uuid, 0))
            leaves = holder is None or self.states[holder] == GangState.EVICTING or holder in request.victims
            if not leaves or uuid in self.spoken_for:
                raise ReservationConflict(
                    f"run {run_id}: device {uuid} on {node} is held by run {holder}; nothing was reserved"
                )
            turn = 0 if holder is None else 1
            if (uuid, turn) in self.holders:
                raise _promised_away(run_id)
            yield {
                "device": uuid,
                "turn": turn,
                "run_id": run_id,
                "attempt": gang.attempt + 1,
                "pool": gang.pool,
                "node": node,
                "state": "reserved",
                "charged_until": now if turn == 0 else None,
            }

    def _rows_of_resumptions(
        self, request: AdmissionRequest, pool: str, taken: dict[tuple[str, int], str], now: float
    ) -> list[dict[str, Any]]:
        """What the victims that go on elsewhere need there, entered in `taken` as well."""
        found: list[dict[str, Any]] = []
        for each in self.resumptions(request):
            holders, attempt = {**self.holders, **taken}, self.attempts[each.run_id] + 1
            try:
                rows = list(resuming.rows_of(each, pool=pool, attempt=attempt, holders=holders, now=now))
            except Unavailable as error:
                raise ReservationConflict(f"run {request.run_id}: {error}; nothing was reserved") from None
            found += rows
            taken |= {(row["device"], row["turn"]): each.run_id for row in rows}
        return found

    def resumptions(self, request: AdmissionRequest) -> list[Resumption]:
        """Those of the request's that begin with it: of gangs that nobody has told to leave yet."""
        alive = (GangState.LAUNCHING, GangState.RUNNING)
        return [each for each in request.resumptions if self.states.get(each.run_id) in alive]


def _promised_away(run_id: str) -> ReservationConflict:
    return ReservationConflict(
        f"run {run_id}: a device it needs was taken by, or is promised to, another gang; nothing was reserved"
    )


def _lift() -> dict[str, Any]:
    return {"attained_seconds": 0.0, "lifted": True}


def _write(
    connection: sa.Connection,
    won: Sequence[tuple[AdmissionRequest, Gang]],
    reserved: Sequence[Mapping[str, Any]],
    now: float,
) -> None:
    expected: dict[str, float | None] = {}
    for pool in sorted({gang.pool for _, gang in won}):
        expected |= durations.expectations(connection, pool, [gang for _, gang in won if gang.pool == pool])
    for lifted in (False, True):
        changed = [
            {
                "known": gang.run_id,
                "to": gang.placement.to_json(),
                "until": gang.expires_at,
                "condition": gang.conditional_until,
                "expects": expected[gang.run_id],
            }
            for request, gang in won
            if request.lifted is lifted and gang.placement is not None
        ]
        if changed:
            values: dict[str, Any] = {
                "state": GangState.RESERVED,
                "attempt": _gangs.c.attempt + 1,
                "placement": sa.bindparam("to", type_=_gangs.c.placement.type),
                "admitted_at": now,
                "expires_at": sa.bindparam("until"),
                "conditional_until": sa.bindparam("condition"),
                "expected_seconds": sa.bindparam("expects"),
            }
            values |= fresh_attempt() | (_lift() if lifted else {})
            connection.execute(
                sa.update(_gangs).where(_gangs.c.run_id == sa.bindparam("known")).values(values), changed
            )
    if reserved:
        try:
            # Always in the same order, so that leaders of two pools that want the same devices wait in a line.
            connection.execute(sa.insert(_rows), sorted(reserved, key=lambda row: (row["device"], row["turn"])))
        except IntegrityError as error:
            if connection.dialect.name == "sqlite":
                raise
            raise _Taken from error
    prefetches.order(connection, [gang for _, gang in won], now=now)
    for request, gang in won:
        if request.victims:
            evictions.notice(
                connection,
                pool=gang.pool,
                run_ids=request.victims,
                for_run=gang.run_id,
                why=request.why or gang.name,
                whys={each.run_id: each.why for each in request.resumptions},
                costs=request.costs,
                now=now,
            )
    entries = [asdict(request.entry) for request, _ in won if request.entry is not None]
    if entries:
        connection.execute(sa.insert(schema.decisions), entries)
