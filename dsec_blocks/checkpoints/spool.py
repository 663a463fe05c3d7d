"""The spool: where snapshots lie between the gang that wrote them and the store that will keep them.

A rank is done with a checkpoint once its shard is here, whole and fsynced; its device can be given away. The uploader
takes it from here, however often it is restarted.

    SPOOL/SET/store.json                      where this set goes (mode 0600: it may hold a secret)
    SPOOL/SET/STEP.ATTEMPT/rank-00000.shard
    SPOOL/closed                              nothing more will come
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.checkpoints.stores import StoreAddress
from dsec_blocks.gateways import files
from dsec_blocks.model.clock import Clock

CLOSED = "closed"
DRAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledStep:
    """One checkpoint in the spool: the shards that are there, by rank."""

    directory: Path
    step: int
    attempt: int
    shards: dict[int, Path]

    def is_complete(self, world_size: int) -> bool:
        """Whether every rank has delivered."""
        return set(self.shards) == set(range(world_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolSet:
    """The checkpoints of one run on their way to one store."""

    path: Path
    address: StoreAddress
    run: str
    world_size: int

    @classmethod
    def open(cls, spool: Path, address: StoreAddress, run: str, world_size: int) -> "SpoolSet":
        """The set, made known to the uploader."""
        name = hashlib.sha256(f"{address.url}\n{run}".encode()).hexdigest()[:16]
        path = spool / name
        files.make_directory(path)
        fields = {"address": address.to_json(), "run": run, "world_size": world_size}
        files.write(path / "store.json", json.dumps(fields).encode(), at="checkpoint.spool.open", mode=0o600)
        return cls(path=path, address=address, run=run, world_size=world_size)

    @classmethod
    def read(cls, path: Path) -> "SpoolSet":
        """The set that somebody opened at `path`."""
        fields = json.loads((path / "store.json").read_bytes())
        address = StoreAddress.from_json(fields["address"])
        return cls(path=path, address=address, run=fields["run"], world_size=fields["world_size"])

    def write(self, *, step: int, attempt: int, rank: int, content: Iterable[bytes]) -> Path:
        """Put one shard into the spool, durably."""
        directory = self.path / f"{step:012d}.{attempt:06d}"
        path = directory / f"rank-{rank:05d}.shard"
        files.make_directory(directory)
        files.write(path, content, at="checkpoint.spool.write", mode=0o600)
        return path

    def steps(self) -> list[SpooledStep]:
        """What is in the spool, newest first."""
        found = []
        for entry in os.scandir(self.path):
            step, _, attempt = entry.name.partition(".")
            if entry.is_dir() and step.isdigit() and attempt.isdigit():
                shards = {int(name[5:10]): Path(entry.path) / name for name in _shard_names(Path(entry.path))}
                found.append(
                    SpooledStep(directory=Path(entry.path), step=int(step), attempt=int(attempt), shards=shards)
                )
        return sorted(found, key=lambda spooled: (spooled.attempt, spooled.step), reverse=True)

    def discard(self, spooled: SpooledStep) -> None:
        """The step is committed, superseded or fenced off."""
        files.remove_tree(spooled.directory, at="checkpoint.spool.remove")


def spool_sets(spool: Path) -> Iterator[SpoolSet]:
    """Every set in a spool."""
    if not spool.is_dir():
        return
    for path in sorted(spool.iterdir()):
        if (path / "store.json").is_file():
            yield SpoolSet.read(path)


def wait_until_uploaded(spool: Path, *, clock: Clock, timeout: float = DRAIN_SECONDS) -> bool:
    """Wait until no whole checkpoint is left in the spool; False when time is up."""
    end = clock.monotonic() + timeout
    while any(step.is_complete(found.world_size) for found in spool_sets(spool) for step in found.steps()):
        if clock.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def is_closed(spool: Path) -> bool:
    """Whether nothing more will come."""
    return (spool / CLOSED).exists()


def _shard_names(directory: Path) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name.startswith("rank-") and name.endswith(".shard")]
    except FileNotFoundError:
        return []
