"""What kinds of members have arrived lately: the histogram from which placement learns what is likely to come.

Every gang that is new to the ledger counts once, in the transaction that enqueues it, with its members; each arrival
makes the earlier ones count a little less. What a kind weighs is kept as of the arrival that changed it last, so an
arrival writes one row for its own kind and none for the others.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import upsert
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.requests import GangRequest

_rows = schema.arrivals

HALF_LIFE_ARRIVALS = 2000
"""After so many arrivals an earlier one counts half."""
FORGOTTEN_ARRIVALS = 20 * HALF_LIFE_ARRIVALS
"""A kind that did not arrive for so long weighs a millionth, and is forgotten."""
_MEMBER = ("devices_per_node", "share", "cpus", "memory_bytes", "gpu_model", "gpu_memory_bytes")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One pool's histogram after its `number`-th arrival; `kinds` is kind → (weight, arrival at which it was that)."""

    number: int = 0
    kinds: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    def after(self, requests: Iterable[GangRequest]) -> "Arrivals":
        """The histogram once these have arrived too, in this order."""
        number, kinds = self.number, dict(self.kinds)
        for request in requests:
            number += 1
            kind = kind_of(request)
            weight, at = kinds.get(kind, (0.0, number))
            kinds[kind] = (weight * _left(number - at) + request.nodes, number)
        return Arrivals(number, kinds)

    def weights(self) -> dict[str, float]:
        """Members of each kind, decayed to now."""
        return {kind: weight * _left(self.number - at) for kind, (weight, at) in sorted(self.kinds.items())}


class Seen(Transactions):
    """Reading the histogram; it is written as gangs are enqueued."""

    def arrivals(self, pool: str) -> Arrivals:
        """What has arrived in `pool` so far."""
        with self.reading() as connection:
            return read(connection, pool)


def read(connection: sa.Connection, pool: str) -> Arrivals:
    """The histogram as it stands."""
    rows = connection.execute(sa.select(_rows).where(_rows.c.pool == pool)).all()
    return Arrivals(max((row.at for row in rows), default=0), {row.kind: (row.weight, row.at) for row in rows})


def count(connection: sa.Connection, pool: str, requests: Iterable[GangRequest]) -> None:
    """These have arrived; the caller's fence keeps others from counting at the same time."""
    before = read(connection, pool)
    after = before.after(requests)
    changed = [
        {"pool": pool, "kind": kind, "weight": weight, "at": at}
        for kind, (weight, at) in after.kinds.items()
        if before.kinds.get(kind) != (weight, at)
    ]
    if changed:
        upsert(connection, _rows, changed)
    if any(at < after.number - FORGOTTEN_ARRIVALS for _, at in before.kinds.values()):
        old = (_rows.c.pool == pool, _rows.c.at < after.number - FORGOTTEN_ARRIVALS)
        connection.execute(sa.delete(_rows).where(*old))


def kind_of(request: GangRequest) -> str:
    """What each member asks of its node, as canonical text; `request_of` is the inverse."""
    return json.dumps({name: getattr(request, name) for name in _MEMBER}, sort_keys=True, separators=(",", ":"))


def request_of(kind: str) -> GangRequest:
    """A request of one such member."""
    fields: dict[str, Any] = json.loads(kind)
    asked: dict[str, Any] = {name: fields[name] for name in _MEMBER if fields.get(name) is not None}
    return GangRequest(**asked)


def _left(arrivals: int) -> float:
    return float(0.5 ** (arrivals / HALF_LIFE_ARRIVALS))
