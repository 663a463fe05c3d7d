"""The commit protocol: what is written in which order, so that a kill at any instruction loses nothing committed.

shards → manifest → each shard looked up again → HEAD (compare-and-set: this is the commit) → COMMIT object (for
disaster recovery only; it fences nothing). Removal goes the other way: out of HEAD first, then COMMIT, manifest,
shards. Keys are `ckpt/RUN/STEP/ATTEMPT/…`; a shard's name ends in its hash, so that a repeated upload writes the same
bytes to the same key, and no other bytes ever.
"""

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import xxhash

from dsec_blocks.checkpoints.heads import (
    Commit,
    Head,
    chosen,
    committed,
    fenced,
    raised,
    resumed,
    started_over,
    without,
)
from dsec_blocks.checkpoints.places import Place
from dsec_blocks.checkpoints.shards import Shard, ShardLabel, Torn, decode
from dsec_blocks.model.errors import CheckpointError

SCHEMA = 1
_SWAPS = 16
_FAILURES = 3
_PARALLEL_SHARDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShard:
    """One shard as a manifest lists it."""

    rank: int
    key: str
    size: int
    etag: str | None
    xxh3_128: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint consists of. Immutable; known by the sha256 of its canonical JSON."""

    run: str
    step: int
    attempt: int
    world_size: int
    shards: tuple[StoredShard, ...]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        fields = {"schema": SCHEMA, **asdict(self)}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Manifest":
        """The manifest that `to_bytes` wrote."""
        fields = json.loads(content)
        fields.pop("schema")
        return cls(**{**fields, "shards": tuple(StoredShard(**shard) for shard in fields["shards"])})


class CommitLog:
    """The checkpoints of one run at one place."""

    def __init__(self, place: Place, run: str) -> None:
        self.place = place
        self.run = run

    def head(self) -> Head:
        """HEAD as it is now; the empty one if there is none."""
        seen = self.place.head(self.run)
        return Head() if seen is None else Head.from_json(seen.fields)

    def exists(self) -> bool:
        """Whether any attempt of the run ever got as far as its checkpoints."""
        return self.place.head(self.run) is not None

    def begin(self, attempt: int | None, *, fresh: str = "") -> Head:
        """Own HEAD from now on: every older attempt is fenced off. Repeatable within an attempt.

        Raises `CheckpointFenced` when a newer attempt owns it.
        """
        return self._change(lambda head: raised(head, run=self.run, attempt=attempt, fresh=fresh))

    def choose(self, attempt: int, *, base: Commit | None, torn: Sequence[Commit]) -> Head:
        """Record what this generation resumes from, so that retention leaves it alone, and forget what was torn."""

        def chosen(head: Head | None) -> Head:
            if head is None or head.generation != attempt:
                raise fenced(self.run, attempt=attempt, by=head.generation if head else 0)
            return resumed(head, base=base, torn=tuple(torn))

        return self._change(chosen)

    def commit(self, label: ShardLabel, shards: Sequence[Path], *, keep: int, keep_every: int = 0) -> Commit | None:
        """Upload a whole checkpoint and commit it; None when a later one of the attempt is there already.

        Raises `CheckpointFenced` when a newer attempt of the run owns the checkpoints.
        """
        head = self.head()
        if head.generation > label.attempt:
            raise fenced(self.run, attempt=label.attempt, by=head.generation)
        if any(known.attempt == label.attempt and known.step >= label.step for known in head.commits):
            return next((k for k in head.commits if (k.attempt, k.step) == (label.attempt, label.step)), None)
        prefix = _prefix(self.run, label.step, label.attempt)
        with ThreadPoolExecutor(_PARALLEL_SHARDS) as pool:
            stored = list(pool.map(partial(self._upload, prefix), range(len(shards)), shards))
        manifest = Manifest(
            run=self.run, step=label.step, attempt=label.attempt, world_size=label.world_size, shards=tuple(stored)
        )
        content = manifest.to_bytes()
        digest = hashlib.sha256(content).hexdigest()
        key = f"{prefix}manifest-{digest[:16]}.json"
        self.place.put(key, content, at="checkpoint.manifest.put")
        for shard in stored:
            self._look_up(shard)
        new = Commit(step=label.step, attempt=label.attempt, manifest=key, digest=digest)
        after = self._change(
            lambda head: committed(head or Head(), new, run=self.run, keep=keep, keep_every=keep_every)
        )
        landed = next((commit for commit in after.commits if commit.digest == digest), None)
        if landed is not None:
            self.place.put(f"{prefix}COMMIT", json.dumps(asdict(landed)).encode(), at="checkpoint.commit.put")
        return landed

    def choose_step(self, step: int) -> Head:
        """Make the next attempt resume from `step`. Raises `CheckpointMissing`."""
        return self._change(lambda head: chosen(head or Head(), step, run=self.run))

    def start_over(self) -> Head:
        """Make the next attempt begin at step 0."""
        return self._change(lambda head: started_over(head or Head()))

    def remove_step(self, step: int) -> int:
        """Remove the commits of `step`, HEAD first; returns the number of objects. Raises `CheckpointMissing`."""
        gone: tuple[Commit, ...] = ()

        def smaller(head: Head | None) -> Head:
            nonlocal gone
            after, gone = without(head or Head(), step, run=self.run)
            return after

        self._change(smaller)
        prefixes = [_prefix(self.run, commit.step, commit.attempt) for commit in gone]
        keys = sorted((key for prefix in prefixes for key in self.place.keys(prefix)), key=_removal_order)
        for key in keys:
            self.place.remove(key, at="checkpoint.remove.commit")
        return len(keys)

    def remove_all(self) -> int:
        """Remove everything of the run, HEAD last; returns the number of objects. For a run that has ended."""
        keys = sorted(self.place.keys(f"ckpt/{self.run}/"), key=_removal_order)
        for key in sorted(keys, key=lambda key: "/HEAD" in key):
            self.place.remove(key, at="checkpoint.remove.run")
        return len(keys)

    def manifest(self, commit: Commit) -> Manifest:
        """A commit's manifest, verified. Raises `Torn`."""
        try:
            content = self.place.get(commit.manifest)
        except FileNotFoundError:
            raise Torn(f"{self._where(commit.manifest)} is missing") from None
        if hashlib.sha256(content).hexdigest() != commit.digest:
            raise Torn(f"{self._where(commit.manifest)} has another content than was committed")
        return Manifest.from_bytes(content)

    def shard(self, manifest: Manifest, rank: int) -> Shard:
        """One rank's shard, verified. Raises `Torn`."""
        stored = next((shard for shard in manifest.shards if shard.rank == rank), None)
        if stored is None:
            raise Torn(f"step {manifest.step}: there is no shard of rank {rank}")
        try:
            content = self.place.get(stored.key)
        except FileNotFoundError:
            raise Torn(f"{self._where(stored.key)} is missing") from None
        if len(content) != stored.size or xxhash.xxh3_128_hexdigest(content) != stored.xxh3_128:
            raise Torn(f"{self._where(stored.key)} has another content than was committed")
        return decode(content)

    def verify(self, manifest: Manifest) -> None:
        """Look at every shard without reading it. Raises `Torn`."""
        for shard in manifest.shards:
            self._look_up(shard)

    def sweep(self) -> int:
        """Remove what no HEAD can ever name again; returns the number of objects removed.

        That is: what attempts below HEAD's generation left outside HEAD, and within the generation what is older
        than its newest commit. An attempt of this generation that is still uploading is newer than that.
        """
        head = self.head()
        named = {(commit.step, commit.attempt) for commit in head.commits}
        own = max((commit.step for commit in head.commits if commit.attempt == head.generation), default=-1)
        doomed: dict[tuple[int, int], list[str]] = {}
        for key in self.place.keys(f"ckpt/{self.run}/"):
            where = _parsed(key)
            if where is None or where in named:
                continue
            step, attempt = where
            if attempt < head.generation or (attempt == head.generation and step < own):
                doomed.setdefault(where, []).append(key)
        for keys in doomed.values():
            for key in sorted(keys, key=_removal_order):
                self.place.remove(key, at="checkpoint.retention.remove")
        return sum(map(len, doomed.values()))

    def _upload(self, prefix: str, rank: int, path: Path) -> StoredShard:
        digest = xxhash.xxh3_128()
        with path.open("rb") as file:
            while chunk := file.read(4 * 2**20):
                digest.update(chunk)
        key = f"{prefix}rank-{rank:05d}-{digest.hexdigest()}"
        etag = self.place.put(key, path, at="checkpoint.shard.put")
        return StoredShard(rank=rank, key=key, size=path.stat().st_size, etag=etag, xxh3_128=digest.hexdigest())

    def _look_up(self, shard: StoredShard) -> None:
        found = self.place.stat(shard.key)
        if found is None or found.size != shard.size:
            raise Torn(f"{self._where(shard.key)} is missing or cut short")
        if shard.etag is not None and found.etag is not None and found.etag != shard.etag:
            # The same bytes uploaded twice may carry two ETags: only the content decides.
            content = self.place.get(shard.key)
            if xxhash.xxh3_128_hexdigest(content) != shard.xxh3_128:
                raise Torn(f"{self._where(shard.key)} has another content than was uploaded")

    def _where(self, key: str) -> str:
        return f"{self.place.url.rstrip('/')}/{key}"

    def _change(self, decide: Callable[[Head | None], Head]) -> Head:
        failures = 0
        for tried in range(_SWAPS):
            if tried:
                time.sleep(random.uniform(0, min(1.0, 0.01 * 2**tried)))
            seen = self.place.head(self.run)
            before = None if seen is None else Head.from_json(seen.fields)
            after = decide(before)
            try:
                if after == before or self.place.swap_head(self.run, seen, after.to_json()):
                    return after
            except OSError:
                failures += 1
                if failures == _FAILURES:
                    raise
        raise CheckpointError(
            f"run {self.run}: HEAD at {self.place.url} could not be changed in {_SWAPS} tries; "
            "is something else writing to this run's checkpoints?"
        )


def _prefix(run: str, step: int, attempt: int) -> str:
    return f"ckpt/{run}/{step:012d}/{attempt:06d}/"


def _parsed(key: str) -> tuple[int, int] | None:
    parts = key.split("/")
    if len(parts) < 5 or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    return int(parts[2]), int(parts[3])


def _removal_order(key: str) -> tuple[int, str]:
    name = key.rpartition("/")[2]
    return (0 if name == "COMMIT" else 1 if name.startswith("manifest") else 2, key)


def describe(commits: Iterable[Commit]) -> str:
    """Commits in a few words: "step 40 of attempt 2, step 20 of attempt 1"."""
    return ", ".join(f"step {commit.step} of attempt {commit.attempt}" for commit in commits) or "none"
