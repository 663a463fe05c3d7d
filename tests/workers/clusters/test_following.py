"""A gang that is followed is followed to its end, whatever could not be read in between."""

import asyncio
from pathlib import Path

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_workers.clusters.local import LocalCluster
from dsec_workers.clusters.local.layout import GangDirectory, to_bytes
from dsec_workers.clusters.protocol import GangKey, Gone


async def test_a_gangs_end_was_never_told_after_its_record_could_not_be_read_once(tmp_path: Path) -> None:
    key = GangKey("run", 1)
    directory = GangDirectory.of(tmp_path, key)
    directory.supervisor.mkdir(parents=True)  # so that reading it fails, as with no descriptor left
    directory.order.write_text("{}")
    cluster = LocalCluster(home=tmp_path, nodes=(), clock=SystemClock())
    told = asyncio.ensure_future(anext(aiter(cluster.events())))
    try:
        while not cluster._followed:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # its follower has made its first step
        process = processes.ProcessId(pid=1, start_time=0, boot_id=processes.identify(1).boot_id)
        directory.supervisor.rmdir()
        record = {"process": process.to_json(), "channel": str(tmp_path / "nobody.sock")}
        directory.supervisor.write_bytes(to_bytes(record))
        gone = {"type": "gone", "seq": 1, "at": 1.0, "flow_exit": 0, "member_exits": {}, "lost_member": None,
                "notice": None, "last_commit_step": None, "start_failure": None}  # fmt: skip
        directory.gone.write_bytes(to_bytes({"events": [gone]}))
        async with asyncio.timeout(20):
            assert isinstance(await told, Gone)
    finally:
        told.cancel()
        await cluster.close()
