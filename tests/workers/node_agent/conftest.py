"""A real agent: the process that `dsec agent` is, in a home of its own."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec_blocks.cache import Cache, CacheSettings, open_cache
from dsec_blocks.cache.settings import from_environment
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_workers.node_agent.access import living_address
from dsec_workers.node_agent.client import AgentClient
from tests.fixtures.forking import ForkedModule, start_module
from tests.fixtures.ledgers import migrated
from tests.fixtures.misbehaving import origin_server

__all__ = ["origin_server"]

SECONDS = 60.0
NODE = "node-0"


def eventually(reached: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


class Home:
    """One home, whose agent comes and goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process: subprocess.Popen[bytes] | ForkedModule | None = None
        self.ledger_url = migrated(path / "ledger.db")

    def start(self, *options: str, until_it_answers: bool = True, **environment: str) -> "Home":
        self.path.mkdir(exist_ok=True)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DSEC_"))}
        words = ["agent", "--node", NODE, *options]
        self.process = start_module(
            "dsec_deployments.cli",
            words,
            env={**clean, "DSEC_HOME": str(self.path), **environment},
            log=self.path / "agent.log",
        )
        if until_it_answers:
            eventually(self._answers, f"the agent answers: {self.log}")
        return self

    @property
    def client(self) -> AgentClient:
        client = AgentClient.of(self.path)
        assert client is not None, self.log
        return client

    @property
    def log(self) -> str:
        return (self.path / "agent.log").read_text()

    @property
    def cache(self) -> Cache:
        return open_cache(from_environment(directory=self.path / "cache"))

    def ledger(self) -> Ledger:
        return Ledger.open(self.ledger_url, clock=SystemClock())

    def ended(self, id: str) -> dict[str, object]:
        """The prefetch once it has ended."""
        client = self.client
        eventually(lambda: client.show(id)["state"] not in ("queued", "fetching"), f"{id} ends: {self.log}")
        return client.show(id)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(SECONDS)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(SECONDS)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        found = living_address(self.path / "agent")
        return found is not None and found.process.pid == self.process.pid


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home without an agent yet."""
    home = Home(tmp_path / "home")
    yield home
    home.end()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """A cache without an agent."""
    return open_cache(CacheSettings(directory=tmp_path / "cache"))
