"""The NodeCache block: a form that refuses what cannot work, tested when it is saved."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dsec_blocks.cache import NodeCache, Revalidate
from dsec_blocks.cache.errors import InvalidCacheSetting, LocalDiskError, OriginRefused
from tests.fixtures.s3 import S3Store


def test_the_form_becomes_settings(tmp_path: Path) -> None:
    block = NodeCache(
        directory=str(tmp_path / "cache"),
        limit="500GiB",
        free_space="1 GB",
        policy="gdsf",
        revalidate="ttl",
        ttl="10min",
        endpoint_url="https://s3.internal:9000",
        access_key_id="key",  # type: ignore[arg-type]
        secret_access_key="secret",  # type: ignore[arg-type]
        connections=48,
        bandwidth="200MB/s",
    )
    settings = block.settings()
    assert settings.limits.limit_bytes == 500 * 2**30
    assert settings.limits.free_bytes == 10**9
    assert settings.policy == "gdsf"
    assert (settings.revalidate, settings.ttl_seconds) == (Revalidate.TTL, 600.0)
    assert settings.credentials.secret_access_key == "secret"
    assert settings.transfer.connections == 48
    assert settings.transfer.bandwidth_bytes_per_second == 200e6


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"directory": "cache"}, "absolute path"),
        ({"directory": "/var/../etc"}, r"without '\.\.'"),
        ({"limit": "500"}, "has no unit"),
        ({"limit": "0GiB"}, "hold nothing"),
        ({"free_space": "much"}, "not a size"),
        ({"policy": "random"}, "s3-fifo"),
        ({"revalidate": "sometimes"}, "always"),
        ({"ttl": "soon"}, "not a duration"),
        ({"bucket": "models"}, "s3://bucket/prefix"),
        ({"connections": 0}, "greater than or equal to 1"),
        ({"bandwidth": "fast"}, "not a size"),
        ({"memory": "1B"}, "at least 256 KiB"),
    ],
)
def test_what_cannot_work_is_refused_and_the_field_is_named(fields: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=says) as caught:
        NodeCache(**{"directory": str(tmp_path), **fields})
    assert next(iter(fields)) in str(caught.value)


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    block = NodeCache(directory=str(tmp_path), secret_access_key="hush", hub_token="quiet")  # type: ignore[arg-type]
    assert "hush" not in repr(block) and "quiet" not in repr(block)
    assert "hush" not in repr(block.settings()) and "quiet" not in repr(block.settings())


def test_every_field_has_a_title_and_a_description() -> None:
    for name, field in NodeCache.model_fields.items():
        assert field.title and field.description, name
    assert NodeCache._logo_url and NodeCache._description and NodeCache._code_example


def test_the_check_makes_the_directory_a_cache_and_refuses_one_with_other_things(tmp_path: Path) -> None:
    NodeCache(directory=str(tmp_path / "cache")).check()
    assert (tmp_path / "cache" / "cache.json").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("precious")
    with pytest.raises(InvalidCacheSetting, match=r"thesis\.tex"):
        NodeCache(directory=str(tmp_path / "home")).check()


def test_the_check_says_when_the_directory_cannot_be_made() -> None:
    with pytest.raises(LocalDiskError, match="/proc/dsec-cache cannot be written"):
        NodeCache(directory="/proc/dsec-cache").check()


def test_a_directory_that_is_on_the_nodes_only_is_left_to_them() -> None:
    NodeCache(directory="/nowhere/on/this/machine/cache").check()


@pytest.mark.slow
def test_the_check_tries_the_credentials(s3_store: S3Store, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "directory": str(tmp_path / "cache"),
        "bucket": f"s3://{s3_store.bucket}/models",
        "endpoint_url": s3_store.endpoint_url,
        "access_key_id": s3_store.access_key_id,
    }
    NodeCache(**fields, secret_access_key=s3_store.secret_access_key).check()
    with pytest.raises(OriginRefused, match="refuses these credentials") as caught:
        NodeCache(**fields, secret_access_key="wrong").check()
    assert "wrong" not in str(caught.value)


@pytest.mark.slow
def test_the_store_that_the_nodes_share_is_tried_with_keys_of_its_own(s3_store: S3Store, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "directory": str(tmp_path / "cache"),
        "cluster": f"s3://{s3_store.bucket}/shared",
        "cluster_endpoint_url": s3_store.endpoint_url,
        "cluster_access_key_id": s3_store.access_key_id,
        "cluster_limit": "1TiB",
    }
    block = NodeCache(**fields, cluster_secret_access_key=s3_store.secret_access_key)
    block.check()
    site = block.site()
    assert site is not None and (site.url, site.limit_bytes) == (fields["cluster"], 2**40)
    assert s3_store.secret_access_key not in repr(block) + repr(site)
    with pytest.raises(OriginRefused, match="refuses these credentials"):
        NodeCache(**fields, cluster_secret_access_key="wrong").check()
    with pytest.raises(ValueError, match="cluster_limit"):
        NodeCache(**{**fields, "cluster_limit": "much"}, cluster_secret_access_key="x")


def test_prefect_finds_the_block_and_importing_the_cache_does_not_import_prefect() -> None:
    from dsec_blocks import collection

    assert collection.NodeCache is NodeCache
    program = "import sys, dsec_blocks.cache; dsec_blocks.cache.open_cache; print('prefect' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
