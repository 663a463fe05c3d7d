"""The cluster level as one process holds it: the bucket, the ledger, and how full it may get."""

import sys

from dsec_blocks.cache.cluster_level.eviction import make_room
from dsec_blocks.cache.cluster_level.leases import TAKEOVER_SECONDS, Watch
from dsec_blocks.cache.cluster_level.records import Records
from dsec_blocks.cache.cluster_level.uploading import Behind
from dsec_blocks.cache.cluster_level.watermarks import Watermarks
from dsec_blocks.cache.origins.s3 import S3Origin
from dsec_blocks.gateways.objects import Bucket
from dsec_blocks.ledger.fills import Fills
from dsec_blocks.model.clock import Clock


class ClusterLevel:
    """One bucket (or prefix) that all nodes of a cluster share. `holder` must be unique to the process."""

    def __init__(
        self,
        bucket: Bucket,
        prefix: str = "",
        *,
        ledger: Fills,
        clock: Clock,
        holder: str,
        identity: str = "",
        watermarks: Watermarks | None = None,
        takeover_seconds: float = TAKEOVER_SECONDS,
    ) -> None:
        self.records = Records(bucket, prefix)
        self.ledger = ledger
        self.clock = clock
        self.holder = holder
        self.identity = identity
        self.watermarks = watermarks
        self.takeover_seconds = takeover_seconds
        self.store = S3Origin(bucket.credentials, clock=clock)
        self.behind = Behind(self)

    def watch(self) -> Watch:
        """A look at the others' leases, for one fetch."""
        return Watch(self.ledger, self.clock, holder=self.holder, takeover_seconds=self.takeover_seconds)

    def admits(self, watch: Watch, size_bytes: int) -> bool:
        """Whether a content may be added; evicts before it is."""
        if self.watermarks is None:
            return True
        return make_room(self.records, self.ledger, watch, self.watermarks, need_bytes=size_bytes, clock=self.clock)[0]

    def say(self, text: str) -> None:
        """One line to the log of whoever fetches."""
        print(f"cache: {text}", file=sys.stderr, flush=True)
