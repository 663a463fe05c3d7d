"""Fetching through the cluster level: what it has comes from it, and what it lacks is brought by one node for all.

Each node looks, takes the lease of some objects that nobody is at, fetches them, and meanwhile waits for none of the
others: so the nodes of a gang that all start cold divide the bundle among them. What it fetched it uploads behind the
start that waited for it (`uploading`).
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

from dsec_blocks.cache.cluster_level.leases import Own, Watch
from dsec_blocks.cache.cluster_level.level import ClusterLevel
from dsec_blocks.cache.cluster_level.records import Record, Records
from dsec_blocks.cache.errors import ContentMismatch, OriginChanged, OriginError, TransferCancelled
from dsec_blocks.cache.origins.objects import Origin, RemoteObject
from dsec_blocks.cache.origins.s3 import s3_uri
from dsec_blocks.cache.transfer.fetching import Fetched
from dsec_blocks.cache.transfer.settings import MIB
from dsec_blocks.gateways.objects import ObjectStoreError
from dsec_blocks.ledger.fills import FillFence
from dsec_blocks.model.errors import LedgerError

_POLL_SECONDS = 0.2
_CLAIM_BYTES = 256 * MIB
_CLAIM_OBJECTS = 128
"""A node takes no more objects at once than these, so that others find some too."""
_LOOKUPS = 16
Bring = Callable[[Sequence[RemoteObject], Origin], list[Fetched]]


class Sharing:
    """One fetch of one node: `got` fills up, by path, with what arrived either way.

    `bring` fetches from the origin, `bring_soon` from the level.
    """

    def __init__(
        self,
        level: ClusterLevel,
        origin: Origin,
        *,
        bring: Bring,
        bring_soon: Bring,
        cancelled: Callable[[], bool],
    ) -> None:
        self.got: dict[str, Fetched] = {}
        self._level = level
        self._records = level.records.within(level.breaker.patience_seconds())
        self._origin = origin
        self._bring = bring
        self._bring_soon = bring_soon
        self._cancelled = cancelled

    def take(self, named: Mapping[str, RemoteObject]) -> None:
        """Bring what the level has, and lease nothing. Raises as `run` does."""
        present = {
            key: (named[key], record) for key, record in lookup(self._records, named).items() if record is not None
        }
        if present:
            self._from_level(present)

    def run(self, named: Mapping[str, RemoteObject]) -> None:
        """Bring all, by key. Raises what a fetch raises, `ObjectStoreError` or `LedgerError` if the level fails."""
        watch, claiming = self._level.watch(), self._level.watch()
        left = dict(
            sorted(named.items(), key=lambda entry: hashlib.sha256((self._level.holder + entry[0]).encode()).digest())
        )
        looked: dict[str, tuple[int, int]] = {}
        while left:
            if self._cancelled():
                raise TransferCancelled("the fetch was cancelled; what arrived is kept for the next one")
            rows = watch.look(left)
            beats = {key: (row.token, row.beat) for key, row in rows.items()}
            due = [k for k in left if k not in looked or (looked[k] != beats.get(k, (0, 0)) and rows[k].ended)]
            found = lookup(self._records, due)
            looked.update((key, beats.get(key, (0, 0))) for key in due)
            present = {key: record for key, record in found.items() if record is not None}
            if present:
                for key in self._from_level({key: (left[key], present[key]) for key in present}):
                    del left[key]
                continue
            fences = self._claim(left, claiming)
            if fences:
                for key in self._fill({f.key: left[f.key] for f in fences}, fences):
                    del left[key]
                looked = {key: seen for key, seen in looked.items() if key not in {fence.key for fence in fences}}
                continue
            time.sleep(_POLL_SECONDS)

    def _claim(self, left: Mapping[str, RemoteObject], watch: Watch) -> list[FillFence]:
        fences: list[FillFence] = []
        size = 0
        rows = watch.look(left)
        for key, item in left.items():
            if fences and (size + item.size_bytes > _CLAIM_BYTES or len(fences) == _CLAIM_OBJECTS):
                break
            if watch.is_free(key, rows) and (fence := watch.take(key, rows)) is not None:
                fences.append(fence)
                size += item.size_bytes
        return fences

    def _from_level(
        self,
        present: Mapping[str, tuple[RemoteObject, Record]],
    ) -> list[str]:
        records = self._records
        copies = [
            replace(
                item,
                uri=s3_uri(records.bucket.name, records.blob(record.digest)),
                version=None,  # its name is its content
                digest=f"blake3:{record.digest}",
                has_checksum=False,
            )
            for item, record in present.values()
        ]
        try:
            brought = self._bring_soon(copies, self._level.store)
        except (OriginChanged, ContentMismatch) as error:
            if len(present) == 1:
                ((key, (_, record)),) = present.items()
                self._level.say(f"the cluster's copy is dropped and fetched again: {error}")
                records.forget(key)
                if isinstance(error, ContentMismatch):
                    records.bucket.remove(records.blob(record.digest), at="cache.cluster.blob.drop")
                return []
            return [key for one, pair in present.items() for key in self._from_level({one: pair})]
        except OriginError as error:
            raise ObjectStoreError(str(error)) from error
        for one, (item, record) in zip(brought, present.values(), strict=True):
            self.got[item.path] = replace(one, item=item, verified=record.verified, source="cluster")
        if self._level.ledger is not None:
            with suppress(LedgerError):
                self._level.ledger.touch_fills(present)
        return list(present)

    def _fill(
        self,
        items: Mapping[str, RemoteObject],
        fences: Sequence[FillFence],
    ) -> list[str]:
        with ExitStack() as beating:
            own = beating.enter_context(Own(self._level.fills, fences).beating())
            # Between looking and taking somebody may have filled it.
            filled = {key for key, record in lookup(self._records, items).items() if record is not None}
            for key in filled:
                own.end(key)
            todo = {key: item for key, item in items.items() if key not in filled}
            brought = dict(zip(todo, self._bring(list(todo.values()), self._origin) if todo else (), strict=True))
            self.got.update((one.item.path, one) for one in brought.values())
            if brought:
                self._level.behind.upload(own, brought, until=beating.pop_all())
        return list(brought)


def lookup(records: Records, keys: Iterable[str | None]) -> dict[str, Record | None]:
    """The records of `keys`, asked for side by side. A key that is None has none."""
    wanted = list(keys)
    _ = records.bucket.client  # made here once: threads that find none each make one, which takes longer than asking
    with ThreadPoolExecutor(max(1, min(_LOOKUPS, len(wanted)))) as pool:
        found = pool.map(lambda key: records.read(key) if key else None, wanted)
        return {key or "": record for key, record in zip(wanted, found, strict=True)}
