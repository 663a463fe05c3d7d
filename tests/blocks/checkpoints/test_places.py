"""What every place for checkpoints must do: whole objects, and a HEAD that exactly one writer can change."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsec_blocks.checkpoints import StoreAddress, open_store
from dsec_blocks.checkpoints.places import Place
from dsec_blocks.checkpoints.stores import check
from dsec_blocks.gateways.faults import ENV_FAULT
from dsec_blocks.model.errors import StoreUnusable


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> StoreAddress:
    if request.param == "directory":
        return open_store(tmp_path / "store")
    return request.getfixturevalue("s3_store").address


@pytest.fixture
def place(address: StoreAddress) -> Place:
    return address.open()


def test_an_object_is_read_as_it_was_put_and_is_gone_once_removed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"from a file")
    place.put("ckpt/r/1/1/a", b"bytes", at="test.put")
    place.put("ckpt/r/1/1/b", tmp_path / "body", at="test.put")
    assert (place.get("ckpt/r/1/1/a"), place.get("ckpt/r/1/1/b")) == (b"bytes", b"from a file")
    found = place.stat("ckpt/r/1/1/b")
    assert found is not None and found.size == 11
    assert sorted(place.keys("ckpt/r/")) == ["ckpt/r/1/1/a", "ckpt/r/1/1/b"]
    place.remove("ckpt/r/1/1/a", at="test.remove")
    place.remove("ckpt/r/1/1/a", at="test.remove")
    assert list(place.keys("ckpt/r/")) == ["ckpt/r/1/1/b"]
    with pytest.raises(FileNotFoundError):
        place.get("ckpt/r/1/1/a")
    assert place.stat("ckpt/r/1/1/a") is None


def test_a_file_larger_than_a_part_arrives_whole(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsec_blocks.gateways.objects.PART_BYTES", 5 * 2**20)
    content = bytes(range(256)) * 4096 * 12
    (tmp_path / "large").write_bytes(content)
    etag = place.put("ckpt/r/1/1/large", tmp_path / "large", at="test.put")
    found = place.stat("ckpt/r/1/1/large")
    assert found is not None and (found.size, found.etag) == (len(content), etag)
    assert place.get("ckpt/r/1/1/large") == content


def test_only_the_first_of_two_writers_creates_head(place: Place) -> None:
    assert place.head("r") is None
    assert place.swap_head("r", None, {"n": 1})
    assert not place.swap_head("r", None, {"n": 2})
    seen = place.head("r")
    assert seen is not None and seen.fields["n"] == 1


def test_a_swap_of_a_head_that_has_changed_does_nothing(place: Place) -> None:
    place.swap_head("r", None, {"n": 1})
    stale = place.head("r")
    assert place.swap_head("r", stale, {"n": 2})
    assert not place.swap_head("r", stale, {"n": 3})
    found = place.head("r")
    assert found is not None and found.fields["n"] == 2


def test_of_many_writers_at_once_each_increment_counts_exactly_once(place: Place) -> None:
    place.swap_head("r", None, {"n": 0})

    def increment(_: int) -> None:
        while True:
            seen = place.head("r")
            assert seen is not None
            if place.swap_head("r", seen, {"n": seen.fields["n"] + 1}):
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(16)))
    found = place.head("r")
    assert found is not None and found.fields["n"] == 16


@pytest.mark.parametrize("point", ["checkpoint.head.publish", "checkpoint.head.put"])
def test_a_swap_whose_answer_was_lost_is_recognised_as_our_own(
    place: Place, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Correction 1: a conflict on retry may be a conflict with oneself; the nonce tells."""
    monkeypatch.setenv(ENV_FAULT, f"{point}:lost")
    assert place.swap_head("r", None, {"n": 1})
    found = place.head("r")
    assert found is not None and found.fields["n"] == 1


def test_a_usable_store_passes_its_test_and_keeps_nothing_of_it(address: StoreAddress) -> None:
    check(address)
    assert list(address.open().keys("ckpt/")) == []


def test_a_store_that_ignores_conditions_is_refused(address: StoreAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = address.open()
    real = opened.swap_head
    monkeypatch.setattr(type(opened), "swap_head", lambda self, run, seen, fields: real(run, opened.head(run), fields))
    with pytest.raises(StoreUnusable, match="ignores conditional writes"):
        check(address)


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreUnusable, match=r"checkpoints cannot be written below .*file/store"):
        open_store(tmp_path / "file" / "store").open().put("ckpt/r/x", b"", at="test.put")


def test_a_sleeper_whose_number_was_pruned_away_knows_that_it_lost(tmp_path: Path) -> None:
    place = open_store(tmp_path).open()
    place.swap_head("r", None, {"n": 1})
    sleeper = place.head("r")
    for n in range(2, 40):
        assert place.swap_head("r", place.head("r"), {"n": n})
    assert not (tmp_path / "ckpt/r/HEAD/000000000002").exists()
    assert not place.swap_head("r", sleeper, {"n": "zombie"})
    found = place.head("r")
    assert found is not None and found.fields["n"] == 39


@pytest.mark.slow
def test_an_unreachable_store_fails_with_its_address_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    address = StoreAddress(
        url="s3://bucket/x", endpoint_url="http://127.0.0.1:9", access_key_id="a", secret_access_key="b"
    )
    monkeypatch.setattr("dsec_blocks.gateways.objects.PATIENCE_SECONDS", 0.2)
    with pytest.raises(StoreUnusable, match=r"s3://bucket.*127\.0\.0\.1:9"):
        check(address)


@pytest.mark.parametrize("name", ["s3://", "s3://b/p?keep=0", "s3://b/p?bogus=1", "ftp://x/y", "file://host/path"])
def test_a_name_that_is_no_store_is_refused(name: str) -> None:
    with pytest.raises(StoreUnusable):
        open_store(name)


@pytest.mark.parametrize(
    ("query", "keep", "keep_every"),
    [("", 3, 0), ("?keep=2", 2, 0), ("?keep_every=500", 3, 500), ("?keep=1&keep_every=0", 1, 0)],
)
def test_how_much_is_kept_is_read_from_the_url(query: str, keep: int, keep_every: int) -> None:
    address = open_store(f"s3://bucket/team{query}")
    assert (address.url, address.keep, address.keep_every) == ("s3://bucket/team", keep, keep_every)


@pytest.mark.parametrize("steps", ["ten", "-5", "1.5"])
def test_keep_every_that_is_no_number_of_steps_is_refused(steps: str) -> None:
    with pytest.raises(StoreUnusable, match=r"keep_every=.* is not a number of steps"):
        open_store(f"s3://bucket/team?keep_every={steps}")


def test_the_secret_is_not_shown(tmp_path: Path) -> None:
    assert "hush" not in repr(StoreAddress(url="s3://b/p", secret_access_key="hush"))
