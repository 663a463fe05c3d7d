"""Many connections share one large object from its first byte to its last."""

import os
from pathlib import Path

from dsec_blocks.cache.origins.web import WebOrigin
from dsec_blocks.cache.transfer import TransferSettings, fetch
from tests.fixtures.misbehaving import MisbehavingOrigin

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
