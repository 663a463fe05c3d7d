"""The call that everything else uses: fetch these objects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from dsec_blocks.cache.errors import CacheError
from dsec_blocks.cache.origins.objects import Origin, RemoteObject
from dsec_blocks.cache.transfer.disk import on_disk
from dsec_blocks.cache.transfer.engine import Fetch
from dsec_blocks.cache.transfer.journal import Journal
from dsec_blocks.cache.transfer.settings import TransferSettings
from dsec_blocks.gateways import files
from dsec_blocks.gateways.processes import boot_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One object, staged, complete and fsynced. `verified` says against what: manifest, store, journal or length.

    `source` is where its bytes came from: the origin, or the cluster level before it.
    """

    item: RemoteObject
    path: Path
    digest: str
    size_bytes: int
    fetched_bytes: int
    verified: str
    source: Literal["origin", "cluster"] = "origin"


@runtime_checkable
class FetchesItself(Protocol):
    """An origin that is more than one place to read from, and therefore divides a fetch itself."""

    def fetch_into(
        self,
        items: Sequence[RemoteObject],
        *,
        staging: Path,
        settings: TransferSettings,
        progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> list[Fetched]:
        """What `fetch` promises."""


def fetch(
    items: Sequence[RemoteObject],
    *,
    origin: Origin,
    staging: Path,
    settings: TransferSettings | None = None,
    progress: Callable[[int], None] = lambda count: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Fetched]:
    """Bring all `items` into `staging` (made if it is not there), in their order; resumes what a killed fetch left.

    `progress` hears the bytes as they arrive, one call at a time. On any error the staging directory keeps what
    arrived, and nothing else was touched. One fetch at a time may use a staging directory.

    Raises `OriginChanged`, `OriginRefused`, `OriginUnreachable`, `ContentMismatch`, `LocalDiskError` or
    `TransferCancelled`.
    """
    if isinstance(origin, FetchesItself):
        return origin.fetch_into(
            items, staging=staging, settings=settings or TransferSettings(), progress=progress, cancelled=cancelled
        )
    paths = [item.path for item in items]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise CacheError(f"{twice} is listed twice: two objects of a bundle cannot have one path")
    with on_disk(staging / "journal"):
        files.make_directory(staging)
        journal = Journal(staging, boot_id=boot_id())
    try:
        work = Fetch(
            items,
            origin=origin,
            staging=staging,
            journal=journal,
            settings=settings or TransferSettings(),
            progress=progress,
            cancelled=cancelled,
        )
        work.run()
    finally:
        journal.close()
    return [
        Fetched(
            item=item,
            path=work.landed[item.path].path,
            digest=work.landed[item.path].digest,
            size_bytes=item.size_bytes,
            fetched_bytes=work.landed[item.path].fetched_bytes,
            verified=work.landed[item.path].verified,
        )
        for item in items
    ]
