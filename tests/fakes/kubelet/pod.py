"""One pod on its node, from admission to the end: the order of its containers, its status, its deletion."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from tests.fakes.kubelet.admission import Refusal
from tests.fakes.kubelet.container import RETRY_SECONDS, Container
from tests.fakes.kubelet.launch import Launch
from tests.fakes.kubelet.reporting import Reporter
from tests.fakes.kubelet.runtime_client import Process
from tests.fakes.kubelet.sources import Unresolved
from tests.fakes.kubelet.status import Conditions, phase
from tests.fakes.kubelet.times import now

if TYPE_CHECKING:
    from tests.fakes.kubelet.node import ProcessNode

DEFAULT_GRACE_SECONDS = 30
_LEAST_GRACE_SECONDS = 1


class Pod:
    """One pod. `run` is its life; `update` and `vanish` tell it what the API server says."""

    def __init__(
        self, node: "ProcessNode", manifest: Mapping[str, Any], *, refusal: Refusal | None, is_lost: bool
    ) -> None:
        self.node = node
        self.manifest = manifest
        self.uid: str = manifest["metadata"]["uid"]
        self.name: str = manifest["metadata"]["name"]
        self.namespace: str = manifest["metadata"]["namespace"]
        spec = manifest["spec"]
        self.folder: Path = node.folder / "pods" / self.uid
        self.ip: str = node.address if spec.get("hostNetwork") else node.addresses.for_pod()
        self.restart_policy: str = spec.get("restartPolicy") or "Always"
        self.backoff_seconds = node.spec.restart_backoff_seconds
        grace = spec.get("terminationGracePeriodSeconds")
        self.grace_seconds: float = DEFAULT_GRACE_SECONDS if grace is None else grace
        self.containers = [
            *(Container(c, kind=_init_kind(c), pod=self, uid=self.uid) for c in spec.get("initContainers") or ()),
            *(Container(c, kind="app", pod=self, uid=self.uid) for c in spec["containers"]),
        ]
        self.is_over = False
        """Whether none of its containers runs, or ever will again."""
        self._refusal = refusal
        self._is_lost = is_lost
        """Whether it ran before its node went down."""
        self._started_at = now()
        self._is_prepared = False
        self._leaving = anyio.Event()
        self._deadline: float | None = None
        self._has_vanished = False
        self._told = anyio.Event()
        self._conditions = Conditions()
        self._launch = Launch(node, manifest, folder=self.folder, ip=self.ip)
        self._reporter = Reporter(node, manifest, make=self.status)

    # --- what the API server says -------------------------------------------------------------------------------

    def update(self, manifest: Mapping[str, Any]) -> None:
        """The pod as it is in the API now."""
        self.manifest = manifest
        metadata = manifest["metadata"]
        if metadata.get("deletionTimestamp"):
            self._leave(metadata.get("deletionGracePeriodSeconds") or 0)
        self._told.set()
        self.node.after_a_while(lambda: self._launch.refresh(manifest))

    def vanish(self) -> None:
        """It is no longer in the API."""
        self._has_vanished = True
        self._told.set()
        self._leave(0)

    def _leave(self, grace_seconds: float, *, refusal: Refusal | None = None) -> None:
        deadline = anyio.current_time() + max(_LEAST_GRACE_SECONDS, grace_seconds)
        self._deadline = min(self._deadline or deadline, deadline)
        self._refusal = self._refusal or refusal
        self._leaving.set()

    # --- its life -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """From admission until the object is gone."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._reporter.run)
            if self._refusal is None and not self._is_lost:
                await self._live()
            if self._leaving.is_set() or self._is_lost:
                for container in self.containers:
                    container.give_up()
            self.is_over = True
            self.node.devices.free(self.uid)
            self._reporter.finish()
        while not self._has_vanished:
            if self.manifest["metadata"].get("deletionTimestamp"):
                await self._reporter.delete()
                break
            await self._told.wait()
            self._told = anyio.Event()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def kill(self) -> None:
        """Its node went down: every process is killed and nobody is told."""
        async with anyio.create_task_group() as group:
            for container in self.containers:
                group.start_soon(container.stop, lambda: 0.0)
        self.node.devices.free(self.uid)
        self.is_over = True

    async def _live(self) -> None:
        async with anyio.create_task_group() as group:
            if seconds := self.manifest["spec"].get("activeDeadlineSeconds"):
                group.start_soon(self._expire, float(seconds))

            async def work() -> None:
                await self._work()
                group.cancel_scope.cancel()

            group.start_soon(work)
            await self._leaving.wait()
            group.cancel_scope.cancel()
        if self._deadline is None:
            self._deadline = anyio.current_time() + self.grace_seconds
        await self._stop()

    async def _work(self) -> None:
        while not self._is_prepared:
            try:
                await self._launch.prepare()
                self._is_prepared = True
            except Unresolved as error:
                for container in self.containers:
                    container.wait_because("ContainerCreating", str(error))
                await anyio.sleep(RETRY_SECONDS)
        self.changed()
        await self.node.before_start(self.containers)  # as a kubelet does it: images come after volumes and network
        async with anyio.create_task_group() as sidecars:
            for container in self.containers:
                if container.kind == "init" and not await container.run():
                    sidecars.cancel_scope.cancel()
                    return
                if container.kind == "sidecar":
                    sidecars.start_soon(container.run)
                    while not container.state.is_started:  # noqa: ASYNC110
                        await anyio.sleep(0.02)
            async with anyio.create_task_group() as apps:
                for container in self.containers:
                    if container.kind == "app":
                        container.wait_because("ContainerCreating")
                        apps.start_soon(container.run)
            sidecars.cancel_scope.cancel()

    async def _stop(self) -> None:
        """Apps first and together, then the sidecars, the last one first; all by the same deadline."""
        async with anyio.create_task_group() as group:
            for container in self.containers:
                if container.kind != "sidecar":
                    group.start_soon(container.stop, self._when)
        for container in reversed(self.containers):
            if container.kind == "sidecar":
                await container.stop(self._when)

    def _when(self) -> float:
        return self._deadline or 0.0

    async def _expire(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        message = "Pod was active on the node longer than the specified deadline"
        self._leave(self.grace_seconds, refusal=Refusal(reason="DeadlineExceeded", message=message))

    # --- what its containers ask --------------------------------------------------------------------------------

    def changed(self) -> None:
        """A container's state has changed."""
        self._reporter.wake()

    async def start_process(
        self, container: Mapping[str, Any], *, root: Path, termination_log: Path, log: Path
    ) -> Process:
        """Start a container's PID 1."""
        return await self._launch.start(container, root=root, termination_log=termination_log, log=log)

    async def start_beside(self, container: Mapping[str, Any], command: Sequence[str], *, root: Path) -> Process:
        """Start a command in a container's surroundings."""
        return await self._launch.start_beside(container, command, root=root)

    def mounts(self, container: Mapping[str, Any], root: Path) -> Mapping[str, str]:
        """Where a container's mount paths are."""
        return self._launch.mounts(container, root)

    # --- what it reports ----------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Its status as it is now."""
        if self._refusal is not None and not any(c.state.container_id for c in self.containers):
            return {
                "phase": "Failed",
                "reason": self._refusal.reason,
                "message": self._refusal.message,
                "startTime": self._started_at,
            }
        states = [container.state for container in self.containers]
        found = phase(states, is_over=self.is_over)
        told = {"reason": self._refusal.reason, "message": self._refusal.message} if self._refusal else {}
        return {
            "phase": "Failed" if self.is_over and self._refusal else found,
            **told,
            "startTime": self._started_at,
            "hostIP": self.node.address,
            "hostIPs": [{"ip": self.node.address}],
            **({"podIP": self.ip, "podIPs": [{"ip": self.ip}]} if self._is_prepared else {}),
            "conditions": self._conditions.of(states, phase=found, has_network=self._is_prepared, now=now()),
            "initContainerStatuses": [s.to_json() for s in states if s.kind != "app"],
            "containerStatuses": [s.to_json() for s in states if s.kind == "app"],
        }


def _init_kind(container: Mapping[str, Any]) -> Any:
    return "sidecar" if container.get("restartPolicy") == "Always" else "init"
