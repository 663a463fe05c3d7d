"""What leaves the cluster level, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec_blocks.cache.cluster_level.watermarks import Held, Watermarks, victims
from dsec_blocks.cache.errors import InvalidCacheSetting

MARKS = Watermarks(limit_bytes=100, high=0.9, low=0.7, idle_seconds=10)


def held(digest: str, size: int, used_at: float, *, is_named: bool = True) -> Held:
    return Held(digest=digest, size_bytes=size, used_at=used_at, is_named=is_named)


@pytest.mark.parametrize(
    ("what", "need", "gone"),
    [
        ([held("a", 40, 0), held("b", 40, 1)], 0, []),
        ([held("a", 40, 0), held("b", 40, 1)], 20, ["a"]),
        ([held("a", 40, 95), held("b", 40, 1)], 20, ["b"]),
        ([held("a", 10, 50, is_named=False)], 0, ["a"]),
        ([held("a", 10, 95, is_named=False)], 0, []),
    ],
    ids=["below the high mark nothing", "the oldest first", "what is in use stays", "nameless always", "unless young"],
)
def test_what_goes(what: list[Held], need: int, gone: list[str]) -> None:
    chosen = victims(what, MARKS, need_bytes=need, now=100)
    assert chosen is not None
    assert [one.digest for one in chosen] == gone


def test_what_does_not_fit_is_not_admitted() -> None:
    assert victims([held("a", 90, 99)], MARKS, need_bytes=20, now=100) is None


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 100), st.booleans()), max_size=12), st.integers(0, 120))
def test_what_is_admitted_never_goes_over_the_limit_and_nothing_in_use_leaves(rows, need: int) -> None:
    what = [held(str(i), size, used, is_named=named) for i, (size, used, named) in enumerate(rows)]
    chosen = victims(what, MARKS, need_bytes=need, now=100)
    if chosen is not None:
        left = sum(one.size_bytes for one in what if one not in chosen)
        assert left + need <= MARKS.limit_bytes
        assert all(100 - one.used_at >= MARKS.idle_seconds for one in chosen)


def test_marks_that_cross_are_refused() -> None:
    with pytest.raises(InvalidCacheSetting, match="low ≤ high"):
        Watermarks(limit_bytes=1, high=0.5, low=0.9)
