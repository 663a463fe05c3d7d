"""What a pod's status says about the member in it. Pure.

Three things must never be mixed up: the user's program failed (its exit code), the platform took the member away
(a kubelet that rejects, a node that shuts down, a preemption), and nobody knows (a node that does not answer).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_REJECTIONS = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "NodeShutdown", "Terminated", "Evicted", "Shutdown",
               "NodeLost", "TopologyAffinityError", "InvalidNodeInfo")  # fmt: skip
"""Beginnings of `status.reason` that say: the kubelet would not, or could not go on; the program is not to blame."""
_STUCK = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
          "CreateContainerError", "RunContainerError")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How far a member's pod has got."""

    phase: str
    node: str
    address: str | None
    is_leaving: bool
    """Somebody deleted it; its containers may still run."""
    is_over: bool
    """Its containers have stopped, by the kubelet's word."""
    exit_code: int | None
    message: str
    """The termination message of the gang's container."""
    platform: str | None
    """Why the platform, and not the program, ended it."""
    stuck: str | None
    """What its start waits for and may never get."""

    @property
    def is_running(self) -> bool:
        """Whether the member's container runs."""
        return self.phase == "Running" and not self.is_over


def fate_of(pod: Mapping[str, Any]) -> Fate:
    """What is known of this pod now."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    phase, reason = status.get("phase") or "Pending", status.get("reason") or ""
    statuses = {each["name"]: each for each in status.get("containerStatuses") or ()}
    first = (spec.get("containers") or [{}])[0].get("name")
    state = (statuses.get(first) or {}).get("state") or {}
    ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    is_over = phase in ("Succeeded", "Failed")
    return Fate(
        phase=phase,
        node=spec.get("nodeName") or "",
        address=status.get("podIP") or None,
        is_leaving=bool(pod["metadata"].get("deletionTimestamp")),
        is_over=is_over,
        exit_code=ended.get("exitCode"),
        message=ended.get("message") or "",
        platform=_platform(status, reason) if is_over or pod["metadata"].get("deletionTimestamp") else None,
        stuck=_stuck(waiting),
    )


def _platform(status: Mapping[str, Any], reason: str) -> str | None:
    said = status.get("message") or ""
    if reason.startswith(_REJECTIONS):
        return f"{reason}: {said}".rstrip(": ")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"{condition.get('reason') or 'DisruptionTarget'}: {condition.get('message') or said}".rstrip(": ")
    return None


def is_rejection(platform: str | None) -> bool:
    """Whether the kubelet refused the pod at its door, so that its node is not to be asked again at once."""
    return platform is not None and platform.startswith(
        ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError", "InvalidNodeInfo")
    )


def _stuck(waiting: Mapping[str, Any]) -> str | None:
    reason = waiting.get("reason") or ""
    if reason not in _STUCK:
        return None
    return f"{reason}: {waiting.get('message') or 'no message'}"
