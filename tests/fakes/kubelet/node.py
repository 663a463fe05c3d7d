"""One node: hears of the pods bound to it, takes or refuses them, and does what its faults say."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes.api import Api, Object
from dsec_workers.clusters.kubernetes.mirror import Mirror
from tests.fakes.kubelet import node_object
from tests.fakes.kubelet.admission import Refusal, out_of, refusal
from tests.fakes.kubelet.container import Container
from tests.fakes.kubelet.devices import Devices, OutOfDevices
from tests.fakes.kubelet.faults import Faults
from tests.fakes.kubelet.heartbeats import Heartbeats
from tests.fakes.kubelet.loopback import Addresses
from tests.fakes.kubelet.node_spec import NodeSpec
from tests.fakes.kubelet.pod import Pod
from tests.fakes.kubelet.runtime_client import RuntimeClient

RETRY_SECONDS = 0.5
Result = TypeVar("Result")
_PULL_BACKOFF_SECONDS = 1.0


class ProcessNode:
    """One node whose pods are processes."""

    def __init__(
        self,
        spec: NodeSpec,
        *,
        api: Api,
        runtime: RuntimeClient,
        addresses: Addresses,
        address: str,
        port: int,
        folder: Path,
        group: TaskGroup,
        api_server: tuple[str, str],
    ) -> None:
        self.spec = spec
        self.api, self.runtime, self.addresses = api, runtime, addresses
        self.address, self.port = address, port
        self.api_server = api_server
        self.folder = folder / "nodes" / spec.name
        self.locks = folder / "devices"
        self.boot_id = str(uuid4())
        self.devices = Devices(spec.devices)
        self.faults = Faults()
        self.heartbeats = Heartbeats(self)
        self.pods: dict[str, Pod] = {}
        """By uid, until the object is gone."""
        self.allocatable: Mapping[str, str] = node_object.status(
            spec, address=address, port=port, boot_id="", is_well=True, now=""
        )["allocatable"]
        self._group = group
        self._lives: dict[str, anyio.CancelScope] = {}
        self._mirrors: list[Mirror] = []
        """Of the node's own object and of its pods, while it is heard."""
        self._own_object: Object = {}
        for made in (self.folder, self.locks):
            made.mkdir(parents=True, exist_ok=True)

    # --- its own life -------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Become a node of the cluster; returns when pods may be placed here."""
        await self._patiently(self.heartbeats.register)
        self._group.start_soon(self.heartbeats.run)
        await self._listen()
        while not await self._patiently(self.heartbeats.is_ready):  # noqa: ASYNC110
            await anyio.sleep(0.05)

    async def leave(self) -> None:
        """Leave the cluster: no pods, no processes, no object."""
        await self._deafen()
        self.faults.heard = anyio.Event()
        pods = list(self.pods.values())
        await self._kill_pods()
        for pod in pods:
            path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
            try:
                await self.api.delete(path, at="test.kubelet.leave", uid=pod.uid, grace_seconds=0)
            except ClusterError:
                continue  # replaced, or the API server is away: nothing of ours runs in any case
        await self.heartbeats.remove()

    async def until_heard(self) -> None:
        """Return while words reach the API server; wait while the node is silent."""
        await self.faults.heard.wait()

    async def _listen(self) -> None:
        name = self.spec.name
        itself = Mirror(self.api, "/api/v1/nodes", fields=f"metadata.name={name}", on_change=self._hear_of_itself)
        pods = Mirror(self.api, "/api/v1/pods", fields=f"spec.nodeName={name}", on_change=self._hear)
        for mirror in (itself, pods):
            await self._patiently(mirror.start)
            self._mirrors.append(mirror)
        present = {item["metadata"]["uid"] for item in pods.objects.values()}
        for uid in [uid for uid in self.pods if uid not in present]:
            self._forget(uid)

    async def _deafen(self) -> None:
        while self._mirrors:
            await self._mirrors.pop().stop()

    async def _patiently(self, step: Callable[[], Awaitable[Result]]) -> Result:
        while True:
            try:
                return await step()
            except ClusterError:
                await anyio.sleep(RETRY_SECONDS)

    # --- pods ---------------------------------------------------------------------------------------------------

    def _hear_of_itself(self, _before: Object | None, after: Object | None) -> None:
        self._own_object = after or self._own_object

    def _hear(self, before: Object | None, after: Object | None) -> None:
        if before is not None and (after is None or after["metadata"]["uid"] != before["metadata"]["uid"]):
            self._forget(before["metadata"]["uid"])
        if after is None:
            return
        known = self.pods.get(after["metadata"]["uid"])
        if known is not None:
            known.update(after)
        elif (after.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            self._take(after)

    def _take(self, manifest: Object) -> None:
        is_lost = (manifest.get("status") or {}).get("phase") == "Running"
        pod = Pod(self, manifest, refusal=None if is_lost else self._refusal(manifest), is_lost=is_lost)
        self.pods[pod.uid] = pod
        if manifest["metadata"].get("deletionTimestamp"):
            pod.update(manifest)
        self._group.start_soon(self._live, pod)

    async def _live(self, pod: Pod) -> None:
        with anyio.CancelScope() as scope:
            self._lives[pod.uid] = scope
            await pod.run()
        if self._lives.get(pod.uid) is scope:
            del self._lives[pod.uid]

    def _forget(self, uid: str) -> None:
        gone = self.pods.pop(uid, None)
        if gone is not None:
            gone.vanish()

    def _refusal(self, manifest: Object) -> Refusal | None:
        if self.faults.refusals:
            return self.faults.refusals.popleft()
        found = refusal(manifest, self._own_object, [pod.manifest for pod in self.pods.values() if not pod.is_over])
        if found is not None:
            return found
        try:
            self.devices.allocate(manifest)
        except OutOfDevices as error:
            return out_of(error.resource, requested=error.requested, used=error.used, capacity=error.capacity)
        return None

    async def before_start(self, containers: Iterable[Container]) -> None:
        """What comes between admission and the first container."""
        turns = 0
        while self.faults.are_images_held:
            if self.faults.are_images_slow:
                for container in containers:
                    container.wait_because("ContainerCreating")
                await self.faults.images.wait()
                continue
            reason = "ErrImagePull" if turns % 2 == 0 else "ImagePullBackOff"
            for container in containers:
                image = container.state.image
                container.wait_because(reason, f'Back-off pulling image "{image}"' if turns % 2 else f"pull {image}")
            with anyio.move_on_after(_PULL_BACKOFF_SECONDS):
                await self.faults.images.wait()
            turns += 1
        for container in containers:
            container.wait_because("PodInitializing" if container.kind != "init" else "ContainerCreating")
        await anyio.sleep(self.faults.start_delay_seconds)

    def after_a_while(self, step: Callable[[], None]) -> None:
        """Do something as late as annotations are on this node."""
        delay = self.faults.annotation_delay_seconds

        async def later() -> None:
            await anyio.sleep(delay)
            step()

        if delay:
            self._group.start_soon(later)
        else:
            step()

    # --- faults -------------------------------------------------------------------------------------------------

    async def silence(self, *, at_once: bool = False) -> None:
        """Nothing is said and nothing heard any more; pods run on.

        The node controller notices after its grace period; with `at_once` its words are written for it.
        """
        self.faults.heard = anyio.Event()
        await self._deafen()
        if at_once:
            await self.heartbeats.say_unknown()

    async def unwell(self) -> None:
        """Report Ready=False; everything else goes on."""
        self.faults.is_well = False
        await self._patiently(self.heartbeats.report)

    async def kill(self, *, at_once: bool = False) -> None:
        """The machine goes down, its pods with it; nobody is told."""
        self.faults.is_up = False
        await self.silence(at_once=at_once)
        await self._kill_pods()

    async def revive(self) -> None:
        """Well, heard and up again; after `kill` this is a boot that knows nothing of the pods from before."""
        if not self.faults.is_up:
            self.boot_id = str(uuid4())
        self.faults.is_up = self.faults.is_well = True
        self.faults.heard.set()
        await self._patiently(self.heartbeats.register)
        if not self._mirrors:
            await self._listen()

    async def _kill_pods(self) -> None:
        for uid, pod in list(self.pods.items()):
            if uid in self._lives:
                self._lives.pop(uid).cancel()
            await asyncio.shield(asyncio.ensure_future(pod.kill()))
        self.pods.clear()
