"""A cluster level on a real store and a real ledger, and an origin that counts what it is asked for."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec_blocks.cache.cluster_level import ClusterLevel
from dsec_blocks.cache.origins import RemoteObject
from dsec_blocks.cache.origins.web import WebOrigin
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.objects import Bucket, Credentials
from dsec_blocks.ledger import Ledger
from tests.fixtures.ledgers import migrated
from tests.fixtures.misbehaving import MisbehavingOrigin, origin_server
from tests.fixtures.s3 import S3Store

__all__ = ["origin_server"]
MIB = 2**20
NAMES = ("one", "two", "three")
Level = Callable[..., ClusterLevel]


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    return migrated(tmp_path / "ledger.db")


@pytest.fixture
def level(s3_store: S3Store, ledger_url: str) -> Level:
    """The level as the node `holder` has it; each call is another node."""

    def make(holder: str, **options) -> ClusterLevel:
        clock = SystemClock()
        credentials = Credentials(
            endpoint_url=s3_store.endpoint_url,
            access_key_id=s3_store.access_key_id,
            secret_access_key=s3_store.secret_access_key,
        )
        options.setdefault("ledger", Ledger.open(ledger_url, clock=clock))
        return ClusterLevel(Bucket(s3_store.bucket, credentials), "cache", clock=clock, holder=holder, **options)

    return make


@pytest.fixture
def items(origin_server: MisbehavingOrigin) -> tuple[RemoteObject, ...]:
    origin_server.files.update({name: os.urandom(3 * MIB + index) for index, name in enumerate(NAMES)})
    return tuple(item for name in NAMES for item in WebOrigin().list(f"{origin_server.url}/{name}"))
