"""Making room in the cluster's bucket: one node at a time, the record before the content."""

from contextlib import suppress

from dsec_blocks.cache.cluster_level.leases import Own, Watch
from dsec_blocks.cache.cluster_level.records import Records
from dsec_blocks.cache.cluster_level.watermarks import Held, Watermarks, victims
from dsec_blocks.ledger.fills import Fills
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import LedgerError


def make_room(
    records: Records, ledger: Fills, watch: Watch, marks: Watermarks, *, need_bytes: int, clock: Clock
) -> tuple[bool, list[Held]]:
    """Whether `need_bytes` may be added, and what was removed for them.

    A reader that is in the middle of a removed content finds it gone and asks the origin: eviction waits for no one,
    and nobody waits for it.
    """
    blobs = records.blobs()
    if sum(blob.size for blob in blobs) + need_bytes <= marks.high * marks.limit_bytes:
        return True, []
    key = f"evict {records.bucket.name} {records.path('')}"
    rows = watch.look([key])
    fence = watch.take(key, rows) if watch.is_free(key, rows) else None
    if fence is None:
        return False, []
    with Own(ledger, [fence]).beating() as own:
        names: dict[str, list[str]] = {}
        for name, record in records.all().items():
            names.setdefault(record.digest, []).append(name)
        uses = ledger.fills()
        held = []
        for blob in records.blobs():
            digest = blob.key.rpartition("/")[2]
            used = [uses[name].used_at for name in names.get(digest, ()) if name in uses]
            held.append(
                Held(
                    digest=digest,
                    size_bytes=blob.size,
                    used_at=max([blob.modified_at, *used]),
                    is_named=digest in names,
                )
            )
        chosen = victims(held, marks, need_bytes=need_bytes, now=clock.now())
        for one in chosen or []:
            for name in names.get(one.digest, ()):
                records.forget(name)
            records.bucket.remove(records.blob(one.digest), at="cache.cluster.blob.remove")
        with suppress(LedgerError):
            own.end(key)
    return chosen is not None, chosen or []
