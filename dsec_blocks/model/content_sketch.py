"""A sketch of a content: how many of its bytes another content has too, without the names of all files of either.

It is a bottom-k sketch: the blobs with the smallest digests. Digests are hashes, so these are a fair sample, and the
same one in every content. Of a content of fewer than `MOST_BLOBS` blobs it has all, and the answer is exact. Pure.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

MOST_BLOBS = 64
_DIGITS = 16
"""Of a digest, in hexadecimal: enough to tell the blobs of one cluster apart."""


class SampledBlob(NamedTuple):
    """One blob of a content, and whether it lies on the node that says so."""

    digest: str
    size_bytes: int
    is_here: bool


Sketch = tuple[SampledBlob, ...]
"""By digest."""


def sketch_of(blobs: Mapping[str, int], *, is_here: Callable[[str], bool]) -> Sketch:
    """The sketch of a content whose blobs have these sizes, by digest."""
    smallest = sorted(blobs)[:MOST_BLOBS]
    return tuple(SampledBlob(digest[:_DIGITS], blobs[digest], is_here(digest)) for digest in smallest)


def shared_bytes(content: Sketch, held: Sketch, *, total_bytes: int) -> int:
    """Of a content of `total_bytes`, those that a node has which holds blobs of another content."""
    # Beyond the last blob of a sketch that is full nobody knows what its content has.
    ends = [sketch[-1].digest for sketch in (content, held) if len(sketch) >= MOST_BLOBS]
    sample = [blob for blob in content if all(blob.digest <= end for end in ends)]
    here = {blob.digest for blob in held if blob.is_here}
    sampled = sum(blob.size_bytes for blob in sample)
    shared = sum(blob.size_bytes for blob in sample if blob.digest in here)
    return total_bytes * shared // sampled if sampled else 0
