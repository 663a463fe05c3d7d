"""What an acquire came to, as one event: what was here, what came from where, and how long the start stood still."""

from collections.abc import Iterator
from typing import Any

from dsec_blocks.cache.hearing import hearers
from dsec_blocks.cache.lease import Lease
from dsec_blocks.cache.store import events
from dsec_blocks.cache.store.store import Store

ACQUIRED, EVICTED = "acquire", "evict"


def account(store: Store, lease: Lease, *, who: str, background: bool) -> None:
    """Note an acquire that succeeded. `background`: nobody waited for it."""
    got = lease.acquired
    event = {
        "what": ACQUIRED,
        "at": store.clock.now(),
        "who": who,
        "uri": str(lease.address),
        "background": background,
        "bytes": lease.size_bytes,
        "cluster": got.cluster_bytes,
        "origin": got.fetched_bytes - got.cluster_bytes,
        "seconds": round(got.seconds, 4),
        "fetch": round(got.fetch_seconds, 4),
        "verify": round(got.verify_seconds, 4),
    }
    events.note(store.layout, event)
    if not background:
        for hear in hearers:
            hear(event)


def starts_of(store: Store, run: str) -> Iterator[dict[str, Any]]:
    """What the cache remembers of the acquires of one run, oldest first; the journal keeps some thousand acquires."""
    found, _ = events.events_since(store.layout, None)
    yield from (dict(event) for event in found if event.get("what") == ACQUIRED and event.get("who") == f"run {run}")
