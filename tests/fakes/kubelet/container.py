"""One container: started, probed, started again by its pod's policy, and stopped by SIGTERM, grace and SIGKILL."""

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import anyio

from tests.fakes.kubelet import probes
from tests.fakes.kubelet.mounts import replace_paths
from tests.fakes.kubelet.runtime_client import Process, Refused
from tests.fakes.kubelet.sources import Unresolved
from tests.fakes.kubelet.status import UNKNOWN, ContainerState, Kind, terminated
from tests.fakes.kubelet.times import now

RETRY_SECONDS = 0.5
_STARTS_FAILED = 128
_MESSAGE_BYTES, _LOG_MESSAGE_BYTES = 4096, 2048


class Surroundings(Protocol):
    """What a container needs of its pod."""

    folder: Path
    ip: str
    restart_policy: str
    backoff_seconds: float
    grace_seconds: float

    async def start_process(
        self, container: Mapping[str, Any], *, root: Path, termination_log: Path, log: Path
    ) -> Process:
        """Start its PID 1. Raises `Unresolved` and `Refused`."""

    async def start_beside(self, container: Mapping[str, Any], command: Sequence[str], *, root: Path) -> Process:
        """Start a probe's command, with the container's environment. Raises `Refused`."""

    def mounts(self, container: Mapping[str, Any], root: Path) -> Mapping[str, str]:
        """Where its mount paths are."""

    def changed(self) -> None:
        """Its state has changed."""


