"""Point × mode over the agent: wherever it is struck, the next one carries out what was asked for, and nothing is left.

Each case starts two agents, so a day plays one mode of every third point; `make test-long` plays all.
"""

import itertools
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.store import check, sweep
from dsec_blocks.gateways.faults import MODES
from dsec_blocks.ledger.prefetches import PrefetchState
from dsec_blocks.model.names import ENV_FAULT
from dsec_workers.node_agent.client import AgentClient, AgentError
from tests.crash import cases
from tests.workers.node_agent.conftest import NODE, Home, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
STOPPED_SECONDS = 2.0
"""How long a question may take before somebody looks whether the agent was stopped in the middle of it."""
ELSEWHERE: dict[str, str] = {
    "ledger.observed": "a leader writes it, of pods: struck in tests/workers/lifecycle/test_observed_cards.py",
    "agent.prefetch.discard": "only a file that is no prefetch: see below",
    "ledger.prefetch.ask": "whoever asks: a command that is typed again",
    "ledger.prefetch.take_back": "the same",
    "ledger.prefetch.progress": "the same effect as asked_progress, for a gang's order",
}


def points() -> list[str]:
    """What the agent does durably, the ledger included."""
    return [name for name, scope in cases.scopes().items() if scope == "node agent" and name not in ELSEWHERE]


def matrix() -> list[tuple[str, str]]:
    return list(itertools.product(points(), MODES))


def todays() -> list[tuple[str, str]]:
    day = cases.seed()
    return [
        (point, MODES[(day // 3 + place) % len(MODES)])
        for place, point in enumerate(points())
        if (day + place) % 3 == 0
    ]


class Asked:
    """One bundle asked for over HTTP, another in the ledger."""

    def __init__(self, home: Home, root: Path) -> None:
        self.home = home
        self.addresses = []
        for name in ("by-hand", "in-the-ledger"):
            path = root / "origin" / name / "weights.bin"
            path.parent.mkdir(parents=True)
            path.write_bytes(name.encode() * 1000)
            self.addresses.append(BundleAddress.of(str(path.parent)))
        home.path.mkdir(exist_ok=True)
        self.ledger = home.ledger()
        self.name = self.ledger.ask_prefetch([str(self.addresses[1])], [NODE], by="ann")

    def by_hand(self) -> bool:
        """Ask over HTTP; whether an agent took it."""
        with suppress(AgentError):
            client = AgentClient.of(self.home.path, seconds=STOPPED_SECONDS)
            if client is not None:
                client.prefetch(self.addresses[0])
                return True
        return False

    def is_done(self) -> bool:
        return self._arrived() and self.ledger.prefetch_ask(self.name)[0].state is PrefetchState.DONE

    def _arrived(self) -> bool:
        with suppress(AgentError):
            client = AgentClient.of(self.home.path, seconds=STOPPED_SECONDS)
            return client is not None and {"done"} == {one["state"] for one in client.prefetches()}
        return False

    def judge(self) -> None:
        for address in self.addresses:
            with self.home.cache.acquire(address.uri) as lease:
                origin = Path(address.uri.removeprefix("file://")) / "weights.bin"
                assert (lease.path / "weights.bin").read_bytes() == origin.read_bytes()
        store = self.home.cache.store
        sweep(store)
        assert check(store) == []
        assert sweep(store).is_nothing
        assert self.ledger.check() == []
        assert not list((self.home.path / "agent" / "prefetches").glob("*"))
        eventually(lambda: len(self.ledger.inventories()[NODE].bundles) == 2, "both are reported")
        self.ledger.close()


def struck(home: Home, root: Path, point: str, mode: str) -> None:
    asked = Asked(home, root)
    home.start(until_it_answers=False, **{ENV_FAULT: f"{point}:{mode}:1"})
    process = home.process
    assert process is not None

    def is_over() -> bool:
        if _is_stopped(process.pid):
            process.send_signal(signal.SIGCONT)
        asked.by_hand()
        if mode.startswith("kill"):
            return process.poll() is not None
        return process.poll() is not None or asked.is_done()

    eventually(is_over, f"it is struck at {point}, or has done everything: {home.log}")
    assert (process.poll() == -signal.SIGKILL) == mode.startswith("kill"), home.log
    home.end()
    home.start()
    assert asked.by_hand()
    eventually(asked.is_done, f"the next agent does what was asked for: {home.log}")
    asked.judge()


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat[stat.rindex(")") + 2] == "T"
    return False


@pytest.mark.parametrize(("point", "mode"), todays())
def test_matrix(home: Home, tmp_path: Path, point: str, mode: str) -> None:
    struck(home, tmp_path, point, mode)


@pytest.mark.long
@pytest.mark.parametrize(("point", "mode"), [case for case in matrix() if case not in todays()])
def test_rest_of_the_matrix(home: Home, tmp_path: Path, point: str, mode: str) -> None:
    struck(home, tmp_path, point, mode)


def test_what_is_no_prefetch_is_thrown_away_at_the_start(home: Home) -> None:
    folder = home.path / "agent" / "prefetches"
    folder.mkdir(parents=True)
    (folder / "abc.json").write_text('{"uri": ')
    (folder / ".abc.json.0123").write_text('{"uri"')
    (folder / "def.json").write_text('{"uri": "nonsense", "include": [], "exclude": []}')
    home.start()
    assert home.client.prefetches() == [] and os.listdir(folder) == []
