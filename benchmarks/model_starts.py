"""The trace of model starts that eviction policies are compared on: its parameters and seeds, fixed before any tuning.

300 models are started by popularity (Zipf) that drifts, and as many one-off reads of data sets pass through the same
cache. The shape is that of the study in the design's research notes: lognormal sizes between 0.2 and 140 GB, shards of
about 5 GB and 8 small files a model, exponent 0.9, a tenth of the ranks redrawn every 1,500 starts; the source gives
1.25 GB/s and takes 50 ms an object. A synthetic trace ranks policies; it does not predict a cluster's hit ratio.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

SEEDS = tuple(range(20261101, 20261121))
"""Twenty, named once and never chosen by their results."""
GB = 10**9
CACHE_BYTES = {"1TB": 1000 * GB, "400GB": 400 * GB}
SOURCE_BYTES_PER_S = 1.25e9
SOURCE_SECONDS_PER_OBJECT = 0.050


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a trace is drawn from."""

    models: int = 300
    model_median_gb: float = 8.0
    model_sigma: float = 1.2
    model_least_gb: float = 0.2
    model_most_gb: float = 140.0
    shard_gb: float = 5.0
    small_files: int = 8
    zipf: float = 0.9
    drift_share: float = 0.10
    drift_every: int = 1500
    starts: int = 9000
    warm_up_starts: int = 1500
    """Starts at the beginning that fill the cache and are not counted."""
    one_off_share: float = 0.5
    """Of all requests, those that read a data set once and never again."""
    data_median_gb: float = 2.0
    data_sigma: float = 1.0
    data_least_gb: float = 0.05
    data_most_gb: float = 40.0
    data_file_gb: float = 0.064


@dataclass(frozen=True, slots=True)
class Request:
    """One start of a model, or one read of a data set."""

    bundle: int
    size_bytes: int
    objects: int
    is_start: bool
    """False for a one-off read, which no cache can serve."""
    counts: bool
    """False while the cache is filled for the first time."""

    @property
    def refetch_seconds(self) -> float:
        """What the whole bundle costs from the source."""
        return self.objects * SOURCE_SECONDS_PER_OBJECT + self.size_bytes / SOURCE_BYTES_PER_S


def requests(seed: int, shape: Shape | None = None) -> Iterator[Request]:
    """The trace of `seed`."""
    shape = shape or Shape()
    draw = np.random.default_rng(seed)
    sizes = _lognormal(
        draw, shape.models, shape.model_median_gb, shape.model_sigma, shape.model_least_gb, shape.model_most_gb
    )
    rank = draw.permutation(shape.models)
    weight = 1.0 / np.arange(1, shape.models + 1) ** shape.zipf
    cumulative = np.cumsum(weight / weight.sum())
    next_data_set = shape.models
    done = 0
    while done < shape.starts:
        counts = done >= shape.warm_up_starts
        if draw.random() < shape.one_off_share:
            (size,) = _lognormal(
                draw, 1, shape.data_median_gb, shape.data_sigma, shape.data_least_gb, shape.data_most_gb
            )
            files = int(np.ceil(size / (shape.data_file_gb * GB)))
            yield Request(next_data_set, int(size), files, is_start=False, counts=counts)
            next_data_set += 1
            continue
        model = int(rank[min(int(np.searchsorted(cumulative, draw.random())), shape.models - 1)])
        shards = int(np.ceil(sizes[model] / (shape.shard_gb * GB)))
        yield Request(model, int(sizes[model]), shards + shape.small_files, is_start=True, counts=counts)
        done += 1
        if done % shape.drift_every == 0:
            moved = draw.choice(shape.models, int(shape.models * shape.drift_share), replace=False)
            rank[moved] = rank[draw.permutation(moved)]


def _lognormal(
    draw: np.random.Generator, count: int, median_gb: float, sigma: float, least_gb: float, most_gb: float
) -> np.ndarray:
    return np.clip(median_gb * np.exp(sigma * draw.standard_normal(count)), least_gb, most_gb) * GB
