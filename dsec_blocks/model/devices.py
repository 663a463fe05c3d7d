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
    """One physical (or declared) GPU, or a slice of one, known by its UUID on every node and after every reboot."""

    uuid: str
    node: str
    index: int
    model: str
    memory_bytes: int
    nvlink_domain: str = ""
    """Devices with the same non-empty domain reach each other over NVLink; it may span nodes."""
    numa_node: int = 0
    health: Health = Health.HEALTHY
    slice_of: str = ""
    """The UUID of the card that this is a slice of. A card with slices is given to nobody as a whole."""
    profile: str = ""
    """What kind of slice: "3g.40gb", or "1/4" of a card's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with devices.

    `topology` is its path from the widest level down, without the node itself: zone, block, rack; zone, rack; or rack.
    """

    name: str
    devices: tuple[Device, ...] = ()
    topology: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    schedulable: bool = True
    cpus: float | None = None
    """Processors that gangs may use; None: not known, and not counted."""
    memory_bytes: int | None = None
    """The same of main memory."""
