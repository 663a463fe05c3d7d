"""What the ranks print reaches the run's logs, the last words before the end included."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from dsec_blocks.model.errors import LedgerUnreachable
from dsec_blocks.model.gangs import Gang
from dsec_workers.clusters.protocol import GangKey
from dsec_workers.clusters.rank_output import Tail
from dsec_workers.lifecycle import log_shipping
from dsec_workers.lifecycle.log_shipping import _ship_once
from dsec_workers.prefect_api import ApiRefused, ApiUnavailable
from tests.fixtures.clock import ManualClock
from tests.workers.lifecycle.records import gang


class Pool:
    """As much of a term as shipping looks at: the gangs that run, and what was sent."""

    def __init__(self, directory: Path) -> None:
        self.gangs: list[Gang] = [gang()]
        self.sent: list[str] = []
        self.failures: list[Exception] = []
        self.heard = anyio.Event()
        self.logs_of = lambda key: directory if key == GangKey("run", 1) else None
        self.term: Any = SimpleNamespace(
            pool="pool", last_words=set(), ledger=SimpleNamespace(gangs=None), clock=ManualClock(), read=self._read,
            log=SimpleNamespace(debug=lambda *_: None),
            api=SimpleNamespace(logs=self._logs),
        )  # fmt: skip

    async def _read(self, *_: object) -> list[Gang]:
        if self.failures:
            raise self.failures.pop()
        return self.gangs

    async def _logs(self, entries: list[dict[str, Any]]) -> None:
        if self.failures:
            raise self.failures.pop()
        self.sent += [entry["message"] for entry in entries]
        self.heard.set()


async def test_what_a_rank_prints_last_is_shipped_after_its_gang_has_left(tmp_path: Path) -> None:
    pool, tail, log = Pool(tmp_path), Tail(), tmp_path / "rank-0.log"
    log.write_text("first\nhalf a li")
    await _ship_once(pool.term, tail, pool.logs_of)
    assert pool.sent == ["first"]
    log.write_text("first\nhalf a line\nRuntimeError: out of memory")
    pool.gangs = []
    pool.term.last_words.add(GangKey("run", 1))
    await _ship_once(pool.term, tail, pool.logs_of)
    assert pool.sent == ["first", "half a line", "RuntimeError: out of memory"]
    await _ship_once(pool.term, tail, pool.logs_of)
    assert len(pool.sent) == 3


async def test_a_gang_that_came_and_went_between_two_looks_is_heard(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    (tmp_path / "rank-0.log").write_text("rank 0 of 1\n")
    pool.gangs = []
    pool.term.last_words.add(GangKey("run", 1))
    await _ship_once(pool.term, Tail(), pool.logs_of)
    assert pool.sent == ["rank 0 of 1"] and not pool.term.last_words


@pytest.mark.parametrize(
    "failure",
    [LedgerUnreachable("away"), ApiUnavailable("away"), ApiRefused("no", status=422), OSError("EIO")],
    ids=repr,
)
async def test_a_worker_ended_when_its_ledger_was_away_while_it_shipped_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(log_shipping, "SHIP_SECONDS", 0.0)
    pool = Pool(tmp_path)
    (tmp_path / "rank-0.log").write_text("rank 0 of 1\n")
    pool.failures = [failure]
    async with anyio.create_task_group() as term:
        term.start_soon(log_shipping.ship, pool.term, pool.logs_of)
        with anyio.fail_after(20):
            await pool.heard.wait()
        term.cancel_scope.cancel()
    assert pool.sent == ["rank 0 of 1"]
