"""Devices and the nodes they sit in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Health(StrEnum):
    """Whether a device may take new work."""

    HEALTHY = "healthy"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One physical (or declared) GPU, known by its UUID on every node and after every reboot."""

    uuid: str
    node: str
    index: int
    model: str
    memory_bytes: int
    nvlink_domain: str = ""
    """Devices with the same non-empty domain reach each other over NVLink; it may span nodes."""
    numa_node: int = 0
    health: Health = Health.HEALTHY


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with devices. `topology` is its path from the widest level down, without the node itself."""

    name: str
    devices: tuple[Device, ...] = ()
    topology: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    schedulable: bool = True
