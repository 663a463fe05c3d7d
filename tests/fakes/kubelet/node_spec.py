"""What a process node is: said once by whoever asks for it, as JSON on the stand-in's control socket."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from dsec_deployments.control_plane.simulated_nodes import GPU_MEMORY_LABEL, GPU_MODEL_LABEL

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node. `devices` maps resource names to the UUIDs behind them."""

    name: str
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    cpus: int = 64
    memory_gib: int = 512
    pods: int = 110
    image_env: Mapping[str, str] = field(default_factory=dict)
    """What every image's own environment is taken to be."""
    entrypoints: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What an image's entry point is taken to be, by the image's name."""
    host_paths: Sequence[str] = ()
    """Prefixes of hostPath volumes that are this machine's own, the same on every node."""
    restart_backoff_seconds: float = 1.0
    heartbeat_seconds: float = 10.0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "NodeSpec":
        """The node that `to_json` wrote."""
        return cls(**fields)


def gpu_node(
    name: str,
    *,
    gpus: int = 8,
    model: str = "NVIDIA-H100-80GB-HBM3",
    memory_mib: int = 81_559,
    mig: Mapping[str, int] | None = None,
    topology: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **rest: Any,
) -> NodeSpec:
    """A node with `gpus` cards and the labels of GPU feature discovery.

    `mig` maps profiles ("1g.10gb") to how many slices of them there are beside the whole cards; `topology` maps label
    keys to values; `rest` are further fields of `NodeSpec`.
    """
    devices = {GPU: [f"GPU-{uuid5(NAMESPACE_DNS, f'{name}/{index}')}" for index in range(gpus)]}
    for profile, count in (mig or {}).items():
        slices = [f"MIG-{uuid5(NAMESPACE_DNS, f'{name}/{profile}/{index}')}" for index in range(count)]
        devices[f"nvidia.com/mig-{profile}"] = slices
    found = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(gpus),
        GPU_MODEL_LABEL: model,
        GPU_MEMORY_LABEL: str(memory_mib),
    }
    return NodeSpec(name=name, devices=devices, labels={**found, **(topology or {}), **(labels or {})}, **rest)
