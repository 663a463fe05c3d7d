"""Acquiring from a real S3 store."""

from dataclasses import replace
from pathlib import Path

import pytest

from dsec_blocks.cache import CacheSettings, Revalidate, open_cache
from dsec_blocks.cache.errors import BundleMissing, OriginRefused
from dsec_blocks.cache.origins import OriginCredentials
from dsec_blocks.cache.store import Limits, check
from tests.fixtures.s3 import S3Store

pytestmark = pytest.mark.slow


def settings_for(store: S3Store, directory: Path) -> CacheSettings:
    return CacheSettings(
        directory=directory,
        limits=Limits(limit_bytes=50_000_000, free_bytes=0),
        revalidate=Revalidate.ALWAYS,
        credentials=OriginCredentials(
            endpoint_url=store.endpoint_url,
            access_key_id=store.access_key_id,
            secret_access_key=store.secret_access_key,
        ),
    )


def put(store: S3Store, **content: bytes) -> str:
    for name, raw in content.items():
        store.client.put_object(Bucket=store.bucket, Key=f"models/m/{name}", Body=raw)
    return f"s3://{store.bucket}/models/m"


def test_a_bundle_is_fetched_once_and_only_what_changed_is_fetched_again(s3_store: S3Store, tmp_path: Path) -> None:
    uri = put(s3_store, weights=b"w" * 3_000_000, config=b"{}")
    cache = open_cache(settings_for(s3_store, tmp_path / "cache"))
    with cache.acquire(uri) as lease:
        assert (lease.path / "weights").read_bytes() == b"w" * 3_000_000
        assert lease.acquired.fetched_bytes == 3_000_002
    with cache.acquire(uri) as lease:
        assert lease.acquired.was_resident and lease.acquired.fetched_bytes == 0
    put(s3_store, config=b'{"a": 1}')
    with cache.acquire(uri) as lease:
        assert (lease.path / "config").read_bytes() == b'{"a": 1}'
        assert lease.acquired.fetched_bytes == 8
    assert check(cache.store) == []


def test_refused_credentials_are_one_line_that_names_the_object_and_change_nothing(
    s3_store: S3Store, tmp_path: Path
) -> None:
    uri = put(s3_store, weights=b"w")
    settings = settings_for(s3_store, tmp_path / "cache")
    wrong = replace(settings, credentials=replace(settings.credentials, secret_access_key="wrong-secret"))
    with pytest.raises(OriginRefused) as caught:
        open_cache(wrong).acquire(uri)
    assert s3_store.bucket in str(caught.value) and "\n" not in str(caught.value)
    assert "wrong-secret" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_bundle_that_does_not_exist_is_one_line(s3_store: S3Store, tmp_path: Path) -> None:
    with pytest.raises(BundleMissing) as caught:
        open_cache(settings_for(s3_store, tmp_path / "cache")).acquire(f"s3://{s3_store.bucket}/models/none")
    assert "models/none" in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()
