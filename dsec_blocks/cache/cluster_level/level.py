"""The cluster level as one process holds it: the bucket, the ledger, and how full it may get."""

import sys
from contextlib import suppress
from pathlib import Path

from dsec_blocks.cache.cluster_level.circuit_breaker import CircuitBreaker
from dsec_blocks.cache.cluster_level.eviction import make_room
from dsec_blocks.cache.cluster_level.leases import TAKEOVER_SECONDS, Watch
from dsec_blocks.cache.cluster_level.records import Records
from dsec_blocks.cache.cluster_level.uploading import Behind
from dsec_blocks.cache.cluster_level.watermarks import Watermarks
from dsec_blocks.cache.origins.s3 import S3Origin
from dsec_blocks.gateways.objects import Bucket
from dsec_blocks.ledger.fills import Fills
from dsec_blocks.model.clock import Clock

UNFINISHED_SECONDS = 86_400.0
"""The age from which an upload in parts that was neither completed nor aborted is somebody's who died."""


class ClusterLevel:
    """One bucket (or prefix) that all nodes of a cluster share. `holder` must be unique to the process.

    Without a ledger, in which the nodes agree who fills what, this process takes what is there and adds nothing.
    `breaker_mark` is the file by which the processes of a node share the store's circuit breaker.
    """

    def __init__(
        self,
        bucket: Bucket,
        prefix: str = "",
        *,
        ledger: Fills | None,
        clock: Clock,
        holder: str,
        identity: str = "",
        watermarks: Watermarks | None = None,
        takeover_seconds: float = TAKEOVER_SECONDS,
        unfinished_seconds: float = UNFINISHED_SECONDS,
        breaker_mark: Path | None = None,
    ) -> None:
        self.records = Records(bucket, prefix)
        self.ledger = ledger
        self.clock = clock
        self.holder = holder
        self.identity = identity
        self.watermarks = watermarks
        self.takeover_seconds = takeover_seconds
        self.unfinished_seconds = unfinished_seconds
        self.store = S3Origin(bucket.credentials, clock=clock)
        self.breaker = CircuitBreaker(str(bucket), mark=breaker_mark, clock=clock, say=self.say)
        self.behind = Behind(self)
        self._said: set[str] = set()

    @property
    def fills(self) -> Fills:
        """The ledger of one who has it."""
        assert self.ledger is not None
        return self.ledger

    def watch(self) -> Watch:
        """A look at the others' leases, for one fetch."""
        return Watch(self.fills, self.clock, holder=self.holder, takeover_seconds=self.takeover_seconds)

    def admits(self, watch: Watch, size_bytes: int) -> bool:
        """Whether a content may be added; evicts before it is."""
        if self.watermarks is None:
            return True
        is_room, removed = make_room(
            self.records, self.fills, watch, self.watermarks, need_bytes=size_bytes, clock=self.clock
        )
        if removed or not is_room:
            self.tidy()
        return is_room

    def tidy(self) -> None:
        """Take away what uploaders left that died half-way: it takes room that no listing shows."""
        # A store that refuses to list them is filled all the same.
        with suppress(OSError), self.breaker.calling():
            self.records.drop_unfinished(before=self.clock.now() - self.unfinished_seconds)

    def say(self, text: str) -> None:
        """One line to the log of whoever fetches."""
        print(f"cache: {text}", file=sys.stderr, flush=True)

    def say_once(self, text: str) -> None:
        """The same, the first time only."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)
