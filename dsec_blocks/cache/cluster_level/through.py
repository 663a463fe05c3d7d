"""An origin with the cluster level in front of it; to whoever fetches it is an origin like any other.

A level that does not answer never blocks a start: the node then fetches from the origin itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dsec_blocks.cache.cluster_level.circuit_breaker import is_no_answer
from dsec_blocks.cache.cluster_level.level import ClusterLevel
from dsec_blocks.cache.cluster_level.records import key_of
from dsec_blocks.cache.cluster_level.sharing import Sharing, lookup
from dsec_blocks.cache.errors import OriginUnreachable
from dsec_blocks.cache.origins.objects import Origin, RemoteObject
from dsec_blocks.cache.transfer.fetching import Fetched, fetch
from dsec_blocks.cache.transfer.settings import TransferSettings
from dsec_blocks.gateways.objects import ObjectStoreError
from dsec_blocks.model.errors import LedgerError

Listed = list[Fetched]


class Through:
    """An origin seen through the cluster level. `fetch` hands whole fetches over to `fetch_into`."""

    def __init__(self, level: ClusterLevel, origin: Origin) -> None:
        self._level = level
        self._origin = origin

    def list(
        self,
        uri: str,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        patience_seconds: float | None = None,
    ) -> tuple[RemoteObject, ...]:
        """The origin's listing; while it is away, the last one that this identity saw, if the level holds all of it."""
        breaker, patterns = self._level.breaker, (include, exclude)
        most = breaker.patience_seconds() if patience_seconds is None else patience_seconds
        records = self._level.records.within(min(most, breaker.patience_seconds()))
        try:
            items = self._origin.list(uri, include=include, exclude=exclude, patience_seconds=patience_seconds)
        except OriginUnreachable:
            # Asked even while the breaker is open: there is nobody else.
            with suppress(ObjectStoreError), breaker.calling():
                known = records.read_listing(uri, patterns, self._level.identity)
                if known and all(lookup(records, map(key_of, known)).values()):
                    self._level.say(f"{uri} does not answer; its last listing and the cluster's copy are used")
                    return known
            raise
        if breaker.is_open():
            return items
        with suppress(ObjectStoreError), breaker.calling():
            records.write_listing(uri, patterns, self._level.identity, items)
        return items

    def read(
        self, item: RemoteObject, *, start: int, length: int, buffer: memoryview | None = None
    ) -> Iterator[memoryview]:
        """The origin's bytes, past the level."""
        return self._origin.read(item, start=start, length=length, buffer=buffer)

    def stored_checksum(self, item: RemoteObject) -> str | None:
        """The origin's."""
        return self._origin.stored_checksum(item)

    def latency_seconds(self) -> float | None:
        """The origin's."""
        return self._origin.latency_seconds()

    def close(self) -> None:
        """Close both."""
        self._origin.close()
        self._level.store.close()

    def fetch_into(
        self,
        items: Sequence[RemoteObject],
        *,
        staging: Path,
        settings: TransferSettings,
        progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> Listed:
        """What `transfer.fetch` does. Raises what it raises."""

        def bring(some: Sequence[RemoteObject], source: Origin) -> Listed:
            return fetch(
                some, origin=source, staging=staging, settings=settings, progress=progress, cancelled=cancelled
            )

        def bring_soon(some: Sequence[RemoteObject], source: Origin) -> Listed:
            """From the store: there is somebody else to ask, so it is not waited for long."""
            most = min(settings.patience_seconds, self._level.breaker.patience_seconds())
            return fetch(
                some,
                origin=source,
                staging=staging,
                settings=replace(settings, patience_seconds=most),
                progress=progress,
                cancelled=cancelled,
            )

        sharing = Sharing(self._level, self._origin, bring=bring, bring_soon=bring_soon, cancelled=cancelled)
        named = {key: item for item in items if (key := key_of(item)) is not None}
        if not self._level.breaker.is_open():
            self._share(sharing, named)
        rest = [item for item in items if item.path not in sharing.got]
        sharing.got.update((one.item.path, one) for one in (bring(rest, self._origin) if rest else ()))
        return [sharing.got[item.path] for item in items]

    def _share(self, sharing: Sharing, named: Mapping[str, RemoteObject]) -> None:
        """As much as the level can bring, or let others have; what it fails at is left for the origin."""
        level = self._level
        try:
            with level.breaker.calling():
                if level.ledger is not None:
                    sharing.run(named)
                    return
                level.say_once(
                    f"no ledger is known here (DSEC_LEDGER_URL), so what {level.records.bucket} has is used and "
                    "what it lacks comes from the origin and is not added to it; the node's agent adds it"
                )
                sharing.take(named)
        except (ObjectStoreError, LedgerError) as error:
            if not (isinstance(error, ObjectStoreError) and is_no_answer(error)):
                level.say(f"the cluster level is left out: {error}")
