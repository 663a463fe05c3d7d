"""The Node object as a kubelet writes it; pure."""

from typing import Any

from tests.fakes.kubelet.node_spec import NodeSpec

_CONDITIONS = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)
VERSION = "v1.36.3"


def registration(spec: NodeSpec) -> dict[str, Any]:
    """What is created."""
    labels = {
        "kubernetes.io/hostname": spec.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": {**labels, **spec.labels}},
        "spec": {},
    }


def status(spec: NodeSpec, *, address: str, port: int, boot_id: str, is_well: bool, now: str) -> dict[str, Any]:
    """What its status is patched with. `now` is an RFC 3339 time.

    The host name is not among the addresses: the API server would look for it in a DNS that is not there.
    """
    capacity = {"cpu": str(spec.cpus), "memory": f"{spec.memory_gib}Gi", "pods": str(spec.pods)}
    capacity |= {"ephemeral-storage": "100Gi"}
    capacity |= {resource: str(len(uuids)) for resource, uuids in spec.devices.items()}
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": conditions(is_well=is_well, now=now),
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "machineID": spec.name,
            "systemUUID": spec.name,
            "bootID": boot_id,
            "kernelVersion": "process",
            "osImage": "processes of one machine",
            "containerRuntimeVersion": "process://1",
            "kubeletVersion": VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }


def conditions(*, is_well: bool, now: str) -> list[dict[str, str]]:
    """All of a node's conditions as the kubelet reports them."""
    ready = ("True", "KubeletReady", "kubelet is posting ready status")
    if not is_well:
        ready = ("False", "KubeletNotReady", "container runtime is down")
    rows = [(kind, "False", reason, message) for kind, reason, message in _CONDITIONS] + [("Ready", *ready)]
    return [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind, value, reason, message in rows
    ]


def unknown(*, now: str) -> list[dict[str, str]]:
    """The conditions that the node controller writes when a kubelet has been silent for too long."""
    return [
        {
            "type": kind,
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind in [*(row[0] for row in _CONDITIONS), "Ready"]
    ]
