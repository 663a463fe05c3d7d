"""Paths that would leave the cache are refused, and a listing that changes is no bundle."""

import os
from pathlib import Path

import pytest

from dsec_blocks.cache.errors import BundleMissing, OriginChanged, UnknownOrigin, UnsafePath
from dsec_blocks.cache.origins import RemoteObject, origin_for, safe_path, wanted
from dsec_blocks.cache.origins.objects import same_listing


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "", "a//b", ".", "a/./b", "a\\b", "a\nb", "x" * 256]
)
def test_a_path_that_leaves_its_directory_or_fits_none_is_refused(path: str) -> None:
    with pytest.raises(UnsafePath):
        safe_path(path)


@pytest.mark.parametrize("path", ["x", "a/b/c", "..x", "a b#?", "x" * 255])
def test_an_ordinary_path_passes(path: str) -> None:
    assert safe_path(path) == path


def test_a_pattern_without_a_slash_means_at_any_depth() -> None:
    assert wanted("a/b.bin", include=["*.bin"], exclude=[])
    assert not wanted("a/b.bin", include=[], exclude=["*.bin"])
    assert not wanted("a/b.bin", include=["b/*"], exclude=[])


@pytest.mark.parametrize(
    ("after", "told"),
    [([("a", "2")], "a was overwritten"), ([], "a was removed"), ([("a", "1"), ("b", "1")], "b was added")],
)
def test_a_listing_that_differs_says_where(after: list[tuple[str, str]], told: str) -> None:
    def items(named: list[tuple[str, str]]) -> list[RemoteObject]:
        return [RemoteObject(uri=f"x/{p}", path=p, size_bytes=1, version=v) for p, v in named]

    with pytest.raises(OriginChanged, match=told):
        same_listing("x", items([("a", "1")]), items(after))


def test_a_dangling_link_neither_hides_the_rest_nor_counts(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"123")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert [item.path for item in origin_for(str(tmp_path)).list(str(tmp_path))] == ["real"]


def test_a_directory_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BundleMissing, match="does not exist"):
        origin_for(str(tmp_path / "no")).list(str(tmp_path / "no"))


def test_a_file_changed_after_its_listing_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "100% real#1"
    path.write_bytes(b"123")
    origin = origin_for(str(path))
    (item,) = origin.list(str(path))
    assert b"".join(map(bytes, origin.read(item, start=1, length=2))) == b"23"
    path.write_bytes(b"456")
    os.utime(path, ns=(1, 1))
    with pytest.raises(OriginChanged, match="was changed"):
        list(origin.read(item, start=0, length=3))


@pytest.mark.parametrize("uri", ["ftp://x/y", "models/tiny", "gs://bucket"])
def test_an_address_of_another_kind_is_refused(uri: str) -> None:
    with pytest.raises(UnknownOrigin, match="write s3://bucket/prefix"):
        origin_for(uri)
