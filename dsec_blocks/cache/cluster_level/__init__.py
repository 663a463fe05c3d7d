"""The level between the nodes' disks and the origins: any S3-compatible store that is near the nodes.

The first fetch of an object fills it; one node reads the origin however many ask. It is a cache: what it lacks is
fetched again, and when it is away the nodes go to the origin themselves.
"""

from dsec_blocks.cache.cluster_level.level import ClusterLevel
from dsec_blocks.cache.cluster_level.opening import ClusterAddress
from dsec_blocks.cache.cluster_level.through import Through
from dsec_blocks.cache.cluster_level.watermarks import Watermarks

__all__ = ["ClusterAddress", "ClusterLevel", "Through", "Watermarks"]
