"""The Prefect server that `dsec up` starts when none is configured: SQLite, in the home, on this machine only."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError, ServerUnreachable
from dsec_deployments import background, prefect_command
from dsec_deployments.background import Background
from dsec_deployments.prefect_api import PrefectApi

HOST = "127.0.0.1"
START_SECONDS = 120.0
"""A new database takes about 25 s of migrations on two cores."""


class PortInUse(DsecError):
    """Something else listens on the port that the Prefect server should have."""

    exit_code = 3


def local_url(port: int) -> str:
    """The API of a server that `dsec up` started."""
    return f"http://{HOST}:{port}/api"


def environment(home: Path, *, port: int) -> dict[str, str]:
    """The settings of our own server, on top of the machine's environment.

    The pages of the UI ask the API at an address that the server tells them; it is not derived from `--port`.
    """
    data = home / "prefect"
    return {
        "PREFECT_HOME": str(data),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{data / 'prefect.db'}",
        "PREFECT_SERVER_UI_API_URL": local_url(port),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_CLI_PROMPT": "false",
        "DO_NOT_TRACK": "1",
    }


def start(home: Path, *, port: int, clock: Clock, progress: Callable[[str], None] = lambda _: None) -> Background:
    """Start the server and wait until it answers.

    Raises `PortInUse` when the port is taken, `ServerUnreachable` when the server does not come up.
    """
    if _taken(port):
        raise PortInUse(
            f"port {port} is in use by another program; choose another with `dsec up --port {port + 1}`, "
            "or point PREFECT_API_URL to the Prefect server you mean"
        )
    (home / "prefect").mkdir(parents=True, exist_ok=True)
    command = prefect_command.command("server", "start", "--host", HOST, "--port", str(port))
    log = home / "logs" / "prefect-server.log"
    server = background.start(home, "prefect-server", command, environment=environment(home, port=port), log=log)
    api = PrefectApi(local_url(port))
    began = clock.monotonic()
    while not api.answers():
        waited = clock.monotonic() - began
        if not background.alive(server):
            raise ServerUnreachable(f"the Prefect server ended while starting; its last words are in {log}")
        if waited > START_SECONDS:
            background.stop(server, grace_seconds=5.0, clock=clock)
            raise ServerUnreachable(f"the Prefect server did not answer within {START_SECONDS:.0f} s; see {log}")
        progress(f"Prefect server on port {port}: starting, {waited:.0f} s (the first time about 25 s)")
        time.sleep(0.25)
    return server


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
