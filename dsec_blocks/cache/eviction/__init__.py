"""Which bundle leaves when room is needed: pure policies that are told of hits, misses and admissions.

The node's store asks `evict()` for one victim after the other; the benchmark replays whole traces through the same
objects. A policy decides over *bundles*: the small files of a resident bundle never leave on their own.
"""

from dsec_blocks.cache.eviction.policies import DEFAULT_POLICY, POLICIES, open_policy
from dsec_blocks.cache.eviction.policy import EvictionPolicy, Item
from dsec_blocks.cache.eviction.replay import Request, Tally, replay

__all__ = ["DEFAULT_POLICY", "POLICIES", "EvictionPolicy", "Item", "Request", "Tally", "open_policy", "replay"]
