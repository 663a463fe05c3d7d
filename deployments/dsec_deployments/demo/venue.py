"""Where the demo plays, and what that changes: its pace and the size of its cast, never what is claimed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsec_deployments.installation import SIMULATED


@dataclass(frozen=True, slots=True, kw_only=True)
class Venue:
    """One place to play."""

    folder: str
    """Below .dsec: the demo's own home."""
    members: str
    """What a gang's members are there, for the title."""
    kubernetes: str | None = None
    small_gangs: int = 20
    """Of two teams together."""
    pace: float = 1.0
    """How many times longer the gangs that give way work: those that follow need that long to start."""
    patience: float = 1.0
    """How many times longer anything may take before a scene gives up waiting."""
    reference_seconds: float | None = None
    """What the reference runs take there on two cores that do nothing else, if that is known."""
    job_variables: Mapping[str, Any] = field(default_factory=dict)
    """What the gangs that give way ask for besides."""
    longest_seconds: int = 240


THIS_MACHINE = Venue(folder="demo", members="processes of this machine", reference_seconds=14.0)
KUBERNETES = Venue(
    folder="demo-kube",
    members="pods on a real Kubernetes control plane",
    kubernetes=SIMULATED,
    small_gangs=4,
    pace=2.5,
    patience=4.0,
    job_variables={"grace": "60s"},
    longest_seconds=480,
)
"""A pod begins with an interpreter that has imported nothing: seconds of processor time for each."""
