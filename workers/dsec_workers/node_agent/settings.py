"""What an agent is told by its environment and its command line: which nodes it speaks for, and who may ask it."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.gateways.home import home_of, ledger_url_of
from dsec_blocks.model.errors import InvalidRequest

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """One agent's settings."""

    home: Path
    ledger_url: str
    nodes: tuple[str, ...]
    """The pool's names for this machine. Declared nodes of one machine have one disk, so one cache and one agent."""
    host: str = LOOPBACK
    port: int = 0
    """0: any free one; the agent writes down which."""
    metrics_are_open: bool = False
    """Whether /metrics needs no token."""
    fetches_at_once: int = 2
    report_seconds: float = 5.0
    poll_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Raises `InvalidRequest`."""
        if not self.nodes or not all(self.nodes):
            raise InvalidRequest("--node: an agent speaks for at least one node of the pool; name it")
        if not 0 <= self.port <= 65535:
            raise InvalidRequest(f"--port: {self.port} is no port; give 1 to 65535, or 0 for any free one")

    @property
    def directory(self) -> Path:
        """Where the agent keeps its token, its address, and what it was asked to fetch."""
        return self.home / "agent"

    @classmethod
    def from_environment(
        cls,
        *,
        nodes: tuple[str, ...] = (),
        host: str | None = None,
        port: int | None = None,
        metrics_are_open: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> "AgentSettings":
        """Options first, then `DSEC_*`. Raises `InvalidRequest` naming what cannot be read."""
        text = environment.get("DSEC_AGENT_PORT") or "0"
        if port is None and not text.isdigit():
            raise InvalidRequest(f"DSEC_AGENT_PORT: {text!r} is no port")
        return cls(
            home=home_of(environment),
            ledger_url=ledger_url_of(environment),
            nodes=nodes or node_names(environment),
            host=host or environment.get("DSEC_AGENT_HOST") or LOOPBACK,
            port=int(text) if port is None else port,
            metrics_are_open=metrics_are_open or environment.get("DSEC_AGENT_OPEN_METRICS") == "1",
        )


def node_names(environment: Mapping[str, str]) -> tuple[str, ...]:
    """What the pool calls this machine: its declared nodes, the name it was given, or its host name."""
    declared = environment.get("DSEC_NODES") or "0"
    if not declared.isdigit():
        raise InvalidRequest(f"DSEC_NODES: {declared!r} is not a whole number")
    if int(declared):
        return tuple(f"node-{number}" for number in range(int(declared)))
    return (environment.get("DSEC_NODE") or socket.gethostname(),)
