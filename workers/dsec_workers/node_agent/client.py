"""How a program on this machine speaks with its agent."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.model.errors import DsecError
from dsec_workers.node_agent.access import Address, living_address, read_token


class AgentError(DsecError):
    """The agent refuses, or does not answer."""


class AgentUnreachable(AgentError):
    """No agent runs here, or it does not answer."""

    exit_code = 3


class AgentClient:
    """The agent of one home. Every call raises `AgentError` with the agent's own sentence."""

    def __init__(self, address: Address, token: str, *, seconds: float = 30.0) -> None:
        self.address = address
        headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=address.url, headers=headers, timeout=seconds, trust_env=False)

    @classmethod
    def of(cls, home: Path, *, seconds: float = 30.0) -> "AgentClient | None":
        """A client of the agent that runs in `home`, None if none runs."""
        address = living_address(home / "agent")
        return None if address is None else cls(address, read_token(home / "agent"), seconds=seconds)

    def prefetch(self, address: BundleAddress) -> dict[str, Any]:
        """Ask for a bundle; the prefetch as it is now."""
        body = {"uri": address.uri, "include": list(address.include), "exclude": list(address.exclude)}
        found: dict[str, Any] = self._ask("POST", "/prefetch", json=body)
        return found

    def show(self, id: str) -> dict[str, Any]:
        """One prefetch."""
        found: dict[str, Any] = self._ask("GET", f"/prefetch/{id}")
        return found

    def cancel(self, id: str) -> dict[str, Any]:
        """Stop one, unless a run wants it."""
        found: dict[str, Any] = self._ask("DELETE", f"/prefetch/{id}")
        return found

    def prefetches(self) -> Sequence[dict[str, Any]]:
        """All that are under way, and the last that ended."""
        found: list[dict[str, Any]] = self._ask("GET", "/prefetch")
        return found

    def inventory(self) -> dict[str, Any]:
        """What the node holds."""
        found: dict[str, Any] = self._ask("GET", "/inventory")
        return found

    def health(self) -> dict[str, Any]:
        """Whether the agent works, and what does not."""
        found: dict[str, Any] = self._ask("GET", "/health", also=(503,))
        return found

    def _ask(self, method: str, path: str, *, json: Any = None, also: Sequence[int] = ()) -> Any:
        try:
            answer = self._client.request(method, path, json=json)
        except httpx.HTTPError as error:
            raise AgentUnreachable(
                f"the agent at {self.address.url} does not answer ({error}); look at DSEC_HOME/logs/agent.log"
            ) from error
        if answer.is_success or answer.status_code in also:
            return answer.json()
        try:
            text = str(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            text = f"HTTP {answer.status_code}"
        raise AgentError(f"the agent at {self.address.url} refuses: {text}")

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def __enter__(self) -> "AgentClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
