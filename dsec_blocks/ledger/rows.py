"""Values as rows and back, and writing rows that may exist already.

A request is kept as canonical text, so that equal ones are parsed once and compared as text. A leader reads every gang
of its pool before each plan, so a row costs as little as it can: the database hands out nested values as their text,
and what is empty, as most are, is not parsed at all.
"""

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dsec_blocks.ledger import schema
from dsec_blocks.model.bulk import builder, nothing_is_garbage
from dsec_blocks.model.errors import LedgerError
from dsec_blocks.model.gangs import Gang, GangState, Placement
from dsec_blocks.model.requests import GangRequest

_Item = TypeVar("_Item")

_GANG_FIELDS = tuple(field.name for field in dataclasses.fields(Gang))
_RUN_ID, _REQUEST, _STATE, _TAGS = map(_GANG_FIELDS.index, ("run_id", "request", "state", "tags"))
_PLACEMENTS = tuple(map(_GANG_FIELDS.index, ("placement", "resumes_at")))
_FLAGS = tuple(map(_GANG_FIELDS.index, ("has_on_evict", "lifted")))
_MAPPINGS = tuple(map(_GANG_FIELDS.index, ("metrics", "launch", "outcome")))
_STATES = {state.value: state for state in GangState}
_gang = builder(Gang)


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)  # not-a-number and infinity, which it refuses; and what is no JSON, in its words


def _read(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    if isinstance(column.type, sa.Boolean):  # so that no column of so many rows has anything to be converted
        return sa.type_coerce(column, sa.Integer).label(column.name)
    return sa.cast(column, sa.Text).label(column.name) if isinstance(column.type, sa.JSON) else column


GANG_COLUMNS = tuple(_read(schema.gangs.c[name]) for name in _GANG_FIELDS)
"""What `gang_of` reads, in its order: on either database nested values come as text."""

CHUNK = 500
"""Values in one IN list: far below what either database takes."""


def chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """`items` in pieces that fit an IN list."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def insert_new(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows whose key is not there yet; leave the others alone."""
    connection.execute(insert_or(connection, table).on_conflict_do_nothing(), list(rows))


def upsert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, or make those with the same key equal to them. All rows have the same columns."""
    insert = insert_or(connection, table)
    key = [column.name for column in table.primary_key]
    changed = {name: insert.excluded[name] for name in rows[0] if name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=changed), list(rows))


def touch(connection: sa.Connection, run_ids: Collection[str]) -> None:
    """What these gangs hold has changed, though nothing in their own rows has: whoever asks for news hears of them."""
    for some in chunks(sorted(run_ids)):
        same = {"name": schema.gangs.c.name}
        connection.execute(sa.update(schema.gangs).where(schema.gangs.c.run_id.in_(some)).values(same))


def gangs_of(rows: Iterable[Sequence[Any]]) -> list[Gang]:
    """The gangs that rows of `GANG_COLUMNS` stand for.

    Raises `LedgerError` naming the run and the column whose value cannot be what this ledger wrote.
    """
    with nothing_is_garbage():
        return [gang_of(row) for row in rows]


def gang_of(row: Sequence[Any]) -> Gang:
    """The gang that one row of `GANG_COLUMNS` stands for. Raises `LedgerError` as `gangs_of` does."""
    values = list(row)
    at = _REQUEST
    try:
        values[at] = request_of_text(values[at])
        at = _STATE
        values[at] = _STATES[values[at]]
        for at in _MAPPINGS:
            text = values[at]
            values[at] = {} if text == "{}" else _mapping(text)
        for at in _FLAGS:
            values[at] = bool(values[at])
        at = _TAGS
        text = values[at]
        values[at] = () if text is None or text == "[]" else tuple(_parsed(text))
        for at in _PLACEMENTS:
            text = values[at]
            if text is not None:
                values[at] = Placement.from_json(_parsed(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(
            f"run {values[_RUN_ID]}: its row in the ledger is damaged: {_GANG_FIELDS[at]} cannot be read ({error!r}); "
            "restore a backup (`dsec ledger backup` made it)"
        ) from error
    return _gang(*values)


def row_of(gang: Gang) -> dict[str, Any]:
    """The row of a gang as it is first enqueued, whatever state the caller's copy is in."""
    return {
        "run_id": gang.run_id,
        "name": gang.name,
        "pool": gang.pool,
        "team": gang.team,
        "request": request_text(gang.request),
        "state": GangState.WAITING,
        "submitted_at": gang.submitted_at,
        "eligible_at": gang.eligible_at,
        "attempt": 0,
        "metrics": {},
        "has_on_evict": False,
        "evictions": 0,
        "infrastructure_restarts": 0,
        "user_retries": gang.user_retries,
        "launch": {},
        "outcome": {},
        "parent_run_id": gang.parent_run_id,
        "created_by": gang.created_by,
        "tags": list(gang.tags),
        "deployment": gang.deployment,
    }


def fresh_attempt() -> dict[str, Any]:
    """What the last attempt left behind and the next one must not inherit; `last_step` stays, it resumes from there."""
    return {
        "launched_at": None,
        "first_commit_at": None,
        "last_commit_at": None,
        "reported_step": None,
        "metrics": {},
        "launch": {},
        "outcome": {},
        "not_before": None,
        "reason_code": None,
        "reason": None,
    }


def request_text(request: GangRequest) -> str:
    """Canonical JSON of a request: equal requests have equal text."""
    return json.dumps(request.to_json(), sort_keys=True, separators=(",", ":"))


def insert_or(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT that can say what is to be done where the key is there already."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


@lru_cache(maxsize=16_384)
def request_of_text(text: str) -> GangRequest:
    """The request that `request_text` wrote; raises what its reader does for any other text."""
    return GangRequest.from_json(_parsed(text))


def _mapping(text: str) -> dict[str, Any]:
    found = _parsed(text)
    if not isinstance(found, dict):
        raise TypeError(f"{text[:40]} is no mapping")
    return found
