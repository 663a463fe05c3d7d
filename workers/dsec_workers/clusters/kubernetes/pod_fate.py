"""What a pod's status says about the member in it. Pure.

Three things must never be mixed up: the user's program failed (its exit code), the platform took the member away
(a kubelet that rejects, a node that shuts down, a preemption), and nobody knows (a node that does not answer).
A pod may have containers that are not the gang's (a sidecar of the template's, an injected proxy): only the gang's own
says how the member fares, and the pod says whether its devices can be anybody else's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dsec_workers.clusters.kubernetes.manifest import ENV_ORDER

_REJECTIONS = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "NodeShutdown", "Terminated", "Evicted", "Shutdown",
               "NodeLost", "TopologyAffinityError", "InvalidNodeInfo")  # fmt: skip
"""Beginnings of `status.reason` that say: the kubelet would not, or could not go on; the program is not to blame."""
_AT_THE_DOOR = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "NodeShutdown", "TopologyAffinityError",
                "InvalidNodeInfo")  # fmt: skip
_STUCK = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
          "CreateContainerError", "RunContainerError", "CrashLoopBackOff", "RegistryUnavailable",
          "ImageInspectError", "SignatureValidationFailed")  # fmt: skip
_CREATING = ("ContainerCreating", "PodInitializing")
"""What a container waits for of which nothing is wrong: with volumes and network there, that is its image."""
_HAS_VOLUMES_AND_NETWORK = "PodReadyToStartContainers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How far a member's pod has got. Times are seconds since the epoch."""

    phase: str
    node: str
    address: str | None
    is_leaving: bool
    """Somebody deleted it; its containers may still run."""
    is_running: bool
    """The gang's container runs."""
    has_ended: bool
    """The gang's container has stopped; what else is in the pod may run on, and holds the devices as long."""
    has_company: bool
    """Containers of the pod that are not the gang's have not stopped."""
    is_over: bool
    """All of its containers have stopped, by the kubelet's word."""
    exit_code: int | None
    message: str
    """The termination message of the gang's container."""
    platform: str | None
    """Why the platform, and not the program, ended it."""
    stuck: str | None
    """What its start waits for and may never get."""
    preparing: str | None
    """What its node does for it that may take long although nothing is wrong: "is pulling the image"."""
    prepared_from: float | None
    """When its volumes and its network were there, so that its containers could come."""
    runs_from: float | None
    """When the gang's container began, if it has."""

    def preparation(self, now: float) -> float:
        """Seconds that went into its images and init containers so far; 0 while it waits for anything else."""
        until = self.runs_from if self.runs_from is not None else now if self.preparing else None
        if until is None or self.prepared_from is None:
            return 0.0
        return max(0.0, until - self.prepared_from)


def fate_of(pod: Mapping[str, Any]) -> Fate:
    """What is known of this pod now."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    phase, reason = status.get("phase") or "Pending", status.get("reason") or ""
    own, states = _own_container(spec), _states(status, "containerStatuses")
    state = states.get(own, {})
    others = [each.get("name") for each in spec.get("containers") or () if each.get("name") != own]
    ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    is_over = phase in ("Succeeded", "Failed")
    is_leaving = bool(pod["metadata"].get("deletionTimestamp"))
    stuck = _stuck(status, waiting) if not is_over and not ended else None
    prepared_from = _prepared_from(status)
    is_creating = not is_over and waiting.get("reason") in _CREATING and prepared_from is not None and not stuck
    return Fate(
        phase=phase,
        node=spec.get("nodeName") or "",
        address=status.get("podIP") or None,
        is_leaving=is_leaving,
        is_running=phase == "Running" and not ended and not waiting,
        has_ended=is_over or bool(ended),
        has_company=not is_over and not all(states.get(name, {}).get("terminated") for name in others),
        is_over=is_over,
        exit_code=ended.get("exitCode"),
        message=ended.get("message") or "",
        platform=_platform(status, reason) if is_over or is_leaving else None,
        stuck=stuck,
        preparing=_preparing(spec, status) if is_creating else None,
        prepared_from=prepared_from,
        runs_from=_time((state.get("running") or {}).get("startedAt")),
    )


def is_rejection(platform: str | None) -> bool:
    """Whether the kubelet refused the pod at its door, so that its node is not to be asked again at once."""
    return platform is not None and platform.startswith(_AT_THE_DOOR)


def _own_container(spec: Mapping[str, Any]) -> str | None:
    """The gang's container: the one with its order. An injected proxy may come before it."""
    containers = spec.get("containers") or [{}]
    if len(containers) > 1:
        for container in containers:
            if any(variable.get("name") == ENV_ORDER for variable in container.get("env") or ()):
                containers = [container]
                break
    name: str | None = containers[0].get("name")
    return name


def _states(status: Mapping[str, Any], kind: str) -> dict[str | None, Mapping[str, Any]]:
    return {each["name"]: each.get("state") or {} for each in status.get(kind) or ()}


def _platform(status: Mapping[str, Any], reason: str) -> str | None:
    said = status.get("message") or ""
    if reason.startswith(_REJECTIONS):
        return f"{reason}: {said}".rstrip(": ")
    for condition in _conditions(status, "DisruptionTarget"):
        if condition.get("status") == "True":
            return f"{condition.get('reason') or 'DisruptionTarget'}: {condition.get('message') or said}".rstrip(": ")
    return None


def _stuck(status: Mapping[str, Any], waiting: Mapping[str, Any]) -> str | None:
    """What the gang's container or, before it, an init container cannot get; or that no node takes the pod."""
    first = [state.get("waiting") or {} for state in _states(status, "initContainerStatuses").values()]
    for each in (waiting, *first):
        reason = each.get("reason") or ""
        if reason in _STUCK:
            return f"{reason}: {each.get('message') or 'no message'}"
    for condition in _conditions(status, "PodScheduled"):
        if condition.get("status") == "False":
            return f"{condition.get('reason') or 'Unschedulable'}: {condition.get('message') or 'no message'}"
    return None


def _preparing(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    sidecars = {each["name"] for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"}
    for name, state in _states(status, "initContainerStatuses").items():
        if state.get("running") and name not in sidecars:
            return f"is running the init container {name}"
    return "is pulling the image"


def _prepared_from(status: Mapping[str, Any]) -> float | None:
    """Clusters before 1.29 do not say when a pod has its volumes and network: then since when it is on its node."""
    for condition in _conditions(status, _HAS_VOLUMES_AND_NETWORK):
        return _time(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None
    return _time(status.get("startTime"))


def _conditions(status: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    return (each for each in status.get("conditions") or () if each.get("type") == kind)


def _time(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
