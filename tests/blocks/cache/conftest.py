"""A cache in a temporary directory, with an origin beside it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.cache import Cache, CacheSettings, open_cache
from dsec_blocks.cache.store import Limits
from dsec_blocks.cache.store.store import Disk
from tests.fixtures.clock import ManualClock

KB = 1000


@dataclass
class Place:
    """A directory of origins and a cache."""

    root: Path
    clock: ManualClock = field(default_factory=ManualClock)

    def put(self, name: str, **content: bytes) -> str:
        """A bundle at the origin: `file=b"…"`, with `__` for a slash and `_` for a dot."""
        for path, raw in content.items():
            target = self.root / "origin" / name / path.replace("__", "/").replace("_", ".")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(raw)
        return str(self.root / "origin" / name)

    def cache(self, *, limit: int | None = 1000 * KB, disk: Disk | None = None, **settings: Any) -> Cache:
        limits = settings.pop("limits", Limits(limit_bytes=limit, free_bytes=0, free_inodes=0))
        cache = open_cache(CacheSettings(directory=self.root / "cache", limits=limits, **settings), clock=self.clock)
        if disk is not None:
            cache = replace(cache, store=replace(cache.store, disk=lambda path: disk))
        return cache


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
