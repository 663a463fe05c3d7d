"""Who may ask the agent: whoever can read its token, a file of this user's that nobody else may read."""

import hmac
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.gateways import files, processes
from dsec_blocks.gateways.processes import ProcessId

TOKEN, ADDRESS = "token", "address.json"


def own_token(directory: Path) -> str:
    """The agent's token; made the first time, kept over restarts."""
    found = read_token(directory)
    if found:
        return found
    token = secrets.token_urlsafe(32)
    files.write(directory / TOKEN, token.encode(), at="agent.token.write", mode=0o600)
    return token


def read_token(directory: Path) -> str:
    """The token, empty if there is none (or it is not this user's to read)."""
    try:
        return (directory / TOKEN).read_text().strip()
    except OSError:
        return ""


def is_right(header: str | None, token: str) -> bool:
    """Whether an Authorization header carries the token."""
    scheme, _, given = (header or "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an agent listens, and which process it is."""

    url: str
    process: ProcessId
    nodes: tuple[str, ...]


def write_address(directory: Path, address: Address) -> None:
    """Say where the agent listens, for as long as this boot lasts."""
    told = {"url": address.url, "process": address.process.to_json(), "nodes": list(address.nodes)}
    files.announce(directory / ADDRESS, json.dumps(told).encode(), at="agent.address.write")


def living_address(directory: Path) -> Address | None:
    """Where the agent of this home listens; None if none runs."""
    try:
        told = json.loads((directory / ADDRESS).read_bytes())
        found = Address(url=str(told["url"]), process=ProcessId.from_json(told["process"]), nodes=tuple(told["nodes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if processes.is_alive(found.process) else None
