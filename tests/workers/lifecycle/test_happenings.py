"""What the cluster says is written down: one gang's events in their order, several gangs' together."""

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from dsec_blocks.ledger import Ledger
from dsec_blocks.model.errors import LedgerError
from dsec_blocks.model.gangs import GangState
from dsec_workers.clusters.protocol import ClusterEvent, Committed, DevicesReleased, GangKey, Gone, Progressed, Started
from dsec_workers.lifecycle import happenings
from dsec_workers.lifecycle.term import Term
from dsec_workers.lifecycle.together import Together
from tests.blocks.ledger.gangs import POOL, known, launching
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger

NAMES = [f"run-{n}" for n in range(8)]


class Site:
    """As much of a term as writing events needs, on a real ledger in which gangs are being launched."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        fence = ledger.take_lease(POOL, "leader", seen=None)
        assert fence is not None
        for n, name in enumerate(NAMES):
            launching(ledger, fence, name, f"n1/{n}")
        self.told: list[tuple[str, str | None]] = []
        self.forgotten: list[GangKey] = []
        self.events: list[ClusterEvent] = []
        self.writes = 0
        metrics = SimpleNamespace(started=lambda *_: None, handed_over=lambda _: None)
        self.term: Any = SimpleNamespace(
            pool=POOL, fence=fence, ledger=ledger, cluster=self, metrics=metrics, decisions=[], admitted_at={},
            noticed_at={}, notices={}, stopped_for={}, leaving_soon=set(), ring=lambda: None,
            decide=lambda stage, _, *, run_id, **__: self.told.append((stage, run_id)),
            forget_attempt=self.forgotten.append,
        )  # fmt: skip
        for name in ("read", "write", "mark", "gang", "_named", "_mark", "_logged"):
            setattr(self.term, name, partial(getattr(Term, name), self.term))
        self.term.marks, self.term.asked = Together(self.term._mark), Together(self.term._named)
        ledger.observe = self._count

    def _count(self, kind: str, _seconds: float, _failed: bool) -> None:
        self.writes += kind == "write"

    async def stream(self) -> AsyncIterator[ClusterEvent]:
        for event in self.events:
            yield event

    async def follow(self, events: Sequence[ClusterEvent]) -> None:
        self.term.cluster = SimpleNamespace(events=self.stream, forget=self.forget)
        self.events, self.writes = list(events), 0
        await happenings.follow(self.term)

    async def forget(self, key: GangKey) -> None:
        self.forgotten.append(key)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    ledger = new_ledger(tmp_path / "ledger.db", clock=ManualClock())
    yield Site(ledger)
    ledger.close()


def _life(name: str) -> list[ClusterEvent]:
    key = GangKey(name, 1)
    return [
        Started(key=key, at=20.0),
        Progressed(key=key, at=21.0, step=1),
        Committed(key=key, at=22.0, step=1, seconds=0.5),
        Progressed(key=key, at=23.0, step=2),
        DevicesReleased(key=key, at=24.0),
        Gone(key=key, at=25.0, flow_exit=0),
    ]


async def test_each_gangs_events_are_applied_in_their_order(site: Site) -> None:
    lives = [_life(name) for name in NAMES]
    await site.follow([life[turn] for turn in range(len(lives[0])) for life in lives])
    for name in NAMES:
        gang = known(site.ledger, name)
        assert (gang.state, gang.launched_at, gang.reported_step, gang.last_step) == (GangState.LEAVING, 20.0, 2, 1)
        assert gang.outcome["kind"] == "exited"
    assert site.ledger.holders(POOL) == []
    assert sorted(site.told) == [("start", name) for name in NAMES]
    assert site.ledger.check() == []


async def test_starts_that_come_together_are_written_together(site: Site) -> None:
    await site.follow([_life(name)[0] for name in NAMES])
    assert {known(site.ledger, name).state for name in NAMES} == {GangState.RUNNING}
    assert site.writes < len(NAMES), "one transaction each"


async def test_an_event_that_cannot_be_written_ends_the_following(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEC_FAULT", "ledger.leave:error")
    with anyio.fail_after(30), pytest.raises(LedgerError, match=r"injected at ledger\.leave"):
        await site.follow([event for name in NAMES for event in _life(name)])
    assert {known(site.ledger, name).state for name in NAMES} <= {GangState.RUNNING, GangState.LAUNCHING}
    monkeypatch.delenv("DSEC_FAULT")
    await site.follow([event for name in NAMES for event in _life(name)])
    assert {known(site.ledger, name).state for name in NAMES} == {GangState.LEAVING}
