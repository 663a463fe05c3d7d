"""What is said on a gang's channel, by a side that is killed, or is not who it should be, in the middle of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters import talk
from dsec_workers.clusters.local import LocalCluster
from dsec_workers.clusters.local import talk as local
from dsec_workers.clusters.local.layout import GangDirectory, to_bytes
from dsec_workers.clusters.protocol import GangKey, Gone
from dsec_workers.clusters.talk import NotThere

RECORD = b'{"seq": 1, "type": "started", "at": 1.0}\n'


@asynccontextmanager
async def saying(path: Path, words: bytes) -> AsyncIterator[None]:
    """A gang's channel on which the other side says this to whatever it is asked, and is gone."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(words)
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, str(path)):
        yield


async def call(path: Path) -> object:
    return await local.call(path, {"op": "status"}, timeout_seconds=20)


async def follow(path: Path) -> object:
    return [record async for record in local.follow(path, 0)]


@pytest.mark.parametrize("ask", [call, follow])
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (b'{"ok": true, "eve', NotThere),
        (b"[1, 2]\n", ClusterError),
        (b"HTTP/1.1 400 Bad Request\r\n", ClusterError),
    ],
    ids=["cut off", "no message", "somebody else"],
)
async def test_what_is_no_whole_message_is_an_error_of_the_cluster(
    tmp_path: Path, ask: Callable[[Path], Awaitable[object]], words: bytes, error: type[ClusterError]
) -> None:
    async with saying(tmp_path / "s", words):
        with pytest.raises(error):
            await ask(tmp_path / "s")


async def test_a_message_longer_than_any_is_no_end_of_whoever_hears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "LIMIT_BYTES", 1000)
    async with saying(tmp_path / "s", b'{"seq": 1, "why": "' + b"x" * 5000 + b'"}\n'):
        for ask in (call, follow):
            with pytest.raises(ClusterError, match="in one message"):
                await ask(tmp_path / "s")


async def test_a_gang_whose_supervisor_was_killed_in_the_middle_of_a_record_is_followed_to_its_end(
    tmp_path: Path,
) -> None:
    key = GangKey("run", 1)
    directory = GangDirectory.of(tmp_path, key)
    directory.path.mkdir(parents=True)
    directory.order.write_text("{}")
    process = processes.ProcessId(pid=1, start_time=0, boot_id=processes.identify(1).boot_id)
    channel = tmp_path / "s"
    directory.supervisor.write_bytes(to_bytes({"process": process.to_json(), "channel": str(channel)}))
    cluster = LocalCluster(home=tmp_path, nodes=(), clock=SystemClock())
    told = aiter(cluster.events())
    try:
        async with asyncio.timeout(20), saying(channel, RECORD + b'{"seq": 2, "type": "comm'):
            cluster._follow(key, directory, after=0)
            assert type(await anext(told)).__name__ == "Started"
            gone = {"type": "gone", "seq": 3, "at": 1.0, "flow_exit": None, "member_exits": {}, "lost_member": 0,
                    "notice": None, "last_commit_step": None, "start_failure": None}  # fmt: skip
            directory.gone.write_bytes(to_bytes({"events": [gone]}))
            while not isinstance(await anext(told), Gone):
                pass
    finally:
        await cluster.close()
