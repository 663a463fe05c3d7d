"""One cache directory, opened: its paths, its limits, and how to tell the living from the dead."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dsec_blocks.cache.errors import InvalidCacheSetting
from dsec_blocks.cache.eviction import DEFAULT_POLICY, POLICIES
from dsec_blocks.cache.store.layout import Layout
from dsec_blocks.cache.store.marks import Mark, Owner, Sight
from dsec_blocks.gateways import files
from dsec_blocks.model.clock import Clock

DEFAULT_FREE_BYTES = 2 * 2**30
DEFAULT_FREE_INODES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of the disk the cache may take. Every floor holds at once."""

    limit_bytes: int | None = None
    free_bytes: int = DEFAULT_FREE_BYTES
    """The file system keeps at least this much free, whoever uses it."""
    free_inodes: int = DEFAULT_FREE_INODES
    """The same for inodes; a file system that counts none (0 in total) has no such floor."""

    def __post_init__(self) -> None:
        if self.limit_bytes is not None and self.limit_bytes <= 0:
            raise InvalidCacheSetting(f"limit: {self.limit_bytes} bytes hold nothing; write for example 500GiB")
        if self.free_bytes < 0 or self.free_inodes < 0:
            raise InvalidCacheSetting("free space: a floor cannot be negative")


@dataclass(frozen=True, slots=True)
class Disk:
    """What the file system says about itself."""

    total_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int


def disk_of(path: Path) -> Disk:
    """The file system that `path` lies on, or will lie on."""
    while not path.exists():
        path = path.parent
    found = os.statvfs(path)
    return Disk(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail, found.f_files, found.f_favail)


@dataclass(frozen=True, kw_only=True)
class Store:
    """Everything the operations on a cache share. Opening one touches nothing and takes no time."""

    layout: Layout
    clock: Clock
    sight: Sight
    limits: Limits = field(default_factory=Limits)
    policy: str = DEFAULT_POLICY
    pause: Callable[[float], None] = time.sleep
    disk: Callable[[Path], Disk] = disk_of

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InvalidCacheSetting(
                f"policy: {self.policy!r} is no eviction policy; choose one of {', '.join(POLICIES)}"
            )

    @classmethod
    def open(cls, root: Path, *, clock: Clock, limits: Limits | None = None, policy: str = DEFAULT_POLICY) -> "Store":
        """The cache in `root`."""
        return cls(
            layout=Layout(root.absolute()),
            clock=clock,
            sight=Sight(now=clock.now),
            limits=limits or Limits(),
            policy=policy,
        )

    def prepare(self) -> None:
        """Make the directory a cache, and write down its limits for those who only look.

        Raises `InvalidCacheSetting` or `LocalDiskError`.
        """
        self.layout.prepare()
        told = json.dumps({**asdict(self.limits), "policy": self.policy}, sort_keys=True).encode()
        path = self.layout.root / "settings.json"
        try:
            if path.read_bytes() == told:
                return
        except OSError:
            pass
        files.write(path, told, at="cache.settings.write")

    def mark(self, who: str, *, owner: Owner | None = None, **fields: object) -> Mark:
        """A mark of this process (or of `owner`), made now."""
        return Mark(owner=owner or self.sight.owner(), since=self.clock.now(), who=who, fields=dict(fields))

    def capacity_bytes(self) -> int:
        """The most that bundles can take: the limit, or all of the file system but the floor."""
        disk = self.disk(self.layout.root)
        most = max(0, disk.total_bytes - self.limits.free_bytes)
        return most if self.limits.limit_bytes is None else min(most, self.limits.limit_bytes)


def limits_in_use(root: Path) -> tuple[Limits, str]:
    """The limits and the policy that the cache in `root` was last filled with; defaults where none are recorded."""
    try:
        told = json.loads((root / "settings.json").read_bytes())
        return Limits(**{name: told[name] for name in ("limit_bytes", "free_bytes", "free_inodes")}), str(
            told["policy"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Limits(), DEFAULT_POLICY
