"""What both of our processes share: pods on KWOK nodes run in name only, so what their programs would do is played."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from benchmarks.kube_plane import NAMESPACE
from dsec_workers.clusters.kubernetes.cluster import KubernetesCluster
from dsec_workers.clusters.kubernetes.following import Following
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import ClusterEvent, DevicesReleased

POOL = "bench"
IMAGE = "registry.k8s.io/pause:3.10"
RUNS_FOR = "dsec.io/runs-for-milliseconds"
"""An annotation that the simulated nodes of this repository's control plane obey."""
IN_NAME = KubernetesSettings(pool=POOL, namespace=NAMESPACE, image=IMAGE, has_outposts=False, upload_seconds=0)


class PlayedCluster(KubernetesCluster):
    """The production adapter, but the run of a gang whose pods have all ended well is completed, as its engine would
    have done before they ended: nothing is told of the end until `complete` has said so.
    """

    def __init__(self, complete: Callable[[str], Awaitable[None]], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._complete = complete

    def _following(self, view: GangView) -> Following:
        found = super()._following(view)
        found.tell = partial(self._tell, view, found.tell)
        return found

    async def _tell(self, view: GangView, tell: Callable[[ClusterEvent], Awaitable[None]], event: ClusterEvent) -> None:
        if isinstance(event, DevicesReleased):
            exits = [fate.exit_code for fate in view.fates().values()]
            if exits and not any(code is None or code for code in exits):
                await self._complete(view.key.run_id)
        await tell(event)


def say(**what: Any) -> None:
    """One line to whoever started us."""
    print(json.dumps(what), flush=True)


async def lines() -> AsyncIterator[bytes]:
    """What whoever started us says."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line
