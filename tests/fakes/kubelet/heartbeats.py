"""A node's presence in the API: its object, its status, and the Lease that says it is still there."""

from typing import TYPE_CHECKING, Any

import anyio

from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes.errors import AlreadyExists, NotFound
from tests.fakes.kubelet import node_object
from tests.fakes.kubelet.times import now, now_micro

if TYPE_CHECKING:
    from tests.fakes.kubelet.node import ProcessNode

LEASE_SECONDS = 40
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class Heartbeats:
    """Registers one node and keeps it alive."""

    def __init__(self, node: "ProcessNode") -> None:
        self._node = node
        self._path = f"/api/v1/nodes/{node.spec.name}"
        self._lease = f"{_LEASES}/{node.spec.name}"

    async def register(self) -> None:
        """Make the Node object, or take over the one that is there; report its status and renew its lease."""
        body = node_object.registration(self._node.spec)
        try:
            await self._node.api.create("/api/v1/nodes", body, at="test.kubelet.register")
        except AlreadyExists:
            labels = {"metadata": {"labels": body["metadata"]["labels"]}}
            await self._node.api.merge(self._path, labels, at="test.kubelet.label")
        await self.report()
        await self.renew()

    async def report(self) -> None:
        """Write the status of the node."""
        node = self._node
        status = node_object.status(
            node.spec,
            address=node.address,
            port=node.port,
            boot_id=node.boot_id,
            is_well=node.faults.is_well,
            now=now(),
        )
        await self._node.api.merge(f"{self._path}/status", {"status": status}, at="test.kubelet.node")

    async def say_unknown(self) -> None:
        """What the node controller says about a node after its grace period; for tests that cannot wait so long."""
        status: dict[str, Any] = {"status": {"conditions": node_object.unknown(now=now())}}
        await self._node.api.merge(f"{self._path}/status", status, at="test.kubelet.unknown")

    async def renew(self) -> None:
        """Renew the lease, made first where it is missing."""
        spec = {
            "holderIdentity": self._node.spec.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now_micro(),
        }
        try:
            await self._node.api.merge(self._lease, {"spec": spec}, at="test.kubelet.lease")
        except NotFound:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._node.spec.name, "namespace": "kube-node-lease"},
                "spec": spec,
            }
            await self._node.api.create(_LEASES, body, at="test.kubelet.lease")

    async def run(self) -> None:
        """Renew the lease for ever, as long as the node is heard, and say its status again where it is told otherwise.

        When the API server was away for long the node controller calls all nodes Unknown; only kubelets cure that.
        """
        while True:
            await anyio.sleep(self._node.spec.heartbeat_seconds)
            await self._node.until_heard()
            try:
                await self.renew()
                if not await self._is_told_as_it_is():
                    await self.report()
            except ClusterError:
                continue  # the API server is away; the next beat may find it

    async def _is_told_as_it_is(self) -> bool:
        conditions = ((await self._node.api.get(self._path)).get("status") or {}).get("conditions") or ()
        told = {row["type"]: row["status"] for row in conditions}
        return told.get("Ready") == ("True" if self._node.faults.is_well else "False")

    async def remove(self) -> None:
        """Take the node out of the API."""
        for path in (self._path, self._lease):
            await self._node.api.delete(path, at="test.kubelet.remove")

    async def is_ready(self) -> bool:
        """Whether pods may be placed: Ready, and the node controller has taken its taints off."""
        node = await self._node.api.get(self._path)
        conditions = {row["type"]: row["status"] for row in node["status"].get("conditions") or ()}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")
