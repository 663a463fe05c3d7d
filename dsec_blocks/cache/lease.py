"""What acquiring gives: a bundle's directory, and the right to find it there."""

from dataclasses import dataclass, field
from pathlib import Path

from dsec_blocks.cache.bundles import BundleAddress, Manifest
from dsec_blocks.cache.renewing import RENEWALS
from dsec_blocks.cache.store.leases import release
from dsec_blocks.cache.store.marks import renew


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """What it took to acquire a bundle."""

    was_resident: bool
    seconds: float
    fetched_bytes: int = 0
    fetched_objects: int = 0
    cluster_bytes: int = 0
    """Of the fetched bytes, those that came from the cluster level instead of the origin."""
    fetch_seconds: float = 0.0
    """Until the last byte had arrived; hashing goes on beside it."""
    verify_seconds: float = 0.0
    """From there until the bundle was whole, durable and still what the origin lists."""
    stale: str = ""
    """Why the resident copy could not be compared with its origin; empty when it was, or need not be."""


@dataclass(kw_only=True)
class Lease:
    """A bundle that stays where it is until `release`, the end of the `with`, or the death of its holder."""

    address: BundleAddress
    path: Path
    """The directory with the bundle's files; read-only."""
    bundle: str
    manifest: Manifest
    acquired: Acquired
    mark_path: Path = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """Bytes of the bundle."""
        return self.manifest.size_bytes

    def renew(self) -> None:
        """Say that it is still in use, for those who cannot see its holder; a thread does so by itself (`renewing`)."""
        renew(self.mark_path)

    def release(self) -> None:
        """Give it back; a second time is fine."""
        RENEWALS.drop(self.mark_path)
        release(self.mark_path)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
