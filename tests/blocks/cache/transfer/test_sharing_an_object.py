"""Many connections share one large object from its first byte to its last."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from dsec_blocks.cache.origins.connections import Connections
from dsec_blocks.cache.origins.web import WebOrigin
from dsec_blocks.cache.transfer import TransferSettings, fetch
from dsec_blocks.cache.transfer.engine import Fetch
from dsec_blocks.cache.transfer.journal import Journal
from dsec_blocks.cache.transfer.sizing import connections_for
from tests.fixtures.misbehaving import Exchange, MisbehavingOrigin

MIB = 2**20


class Near(WebOrigin):
    """A machine that does much else makes every server look far, and ranges long."""

    def latency_seconds(self) -> float | None:
        return 0.001


def test_the_first_connection_does_not_take_half_of_the_object(
    origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    """It did, up to 64 MiB, because no other was at it yet; behind a limit for each connection all waited for it."""
    origin_server.files["large.bin"] = os.urandom(48 * MIB)
    origin = Near()
    settings = TransferSettings(connections=8, patience_seconds=10)
    (got,) = fetch(origin.list(f"{origin_server.url}/large.bin"), origin=origin, staging=tmp_path, settings=settings)
    assert got.path.read_bytes() == origin_server.files["large.bin"]
    longest = max(end - start for start, end in origin_server.asked["large.bin"])
    assert longest <= 8 * MIB


class SeemedFar(WebOrigin):
    """Its first answers came late, because the machine was busy; the next ones say that it is near."""

    later = False

    def latency_seconds(self) -> float | None:
        return 0.001 if self.later else 0.05


def test_a_store_that_seemed_far_on_a_busy_machine_does_not_keep_its_32_connections(
    origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    origin_server.files["large.bin"] = os.urandom(160 * MIB)
    origin = SeemedFar()
    most = []

    def progress(count: int) -> None:
        most.append(work.connections)
        origin.later = len(most) > 8

    work = fetch_of(origin, origin_server, tmp_path, progress)
    work.run()
    assert work.landed["large.bin"].path.read_bytes() == origin_server.files["large.bin"]
    assert max(most) == 32
    assert work.connections == connections_for(0.001, TransferSettings()) < 32


def test_one_slow_answer_does_not_make_a_store_far() -> None:
    known = Connections()
    known._took(0.05)
    assert known.latency_seconds is None
    for seconds in (0.04, 0.002, 0.06):
        known._took(seconds)
    assert known.latency_seconds == 0.002


def test_the_first_question_is_asked_alone_and_for_little(origin_server: MisbehavingOrigin, tmp_path: Path) -> None:
    """Four connections that began at once delayed each other's first answers, and a near store seemed far."""
    origin_server.files["large.bin"] = os.urandom(48 * MIB)
    seen: list[int] = []

    def progress(count: int) -> None:
        seen.append(work.connections)

    work = fetch_of(WebOrigin(), origin_server, tmp_path, progress)
    work.run()
    assert work.landed["large.bin"].path.read_bytes() == origin_server.files["large.bin"]
    assert seen[0] == 1 and max(seen) > 1
    assert origin_server.asked["large.bin"][0] == (0, 64 * 1024)


def test_a_first_answer_that_does_not_come_holds_the_others_up_only_for_a_moment(
    origin_server: MisbehavingOrigin, tmp_path: Path
) -> None:
    origin_server.files["large.bin"] = os.urandom(24 * MIB)
    others_came, in_time = threading.Event(), []

    def late(exchange: Exchange) -> bool:
        if exchange.command == "GET" and exchange.asked == (0, 64 * 1024):
            in_time.append(others_came.wait(15))
        return False

    origin_server.tricks.append(late)
    origin = WebOrigin()
    (got,) = fetch(
        origin.list(f"{origin_server.url}/large.bin"), origin=origin, staging=tmp_path,
        progress=lambda count: others_came.set(),
    )  # fmt: skip
    assert in_time == [True]
    assert got.path.read_bytes() == origin_server.files["large.bin"]


def fetch_of(origin: WebOrigin, server: MisbehavingOrigin, staging: Path, progress: Callable[[int], None]) -> Fetch:
    """A fetch of the large file that has not begun, to look into while it runs."""
    return Fetch(
        origin.list(f"{server.url}/large.bin"), origin=origin, staging=staging,
        journal=Journal(staging, boot_id="this"), settings=TransferSettings(), progress=progress,
        cancelled=lambda: False,
    )  # fmt: skip
