"""Nodes with GPUs that only the API server knows: KWOK keeps them Ready and runs their pods in name only."""

from collections.abc import Mapping
from typing import Any

GPU_MODEL_LABEL = "nvidia.com/gpu.product"
GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
ZONE, BLOCK, RACK = "topology.kubernetes.io/zone", "dsec.io/block", "dsec.io/rack"


def manifest(
    name: str,
    *,
    gpus: int = 8,
    model: str = "NVIDIA-H100-80GB-HBM3",
    memory_mib: int = 81_559,
    cpus: int = 128,
    memory_gib: int = 1024,
    topology: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    resources: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """One node object. `topology` maps label keys (`ZONE`, `BLOCK`, `RACK`) to values; `resources` are further ones."""
    capacity = {"cpu": str(cpus), "memory": f"{memory_gib}Gi", "pods": "250", "nvidia.com/gpu": str(gpus)}
    capacity |= {name: str(amount) for name, amount in (resources or {}).items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                GPU_MODEL_LABEL: model,
                GPU_MEMORY_LABEL: str(memory_mib),
                **(topology or {}),
                **(labels or {}),
            },
        },
        "spec": {},
        "status": {"capacity": capacity, "allocatable": capacity, "phase": "Running"},
    }
