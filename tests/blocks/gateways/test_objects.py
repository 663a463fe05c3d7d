"""The clients of two stores in one process share what botocore's files say, and nothing else."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.loaders import JSONFileLoader

from dsec_blocks.gateways import objects
from dsec_blocks.gateways.objects import Bucket, Credentials

OURS = Credentials(endpoint_url="http://ours:9000", access_key_id="our-key", secret_access_key="our-secret")
THEIRS = Credentials(endpoint_url="http://theirs:9000", access_key_id="their-key", secret_access_key="their-secret")
FROM_ENVIRONMENT = Credentials(endpoint_url="http://ours:9000", region="eu-1")


@pytest.fixture(autouse=True)
def _no_clients_yet() -> Iterator[None]:
    objects._client.cache_clear()
    yield
    objects._client.cache_clear()


def _signed(client: Any) -> tuple[str, str, str]:
    """The host, the access key and the signature of what a client would send."""
    url = urlsplit(client.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"}))
    query = parse_qs(url.query)
    return url.netloc, query["X-Amz-Credential"][0].partition("/")[0], query["X-Amz-Signature"][0]


def test_each_store_is_asked_at_its_own_address_with_its_own_key() -> None:
    ours, theirs = Bucket("b", OURS).client, Bucket("b", THEIRS).client
    assert _signed(ours)[:2] == ("ours:9000", "our-key")
    assert _signed(theirs)[:2] == ("theirs:9000", "their-key")
    assert _signed(ours)[2] != _signed(theirs)[2]


def test_what_is_done_to_one_stores_requests_is_not_done_to_anothers() -> None:
    asked: list[str] = []
    ours, theirs = Bucket("b", OURS).client, Bucket("b", THEIRS).client
    ours.meta.events.register("before-sign.s3", lambda **_: asked.append("ours"))
    _signed(theirs)
    assert asked == []
    _signed(ours)
    assert asked == ["ours"]


def test_keys_of_the_environment_are_those_of_now_and_not_of_an_earlier_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "before")
    before = Bucket("b", FROM_ENVIRONMENT).client
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "after")
    after = Bucket("b", FROM_ENVIRONMENT, patience_seconds=1.0).client
    assert (_signed(before)[1], _signed(after)[1]) == ("before", "after")


def test_the_second_store_costs_no_reading_of_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    load = JSONFileLoader.load_file

    def noted(loader: JSONFileLoader, path: str) -> Any:
        read.append(path)
        return load(loader, path)

    monkeypatch.setattr(JSONFileLoader, "load_file", noted)
    objects._models.cache_clear()
    _signed(Bucket("b", OURS).client)
    assert any("s3" in path for path in read)
    read.clear()
    _signed(Bucket("b", THEIRS).client)
    assert read == []
