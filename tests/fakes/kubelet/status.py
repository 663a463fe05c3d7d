"""A pod's status made of what its containers are doing; pure but for the values it is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["init", "sidecar", "app"]
Terminated = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class ContainerState:
    """What is known of one container."""

    name: str
    image: str
    kind: Kind
    waiting: tuple[str, str] = ("ContainerCreating", "")
    running_since: str | None = None
    terminated: Terminated | None = None
    last: Terminated | None = None
    restarts: int = 0
    is_ready: bool = False
    is_started: bool = False
    container_id: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether it has ended well."""
        return self.terminated is not None and self.terminated["exitCode"] == 0

    @property
    def is_through(self) -> bool:
        """Of an init container: whether the next may begin."""
        return self.is_started if self.kind == "sidecar" else self.succeeded

    def to_json(self) -> dict[str, Any]:
        """As in `containerStatuses`."""
        if self.terminated is not None:
            state: dict[str, Any] = {"terminated": self.terminated}
        elif self.running_since is not None:
            state = {"running": {"startedAt": self.running_since}}
        else:
            reason, message = self.waiting
            state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "ready": self.is_ready or (self.kind == "init" and self.succeeded),
            "started": self.is_started,
            "restartCount": self.restarts,
            "state": state,
            **({"lastState": {"terminated": self.last}} if self.last else {}),
            **({"containerID": self.container_id} if self.container_id else {}),
        }


def phase(states: Sequence[ContainerState], *, is_over: bool) -> str:
    """The pod's phase. `is_over`: nothing of it will run any more."""
    apps = [state for state in states if state.kind == "app"]
    if is_over:
        return "Succeeded" if all(state.succeeded for state in apps) else "Failed"
    if not all(state.is_through for state in states if state.kind != "app"):
        return "Pending"
    if all(state.terminated is None and state.running_since is None and state.last is None for state in apps):
        return "Pending"
    return "Running"


class Conditions:
    """Conditions of one pod, which remember since when they are as they are."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, str]] = {}

    def of(self, states: Sequence[ContainerState], *, phase: str, has_network: bool, now: str) -> list[dict[str, str]]:
        """What a kubelet owns of `status.conditions`."""
        before, with_apps = [s for s in states if s.kind != "app"], [s for s in states if s.kind != "init"]
        is_initialized = all(state.is_through or state.terminated is not None for state in before)
        is_ready = phase == "Running" and all(state.is_ready for state in with_apps)
        reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")
        unready = [state.name for state in with_apps if not state.is_ready]
        message = f"containers with unready status: [{' '.join(unready)}]" if unready else ""
        rows = [
            ("PodReadyToStartContainers", has_network, "", ""),
            ("Initialized", is_initialized, "" if is_initialized else "ContainersNotInitialized", ""),
            ("ContainersReady", is_ready, "" if is_ready else reason, "" if is_ready else message),
            ("Ready", is_ready, "" if is_ready else reason, "" if is_ready else message),
            ("PodScheduled", True, "", ""),
        ]
        return [self._row(kind, value, reason, message, now) for kind, value, reason, message in rows]

    def _row(self, kind: str, value: bool, reason: str, message: str, now: str) -> dict[str, str]:
        known = self._since.get(kind)
        if known is None or known[0] != str(value):
            known = self._since[kind] = (str(value), now)
        row = {"type": kind, "status": known[0], "lastTransitionTime": known[1]}
        return row | {key: text for key, text in (("reason", reason), ("message", message)) if text}


def terminated(
    *, status: int, started_at: str, finished_at: str, container_id: str, message: str = "", reason: str = ""
) -> Terminated:
    """How a container ended. `status` as a parent sees it: negative for a signal."""
    code = 128 - status if status < 0 else status
    found: Terminated = {
        "exitCode": code,
        "reason": reason or ("Completed" if code == 0 else "Error"),
        "startedAt": started_at,
        "finishedAt": finished_at,
        "containerID": container_id,
    }
    return found | ({"message": message} if message else {})


UNKNOWN: Mapping[str, Any] = {
    "exitCode": 137,
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was terminated",
}
"""Of a container that nobody has seen end: its node went down, or it never began."""
