"""The CheckpointStore block on a real Prefect server: tested when saved, found by its name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from dsec_blocks import CheckpointStore
from dsec_blocks.checkpoints import open_store
from dsec_blocks.model.errors import StoreUnusable
from tests.fixtures.prefect import PrefectServer, client_settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prefect_client(prefect_server: PrefectServer) -> Iterator[None]:
    with client_settings(prefect_server):
        yield


def test_a_saved_store_is_opened_by_its_name_with_its_secret(prefect_client: None, s3_store: object) -> None:
    address = s3_store.address  # type: ignore[attr-defined]
    CheckpointStore(
        location=address.url,
        endpoint_url=address.endpoint_url,
        access_key_id=SecretStr(address.access_key_id),
        secret_access_key=SecretStr(address.secret_access_key),
        keep=5,
    ).save("team-a")
    found = open_store("team-a")
    assert (found.url, found.secret_access_key, found.keep) == (address.url, address.secret_access_key, 5)
    assert open_store("dsec-checkpoint-store/team-a") == found


def test_a_store_that_cannot_be_used_is_not_saved(prefect_client: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="cannot be written"):
        CheckpointStore(location=f"{tmp_path}/file/store").save("broken")
    with pytest.raises(StoreUnusable, match="there is no checkpoint store called 'broken'"):
        open_store("broken")


async def test_it_is_tested_when_saved_in_an_event_loop_too(prefect_client: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable):
        await CheckpointStore(location=f"{tmp_path}/file/store").asave("broken-too")
    await CheckpointStore(location=str(tmp_path / "fine")).asave("fine")


@pytest.mark.parametrize("location", ["relative/path", "ftp://x/y", "s3://"])
def test_a_location_that_is_none_is_refused_in_the_form(location: str) -> None:
    with pytest.raises(ValidationError):
        CheckpointStore(location=location)


def test_every_field_of_the_form_has_a_title_and_a_description() -> None:
    fields = CheckpointStore.model_json_schema()["properties"]
    assert all(field.get("title") and field.get("description") for field in fields.values())
