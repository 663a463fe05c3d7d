"""A node's cache before the cluster level before an origin: each is read once, and the next stands in for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from dsec_blocks.cache import CacheSettings, open_cache
from dsec_blocks.cache.cluster_level import ClusterAddress
from dsec_blocks.cache.errors import OriginUnreachable
from dsec_blocks.cache.origins import OriginCredentials
from dsec_blocks.cache.origins.opening import identity_of
from tests.fixtures.misbehaving import MisbehavingOrigin
from tests.fixtures.s3 import S3Store


@pytest.mark.slow
def test_a_second_node_is_served_by_the_cluster_even_when_the_origin_is_gone(
    s3_store: S3Store, origin_server: MisbehavingOrigin, tmp_path: Path, ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("dsec_blocks.cache.origins.asking.patiently.__kwdefaults__", {"seconds": 0.5})
    origin_server.files["model.bin"] = bytes(range(256)) * 4000
    uri = f"{origin_server.url}/model.bin"
    cluster = ClusterAddress(
        url=f"s3://{s3_store.bucket}/level",
        ledger_url=ledger_url,
        endpoint_url=s3_store.endpoint_url,
        access_key_id=s3_store.access_key_id,
        secret_access_key=s3_store.secret_access_key,
    )
    first, second, third = (CacheSettings(directory=tmp_path / name) for name in ("first", "second", "third"))
    for settings in (first, second):
        with open_cache(settings, cluster=cluster).acquire(uri) as bundle:
            assert (bundle.path / "model.bin").read_bytes() == origin_server.files["model.bin"]
        origin_server.close()
    assert origin_server.bytes_asked("model.bin") == len(origin_server.files["model.bin"])
    with pytest.raises(OriginUnreachable):  # a node that does not know the level
        open_cache(third).acquire(uri)


def test_who_asks_is_told_apart_by_key_and_never_by_secret() -> None:
    one = OriginCredentials(access_key_id="a", secret_access_key="x")
    assert identity_of(one) == identity_of(replace(one, secret_access_key="rotated"))
    assert identity_of(one) != identity_of(replace(one, access_key_id="b"))
    assert identity_of(OriginCredentials(hub_token="t1")) != identity_of(OriginCredentials(hub_token="t2"))
