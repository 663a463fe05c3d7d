"""A cluster's store that is away costs who has a copy no long wait."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec_blocks.cache.cluster_level import ClusterLevel, Through
from dsec_blocks.cache.cluster_level.records import Records
from dsec_blocks.cache.cluster_level.sharing import lookup
from dsec_blocks.cache.errors import OriginUnreachable
from dsec_blocks.cache.origins.web import WebOrigin
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.objects import Bucket, Credentials, _client
from tests.fixtures.ledgers import new_ledger
from tests.fixtures.misbehaving import MisbehavingOrigin, origin_server
from tests.fixtures.scripted_s3 import ScriptedS3

__all__ = ["origin_server"]


@pytest.fixture
def store() -> Iterator[ScriptedS3]:
    """A store of the cluster that answers 503, and counts."""
    server = MisbehavingOrigin()
    yield ScriptedS3(server, is_down=503)
    server.close()


@pytest.fixture
def through(store: ScriptedS3, tmp_path: Path) -> Through:
    clock = SystemClock()
    keys = Credentials(endpoint_url=store.endpoint_url, access_key_id="key", secret_access_key="secret")
    ledger = new_ledger(tmp_path / "ledger.db", clock=clock)
    level = ClusterLevel(Bucket("models", keys), ledger=ledger, clock=clock, holder="a test")
    return Through(level, WebOrigin())


def test_the_store_is_asked_once_by_who_only_compares_his_copy(
    through: Through, store: ScriptedS3, origin_server: MisbehavingOrigin
) -> None:
    origin_server.files["w.bin"] = b"w"
    assert len(through.list(f"{origin_server.url}/w.bin", patience_seconds=0.0)) == 1
    assert len(store.questions) == 1


def test_neither_store_nor_origin_is_waited_for(
    through: Through, store: ScriptedS3, origin_server: MisbehavingOrigin
) -> None:
    url = f"{origin_server.url}/w.bin"
    origin_server.close()
    with pytest.raises(OriginUnreachable):
        through.list(url, patience_seconds=0.0)
    assert len(store.questions) == 1


def test_objects_looked_up_side_by_side_make_one_client(origin_server: MisbehavingOrigin) -> None:
    """Each thread made one of its own the first time: a second of processor time before the first question."""
    server = ScriptedS3(origin_server)
    keys = Credentials(endpoint_url=server.endpoint_url, access_key_id="key", secret_access_key="secret")
    before = _client.cache_info().misses
    found = lookup(Records(Bucket("models", keys), ""), [f"{number}" for number in range(32)])
    assert set(found.values()) == {None} and len(server.questions) == 32
    assert _client.cache_info().misses == before + 1
