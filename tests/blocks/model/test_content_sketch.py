"""How much two contents share, from a sketch of each: exact for few blobs, a fair guess for many."""

import hashlib

import pytest

from dsec_blocks.model.content_sketch import MOST_BLOBS, Sketch, shared_bytes, sketch_of


def of(numbers: range, *, size_bytes: int = 10, here: bool = True) -> Sketch:
    digests = [hashlib.sha256(str(number).encode()).hexdigest() for number in numbers]
    return sketch_of(dict.fromkeys(digests, size_bytes), is_here=lambda digest: here)


def test_of_few_blobs_it_is_exact() -> None:
    assert shared_bytes(of(range(50)), of(range(20, 60)), total_bytes=500) == 300
    assert shared_bytes(of(range(50)), of(range(50)), total_bytes=500) == 500
    assert shared_bytes(of(range(50)), of(range(50, 60)), total_bytes=500) == 0


def test_what_does_not_lie_there_is_not_shared() -> None:
    assert shared_bytes(of(range(50)), of(range(50), here=False), total_bytes=500) == 0


def test_an_empty_content_shares_nothing() -> None:
    assert shared_bytes((), of(range(5)), total_bytes=0) == 0
    assert shared_bytes(of(range(5)), (), total_bytes=50) == 0


@pytest.mark.parametrize("kept", [0, 1000, 5000, 9000, 10_000])
def test_of_many_blobs_it_is_about_right(kept: int) -> None:
    """A data set of ten thousand files of which some are new."""
    old, new = of(range(10_000)), of(range(10_000 - kept, 20_000 - kept))
    assert len(old) == MOST_BLOBS
    assert shared_bytes(new, old, total_bytes=100_000) == pytest.approx(10 * kept, abs=10_000)
