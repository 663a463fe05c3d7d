"""Sentences about a cache: who holds what, and since when."""

from collections.abc import Sequence
from datetime import UTC, datetime

from dsec_blocks.cache.store.leases import holders
from dsec_blocks.cache.store.marks import Mark
from dsec_blocks.cache.store.refs import all_refs
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.usage import Usage
from dsec_blocks.cache.store.views import resident_bundles
from dsec_blocks.model.units import format_memory

MOST_NAMED = 5


def holder_text(mark: Mark) -> str:
    """One holder: what for, which process, since when."""
    pid = f" (pid {mark.owner.process.pid})" if mark.owner else ""
    since = datetime.fromtimestamp(mark.since, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{mark.who}{pid} since {since} UTC"


def holders_text(marks: Sequence[Mark]) -> str:
    """All holders of one thing."""
    named = ", ".join(holder_text(mark) for mark in marks[:MOST_NAMED])
    return named + (f" and {len(marks) - MOST_NAMED} more" if len(marks) > MOST_NAMED else "")


def full_message(store: Store, what: str, size_bytes: int, used: Usage) -> str:
    """Why there is no room, who holds it, and what to do."""
    addresses = {ref.bundle: ref.uri for ref in all_refs(store.layout).values()}
    held = []
    for bundle, manifest in resident_bundles(store.layout).items():
        marks = holders(store, bundle)
        if marks:
            held.append((manifest.size_bytes, f"{addresses.get(bundle, bundle[:12])} held by {holders_text(marks)}"))
    held.sort(key=lambda row: -row[0])
    named = [f"{format_memory(size)} {text}" for size, text in held[:MOST_NAMED]]
    if len(held) > MOST_NAMED:
        named.append(f"{len(held) - MOST_NAMED} more bundles")
    named += [
        f"{format_memory(int(mark.fields.get('bytes', 0)))} being fetched by {holder_text(mark)}"
        for mark in used.reservations
    ]
    disk = store.disk(store.layout.root)
    limit = "" if store.limits.limit_bytes is None else f" of its limit of {format_memory(store.limits.limit_bytes)}"
    return (
        f"there is no room for {what} ({format_memory(size_bytes)}) in {store.layout.root}: "
        f"{format_memory(used.used_bytes)}{limit} in use, {format_memory(disk.free_bytes)} free on the disk "
        f"(floor {format_memory(store.limits.free_bytes)}), and nothing that may be evicted: "
        f"{'; '.join(named) or 'nothing is held, so the floor is what is short'}. "
        "Release a holder, unpin a bundle (dsec cache unpin), or raise the limit"
    )
