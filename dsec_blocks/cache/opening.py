"""From settings to an open cache: its store, whose rights it has, and what stands between it and the origins."""

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from dsec_blocks.cache.acquiring import Cache
from dsec_blocks.cache.origins import Origin, origin_for
from dsec_blocks.cache.origins.opening import identity_of
from dsec_blocks.cache.settings import CacheSettings, from_environment
from dsec_blocks.cache.site import Site, read_site
from dsec_blocks.cache.store.store import Store
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.home import home_of
from dsec_blocks.model.clock import Clock

if TYPE_CHECKING:
    from dsec_blocks.cache.cluster_level import ClusterAddress, ClusterLevel


def open_cache(
    settings: CacheSettings | None = None, *, clock: Clock | None = None, cluster: "ClusterAddress | Site | None" = None
) -> Cache:
    """The cache that `settings` describe, or the one of the environment; touches nothing yet.

    With `cluster` what the node lacks comes through the store that the cluster's nodes share. The cache of the
    environment has the cluster level of its installation.
    """
    if settings is None and cluster is None:
        cluster = read_site(home_of())
    settings = settings or from_environment()
    clock = clock or SystemClock()
    store = Store.open(settings.directory, clock=clock, limits=settings.limits, policy=settings.policy)

    @lru_cache(maxsize=1)
    def level() -> "ClusterLevel":
        from dsec_blocks.cache.cluster_level.circuit_breaker import MARK

        assert cluster is not None
        address = cluster.address() if isinstance(cluster, Site) else cluster
        return address.open(clock=clock, origin=settings.credentials, breaker_mark=store.layout.root / MARK)

    def origin_of(uri: str) -> Origin:
        origin = origin_for(uri, settings.credentials)
        if cluster is None:
            return origin
        from dsec_blocks.cache.cluster_level import Through  # a node without a cluster level needs no ledger

        return Through(level(), origin)

    identity = f"{os.getuid()}-{identity_of(settings.credentials)[:32]}"
    return Cache(store=store, settings=settings, origin_of=origin_of, identity=identity)
