"""From an address to the cluster level, for whoever opens a node's cache."""

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from dsec_blocks.cache.cluster_level.level import ClusterLevel
from dsec_blocks.cache.cluster_level.watermarks import Watermarks
from dsec_blocks.cache.origins.opening import OriginCredentials, identity_of
from dsec_blocks.cache.origins.s3 import split_s3
from dsec_blocks.gateways.objects import Bucket, Credentials
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.clock import Clock


@dataclass(frozen=True, kw_only=True)
class ClusterAddress:
    """The bucket that the nodes of a cluster share, and the ledger in which they agree who fills it.

    `url` is `s3://bucket/prefix`; `ledger_url` None: take what is there and add nothing; `limit_bytes` None leaves
    eviction to somebody else (a lifecycle rule).
    """

    url: str
    ledger_url: str | None
    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    limit_bytes: int | None = None

    def open(
        self, *, clock: Clock, origin: OriginCredentials | None = None, breaker_mark: Path | None = None
    ) -> ClusterLevel:
        """The level as this process has it; `origin` is who asks, which decides whose listings it may use, and
        `breaker_mark` the file by which the node's processes share the store's circuit breaker.

        Raises `UnknownOrigin`, `InvalidCacheSetting` or `LedgerUnreachable`.
        """
        bucket, prefix = split_s3(self.url)
        credentials = Credentials(
            endpoint_url=self.endpoint_url,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
        )
        return ClusterLevel(
            Bucket(bucket, credentials),
            prefix,
            ledger=None if self.ledger_url is None else Ledger.open(self.ledger_url, clock=clock),
            clock=clock,
            holder=f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}",
            identity=identity_of(origin or OriginCredentials()),
            watermarks=None if self.limit_bytes is None else Watermarks(limit_bytes=self.limit_bytes),
            breaker_mark=breaker_mark,
        )
