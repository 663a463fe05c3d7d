"""What each node's cache holds, as its agent last said: placement goes where the data is.

One row a node. It is written when its content changed, or when the last word is old enough that readers would soon
take the agent for dead; so an idle cluster writes little, and a reader that knows the content of a row does not read
it again. `at` is the agent's wall clock: a wrong one costs a better placement and nothing else.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import chunks, upsert
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.content_sketch import SampledBlob, Sketch

_rows = schema.inventories

REFRESH_SECONDS = 30.0
"""An unchanged inventory is written again after so long."""
BANDWIDTH_TOLERANCE = 0.1
"""A bandwidth that differs by this part from the last one written is no news."""
CHECKED_TOLERANCE_SECONDS = 600.0
"""That an address stands for the same content as ever is news after so long."""
STALE_SECONDS = 180.0
"""Nobody believes an inventory that is older: its agent is dead, and what the node holds is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedBundle:
    """One address in a node's cache, and how much of what it stands for is there."""

    address: str
    digest: str
    """The bundle that the address stood for when it was last compared; empty while that is not known yet."""
    bytes_total: int
    bytes_resident: int
    checked_at: float | None = None
    """When the origin was last seen to have this content; None where that is not known."""
    sketch: Sketch = ()
    """Of the content, where another node may have another one of the same address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What one node's cache holds."""

    node: str
    at: float
    """When its agent last said so."""
    bandwidth_bytes_per_s: float | None
    """Measured: what the node's fetches get; None before the first."""
    bundles: tuple[CachedBundle, ...] = ()
    """By address."""
    content: str = ""
    """Digest of the bundles: equal content is equal bundles, but for a younger `checked_at`."""

    def is_stale(self, now: float) -> bool:
        """Whether nobody should believe it any more."""
        return now - self.at > STALE_SECONDS


class Inventories(Transactions):
    """Agents report, the leader reads."""

    def report_inventory(
        self, node: str, *, at: float, bandwidth_bytes_per_s: float | None, bundles: Sequence[CachedBundle]
    ) -> bool:
        """Make this all that `node` holds; whether anything was written. Of one address the last entry counts."""
        held = [bundle for _, bundle in sorted({bundle.address: bundle for bundle in bundles}.items())]
        body = [asdict(bundle) for bundle in held]
        news = [{**told, "checked_at": _coarse(told["checked_at"])} for told in body]
        content = hashlib.sha256(json.dumps(news, sort_keys=True).encode()).hexdigest()
        columns = (_rows.c.at, _rows.c.bandwidth_bytes_per_s, _rows.c.content)
        with self.reading() as connection:
            last = connection.execute(sa.select(*columns).where(_rows.c.node == node)).one_or_none()
        if last is not None and last.content == content and abs(at - last.at) < REFRESH_SECONDS:
            told: float | None = last.bandwidth_bytes_per_s
            if _alike(told, bandwidth_bytes_per_s):
                return False
        row = {"node": node, "at": at, "bandwidth_bytes_per_s": bandwidth_bytes_per_s, "content": content}
        with self.transaction(at="ledger.inventory.report") as connection:
            upsert(connection, _rows, [{**row, "bundles": body}])
        return True

    def inventories(self, known: Mapping[str, Inventory] = MappingProxyType({})) -> dict[str, Inventory]:
        """Every node's inventory, by node; bundles that are `known` already are not read again."""
        columns = (_rows.c.node, _rows.c.at, _rows.c.bandwidth_bytes_per_s, _rows.c.content)
        found: dict[str, Inventory] = {}
        with self.reading() as connection:
            news = []
            for row in connection.execute(sa.select(*columns).order_by(_rows.c.node)).mappings():
                last = known.get(row["node"])
                if last is None or last.content != row["content"]:
                    news.append(row["node"])
                    found[row["node"]] = Inventory(**row)
                else:
                    found[row["node"]] = replace(last, **row)
            for some in chunks(news):
                query = sa.select(_rows.c.node, _rows.c.bundles).where(_rows.c.node.in_(some))
                for node, bundles in connection.execute(query):
                    held = tuple(_bundle(bundle) for bundle in bundles)
                    found[node] = replace(found[node], bundles=held)
        return found


def _coarse(checked_at: float | None) -> float | None:
    return None if checked_at is None else checked_at // CHECKED_TOLERANCE_SECONDS


def _bundle(told: Mapping[str, Any]) -> CachedBundle:
    """What an agent wrote, of this version or of one that says less or more."""
    known = {field.name: told[field.name] for field in fields(CachedBundle) if field.name in told}
    return CachedBundle(**{**known, "sketch": tuple(SampledBlob(*blob) for blob in known.get("sketch", ()))})


def _alike(bandwidth: float | None, other: float | None) -> bool:
    """Whether nobody would decide otherwise: each measurement differs a little from the last."""
    if bandwidth is None or other is None:
        return bandwidth is other
    return abs(bandwidth - other) <= BANDWIDTH_TOLERANCE * max(bandwidth, other)
