"""Values as rows and back, and writing rows that may exist already.

A request is kept as canonical text, so that equal ones are parsed once and compared as text.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dsec_blocks.model.gangs import Gang, GangState, Placement
from dsec_blocks.model.requests import GangRequest

_Item = TypeVar("_Item")

CHUNK = 500
"""Values in one IN list: far below what either database takes."""


def chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """`items` in pieces that fit an IN list."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def insert_new(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows whose key is not there yet; leave the others alone."""
    connection.execute(_insert(connection, table).on_conflict_do_nothing(), list(rows))


def upsert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, or make those with the same key equal to them. All rows have the same columns."""
    insert = _insert(connection, table)
    key = [column.name for column in table.primary_key]
    changed = {name: insert.excluded[name] for name in rows[0] if name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=changed), list(rows))


def gang_of(row: Mapping[Any, Any]) -> Gang:
    """The gang that a row of `gangs` stands for."""
    fields = dict(row)
    fields["request"] = _request(fields["request"])
    fields["state"] = GangState(fields["state"])
    fields["tags"] = tuple(fields["tags"] or ())
    if fields["placement"] is not None:
        fields["placement"] = Placement.from_json(fields["placement"])
    return Gang(**fields)


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
    }


def request_text(request: GangRequest) -> str:
    """Canonical JSON of a request: equal requests have equal text."""
    return json.dumps(request.to_json(), sort_keys=True, separators=(",", ":"))


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


@lru_cache(maxsize=4096)
def _request(text: str) -> GangRequest:
    return GangRequest.from_json(json.loads(text))
