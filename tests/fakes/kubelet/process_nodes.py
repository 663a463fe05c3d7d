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
ORDER_SECONDS = 120.0
LOG = "kubelet.log"


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


class Nodes:
    """The nodes of a stand-in that runs, whoever started it: its control socket is in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.control = folder / "control.sock"
        transport = httpx.HTTPTransport(uds=str(self.control))
        self._client = httpx.Client(transport=transport, base_url="http://kubelet", timeout=ORDER_SECONDS)
        self._names: list[str] = []

    def answers(self) -> bool:
        """Whether the stand-in takes orders."""
        try:
            return self._client.get("/pods").status_code == 200
        except httpx.ConnectError:  # the socket's file is there a moment before somebody listens
            return False

    def clear(self) -> None:
        """Take away all nodes that were added here."""
        for name in list(self._names):
            self.remove(name)

    def abandon(self) -> None:
        """Its nodes are somebody else's to take away."""
        self._names.clear()

    # --- nodes --------------------------------------------------------------------------------------------------

    def add(self, name: str, **fields: Any) -> NodeSpec:
        """A node with GPUs (see `gpu_node`), Ready when this returns."""
        return self.add_node(gpu_node(name, **fields))

    def add_node(self, spec: NodeSpec) -> NodeSpec:
        """A node, Ready when this returns; one that is there stays as it is."""
        self._post("/nodes", spec.to_json())
        if spec.name not in self._names:
            self._names.append(spec.name)
        return spec

    def remove(self, node: str) -> None:
        """Take a node away: its processes, its pods and its object."""
        self._order(node, "remove")
        self._names = [name for name in self._names if name != node]

    def pods(self, node: str | None = None) -> list[RunningPod]:
        """All pods that the nodes know of, finished ones included."""
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

    def hold_images(self, node: str, *, quietly: bool = False) -> None:
        """Images cannot be pulled (ErrImagePull, ImagePullBackOff); `quietly`: they are being pulled, and it takes."""
        self._order(node, "hold_images", quietly=quietly)

    def release_images(self, node: str) -> None:
        """Images can be pulled again."""
        self._order(node, "release_images")

    def delay_annotations(self, node: str, seconds: float) -> None:
        """How late a downwardAPI volume follows labels and annotations."""
        self._order(node, "delay_annotations", seconds=seconds)

    def _order(self, node: str, order: str, **given: Any) -> None:
        self._post(f"/nodes/{node}/{order}", given)

    def _post(self, path: str, content: Any) -> None:
        answer = self._client.post(path, json=content)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.text}\n{self._words()}")

    def _words(self) -> str:
        return (self.folder / LOG).read_text(errors="replace")[-4000:]


class ProcessNodes(Nodes):
    """A stand-in of one's own: use as a context manager; at its end neither processes nor its nodes are left."""

    def __init__(self, kubeconfig: str, folder: Path) -> None:
        super().__init__(folder)
        self._kubeconfig = kubeconfig
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.control.unlink(missing_ok=True)  # of a stand-in that was killed here
        with (self.folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [*command(self._kubeconfig, self.folder), "--parent", str(os.getpid())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the kubelet stand-in did not start:\n{self._words()}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self.stop()

    @property
    def pid(self) -> int:
        """Of the stand-in's first process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """End the stand-in with all of its processes; objects stay as they are."""
        assert self._process is not None
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def command(kubeconfig: str, folder: Path) -> list[str]:
    """The program that is a stand-in; to be run in the repository's root."""
    return [sys.executable, "-m", "tests.fakes.kubelet", "--kubeconfig", kubeconfig, "--folder", str(folder)]
