"""The version of what a gang and those around it have agreed on: its order, its records, its channel.

A gang outlives the worker that started it, and its image may hold another DSec than that worker: each side says its
version. What bears none is of version 1, from before versions were told. Older versions are understood. On a
connection the older side's version is spoken; what cannot be asked (an order, a Job, a gang's files) is refused when
it is newer. Raise `VERSION` with a change that the version before would misread.
"""

from collections.abc import Mapping
from typing import Any

from dsec_blocks.model.errors import GangTooNew

VERSION = 2
FIELD = "protocol"


def told(greeting: Mapping[str, Any] | None = None) -> dict[str, int]:
    """Our version, as a record says it; as the answer to a `greeting`, the version that both know."""
    return {FIELD: VERSION if greeting is None else min(VERSION, version_of(greeting) or VERSION)}


def version_of(record: Mapping[str, Any]) -> int | None:
    """The version that a record is of; None for one that says something that is no number."""
    given = record.get(FIELD) or 1
    try:
        return int(given)
    except (TypeError, ValueError):
        return None


def refuse_newer(record: Mapping[str, Any], what: str, *, upgrade: str) -> None:
    """Raise `GangTooNew`, which names `what` it is and what to `upgrade`, for a version that we do not know."""
    version = version_of(record)
    if version is None or version > VERSION:
        raise GangTooNew(
            f"{what} is of a newer DSec (gang protocol {record[FIELD]}, this one knows up to {VERSION}): upgrade "
            f"{upgrade}; nothing was touched"
        )
