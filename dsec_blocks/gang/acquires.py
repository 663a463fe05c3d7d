"""What a gang's processes acquire from their node's cache is told to the supervisor, for the run's report."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dsec_blocks.cache.hearing import hearers
from dsec_blocks.gang.membership import membership
from dsec_blocks.model.errors import ClusterError, Evicted

_TOLD = ("uri", "bytes", "cluster", "origin", "seconds", "fetch", "verify")


def tell_the_gang(event: Mapping[str, Any]) -> None:
    """Say what an acquire came to. A report is worth no start: what cannot be said is left out."""
    me = membership()
    if me.channel_path is None:
        return
    told = {name: event[name] for name in _TOLD}
    with suppress(ClusterError, Evicted):  # whose supervisor is gone hears of it at its next step
        me.tell("acquired", member=me.member, rank=me.rank if me.is_rank else -1, **told)


hearers.append(tell_the_gang)
