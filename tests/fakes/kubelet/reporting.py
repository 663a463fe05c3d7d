"""A pod's status on its way to the API server: the newest one, once at a time, tried until it is there."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes.errors import Conflict, NotFound

if TYPE_CHECKING:
    from tests.fakes.kubelet.node import ProcessNode

RETRY_SECONDS = 0.5


class Reporter:
    """Writes one pod's status whenever it was woken, and its deletion. A silent node's writes wait.

    One write is answered before the next is sent: an older one that arrived last would stay, and the Job controller
    keeps a pod that leaves while it "runs".
    """

    def __init__(self, node: "ProcessNode", pod: Mapping[str, Any], *, make: Callable[[], dict[str, Any]]) -> None:
        self._node, self._make = node, make
        metadata = pod["metadata"]
        self._identity = {key: metadata[key] for key in ("name", "namespace", "uid")}
        self._path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._news = anyio.Event()
        self._news.set()
        self._is_ending = False

    def wake(self) -> None:
        """There is something new to report."""
        self._news.set()

    def finish(self) -> None:
        """The status is as it will remain."""
        self._is_ending = True
        self.wake()

    async def run(self) -> None:
        """Report what is new, until what there was to `finish` is written."""
        is_last = False
        while not is_last:
            await self._news.wait()
            self._news, is_last = anyio.Event(), self._is_ending
            await self._until_done(self._write)

    async def delete(self) -> None:
        """Take the pod out of the API: all of its containers have stopped."""
        await self._until_done(self._delete)

    async def _until_done(self, step: Callable[[], Any]) -> None:
        while True:
            await self._node.until_heard()
            try:
                await step()
                return
            except (NotFound, Conflict):
                return
            except ClusterError:
                await anyio.sleep(RETRY_SECONDS)

    async def _write(self) -> None:
        # Server-side apply keeps conditions that are not the kubelet's, and drops those of ours that are no more.
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": self._identity, "status": self._make()}
        await self._node.api.apply(f"{self._path}/status", body, owner="kubelet", at="test.kubelet.status")

    async def _delete(self) -> None:
        await self._node.api.delete(self._path, at="test.kubelet.delete", uid=self._identity["uid"], grace_seconds=0)