class Container:
    """One container of one pod."""

    def __init__(self, spec: Mapping[str, Any], *, kind: Kind, pod: Surroundings, uid: str) -> None:
        self.spec = spec
        self.kind = kind
        self._pod = pod
        self._uid = uid
        self.name: str = spec["name"]
        self.state = ContainerState(name=self.name, image=spec.get("image") or "", kind=kind)
        if kind != "init":
            self.state.waiting = ("PodInitializing", "")
        self.root = pod.folder / "roots" / self.name
        self._process: Process | None = None
        self._grace_seconds: float = pod.grace_seconds

    @property
    def pid(self) -> int | None:
        """Its PID 1, while it runs."""
        return self._process.pid if self._process is not None and not self._process.has_ended else None

    def log(self, *, previous: bool = False) -> Path:
        """Where its output goes; `previous`: of the time before its last restart."""
        return self._pod.folder / "logs" / self.name / f"{self.state.restarts - int(previous)}.log"

    async def run(self) -> bool:
        """Until it has ended for good; whether it ended well."""
        delay = self._pod.backoff_seconds
        while True:
            await self._once()
            if not self._runs_again():
                return self.state.succeeded
            with anyio.CancelScope(shield=False):
                await anyio.sleep(RETRY_SECONDS if self.state.succeeded else delay)
            delay = min(delay * 2, 300.0)
            self._back_to_waiting()

    async def stop(self, deadline: Callable[[], float]) -> None:
        """SIGTERM to PID 1, SIGKILL to all at the deadline (which may move); returns when nothing of it is left."""
        process = self._process
        if process is None:
            return
        if not process.has_ended:
            process.signal(signal.SIGTERM)
            while not process.has_ended and (left := deadline() - anyio.current_time()) > 0:
                with anyio.move_on_after(min(left, 0.25)):
                    await process.wait()
            process.signal(signal.SIGKILL)
        self._record(await process.wait())

    def give_up(self) -> None:
        """Nobody will see it end: it never began, or its node went down."""
        if self.state.terminated is None:
            self.state.terminated = dict(UNKNOWN)
            self.state.is_ready = self.state.is_started = False

    def wait_because(self, reason: str, message: str = "") -> None:
        """Say why it does not run yet."""
        if self.state.running_since is None and self.state.waiting != (reason, message):
            self.state.waiting = (reason, message)
            self._pod.changed()

    async def _once(self) -> None:
        process = await self._started()
        if process is None:
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._probe)
            status = await process.wait()
            group.cancel_scope.cancel()
        self._record(status)

    async def _started(self) -> Process | None:
        for folder in (self.root, self.log().parent, self._termination_log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self._termination_log.write_bytes(b"")
        self.state.container_id = f"process://{self._uid}-{self.name}-{self.state.restarts}"
        while True:
            try:
                with anyio.CancelScope(shield=True):  # a process that was started is always known
                    self._process = await self._pod.start_process(
                        self.spec, root=self.root, termination_log=self._termination_log, log=self.log()
                    )
                break
            except Unresolved as error:
                self.wait_because("CreateContainerConfigError", str(error))
                await anyio.sleep(RETRY_SECONDS)
            except Refused as error:
                self.state.terminated = terminated(
                    status=_STARTS_FAILED,
                    started_at="1970-01-01T00:00:00Z",
                    finished_at=now(),
                    container_id=self.state.container_id,
                    message=f"failed to start container: {error}",
                    reason="StartError",
                )
                self._pod.changed()
                return None
        self.state.running_since = now()
        self.state.is_started = "startupProbe" not in self.spec
        self.state.is_ready = self.state.is_started and "readinessProbe" not in self.spec and self.kind != "init"
        self._pod.changed()
        return self._process

    def _record(self, status: int) -> None:
        if self.state.running_since is None:
            return
        self.state.terminated = terminated(
            status=status,
            started_at=self.state.running_since,
            finished_at=now(),
            container_id=self.state.container_id,
            message=self._last_words(status),
        )
        self.state.running_since = None
        self.state.is_ready = self.state.is_started = False
        self._pod.changed()

    def _runs_again(self) -> bool:
        if self.kind == "sidecar":
            return True
        policy = self._pod.restart_policy
        if policy == "Always" and self.kind == "app":
            return True
        return policy != "Never" and not self.state.succeeded

    def _back_to_waiting(self) -> None:
        self.state.last, self.state.terminated = self.state.terminated, None
        self.state.waiting = ("CrashLoopBackOff", f"back-off restarting failed container={self.name}")
        self.state.restarts += 1
        self._pod.changed()

    # --- what it says at its end --------------------------------------------------------------------------------

    @property
    def _termination_log(self) -> Path:
        path: str = self.spec.get("terminationMessagePath") or "/dev/termination-log"
        root: Path = self.root
        return root / path.lstrip("/")

    def _last_words(self, status: int) -> str:
        try:
            message = self._termination_log.read_bytes()[:_MESSAGE_BYTES]
            if not message and status != 0 and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
                message = b"".join(self.log().read_bytes().splitlines(keepends=True)[-80:])[-_LOG_MESSAGE_BYTES:]
        except OSError:
            return ""
        return message.decode(errors="replace")

    # --- probes -------------------------------------------------------------------------------------------------

    async def _probe(self) -> None:
        if "startupProbe" in self.spec:
            async with anyio.create_task_group() as group:

                async def begin(passes: bool) -> None:
                    if passes:
                        self.state.is_started = True
                        self.state.is_ready = "readinessProbe" not in self.spec and self.kind != "init"
                        self._pod.changed()
                        group.cancel_scope.cancel()
                    else:
                        await self._fail("startup")

                await self._watch("startupProbe", begin)
        async with anyio.create_task_group() as group:
            if "readinessProbe" in self.spec:
                group.start_soon(self._watch, "readinessProbe", self._set_ready)
            if "livenessProbe" in self.spec:
                group.start_soon(self._watch, "livenessProbe", self._set_alive)

    async def _watch(self, kind: str, on_change: Any) -> None:
        spec = dict(self.spec[kind])
        for way in ("httpGet", "tcpSocket"):
            if way in spec:
                names = {port.get("name"): port["containerPort"] for port in self.spec.get("ports") or ()}
                spec[way] = {**spec[way], "port": names.get(spec[way]["port"], spec[way]["port"])}
        await probes.watch(spec, address=self._pod.ip, execute=self._execute, on_change=on_change)

    async def _set_ready(self, passes: bool) -> None:
        self.state.is_ready = passes
        self._pod.changed()

    async def _set_alive(self, passes: bool) -> None:
        if not passes:
            await self._fail("liveness")

    async def _fail(self, probe: str) -> None:
        """Stop it for a probe's sake; its restart policy says what follows."""
        deadline = anyio.current_time() + self._grace_seconds
        process = self._process
        assert process is not None
        process.signal(signal.SIGTERM)
        with anyio.move_on_at(deadline):
            await process.wait()
        process.signal(signal.SIGKILL)
        await process.wait()

    async def _execute(self, command: Sequence[str], seconds: float) -> int:
        mounts = self._pod.mounts(self.spec, self.root)
        try:
            process = await self._pod.start_beside(
                self.spec, [replace_paths(word, mounts) for word in command], root=self.root
            )
        except Refused:
            return _STARTS_FAILED
        with anyio.move_on_after(seconds):
            return await process.wait()
        process.signal(signal.SIGKILL)
        return await process.wait()
