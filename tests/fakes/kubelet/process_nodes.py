"""Process nodes as tests and demonstrations use them: start the stand-in, add nodes, make things go wrong."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from tests.fakes.kubelet.node_spec import NodeSpec, gpu_node

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 90.0
STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPod:
    """A pod as its node sees it. `devices` and `pids` are by container."""

    uid: str
    namespace: str
    name: str
    node: str
    ip: str
    folder: str
    devices: dict[str, list[str]]
    pids: dict[str, int | None]


class ProcessNodes:
    """Use as a context manager; at its end nothing is left, neither processes nor objects of its nodes."""

    def __init__(self, kubeconfig: str, folder: Path) -> None:
        self._kubeconfig, self.folder = kubeconfig, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._client: httpx.Client | None = None
        self._names: list[str] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        control = self.folder / "control.sock"
        control.unlink(missing_ok=True)  # of a stand-in that was killed here
        with (self.folder / "kubelet.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *[sys.executable, "-m", "tests.fakes.kubelet", "--kubeconfig", self._kubeconfig],
                    *["--folder", str(self.folder), "--parent", str(os.getpid())],
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not control.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the kubelet stand-in did not start:\n{self._words()}")
            time.sleep(0.02)
        transport = httpx.HTTPTransport(uds=str(control))
        self._client = httpx.Client(transport=transport, base_url="http://kubelet", timeout=120.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self.stop()

    def clear(self) -> None:
        """Take all nodes away."""
        for name in list(self._names):
            self.remove(name)

    def abandon(self) -> None:
        """Its nodes are somebody else's to take away: the stand-in was killed."""
        self._names.clear()

    @property
    def pid(self) -> int:
        """Of the stand-in's first process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """End the stand-in with all of its processes; objects stay as they are."""
        assert self._process is not None and self._client is not None
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # --- nodes --------------------------------------------------------------------------------------------------

    def add(self, name: str, **fields: Any) -> NodeSpec:
        """A node with GPUs (see `gpu_node`), Ready when this returns."""
        return self.add_node(gpu_node(name, **fields))

    def add_node(self, spec: NodeSpec) -> NodeSpec:
        """A node, Ready when this returns."""
        self._post("/nodes", spec.to_json())
        self._names.append(spec.name)
        return spec

    def remove(self, node: str) -> None:
        """Take a node away: its processes, its pods and its object."""
        self._names.remove(node)
        self._order(node, "remove")

    def pods(self, node: str | None = None) -> list[RunningPod]:
        """All pods that the nodes know of, finished ones included."""
        assert self._client is not None
        found = [RunningPod(**fields) for fields in self._client.get("/pods").raise_for_status().json()]
        return [pod for pod in found if node in (None, pod.node)]

    def pod(self, uid: str) -> RunningPod:
        """One pod. Raises `StopIteration` when no node knows it."""
        return next(pod for pod in self.pods() if pod.uid == uid)

    def devices(self, uid: str) -> list[str]:
        """UUIDs that a pod holds, as the kubelet's PodResources end point would say."""
        return sorted(uuid for uuids in self.pod(uid).devices.values() for uuid in uuids)

    # --- faults -------------------------------------------------------------------------------------------------

    def silence(self, node: str, *, at_once: bool = False) -> None:
        """No heartbeats, no statuses, no watch; its pods run on.

        The node controller says so after its grace period (50 s); with `at_once` that is written right away.
        """
        self._order(node, "silence", at_once=at_once)

    def unwell(self, node: str) -> None:
        """The node reports Ready=False and is otherwise well."""
        self._order(node, "unwell")

    def kill(self, node: str, *, at_once: bool = False) -> None:
        """The node goes down with all of its pods; nobody is told."""
        self._order(node, "kill", at_once=at_once)

    def revive(self, node: str) -> None:
        """The node is well and heard again; after `kill` this is a boot."""
        self._order(node, "revive")

    def reject_next(self, node: str, *, reason: str = "UnexpectedAdmissionError", message: str = "") -> None:
        """The next pod that is bound to the node goes to Failed with `reason`."""
        self._order(node, "reject_next", reason=reason, message=message or "Allocate failed due to a test")

    def slow_start(self, node: str, seconds: float) -> None:
        """Containers start so much later."""
        self._order(node, "slow_start", seconds=seconds)

    def hold_images(self, node: str) -> None:
        """Images cannot be pulled (ErrImagePull, ImagePullBackOff)."""
        self._order(node, "hold_images")

    def release_images(self, node: str) -> None:
        """Images can be pulled again."""
        self._order(node, "release_images")

    def delay_annotations(self, node: str, seconds: float) -> None:
        """How late a downwardAPI volume follows labels and annotations."""
        self._order(node, "delay_annotations", seconds=seconds)

    def _order(self, node: str, order: str, **given: Any) -> None:
        self._post(f"/nodes/{node}/{order}", given)

    def _post(self, path: str, content: Any) -> None:
        assert self._client is not None
        answer = self._client.post(path, json=content)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.text}\n{self._words()}")

    def _words(self) -> str:
        return (self.folder / "kubelet.log").read_text(errors="replace")[-4000:]
