"""The end of a gang that could not write it down itself, and of what was kept of one that is over."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import files
from dsec_blocks.model.clock import Clock
from dsec_workers.clusters.local.happenings import read_events
from dsec_workers.clusters.local.layout import GangDirectory, read_json, supervisor_of, to_bytes
from dsec_workers.clusters.local.leftovers import kill_leftovers
from dsec_workers.clusters.protocol import GangKey


async def bury(key: GangKey, directory: GangDirectory, record: Mapping[str, Any], *, clock: Clock) -> None:
    """The supervisor is dead: kill what is left and write down the end that it could not."""
    if directory.gone.exists():
        return
    process = supervisor_of(record)
    while kill_leftovers(key, directory=directory.path, supervisor=process):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    if directory.gone.exists():
        return
    events = read_events(directory.events)
    sequence = max((event["seq"] for event in events), default=0)
    commits = [event["step"] for event in events if event["type"] == "committed"]
    notice = read_json(directory.notice)
    started = any(event["type"] == "started" for event in events)
    rest: list[dict[str, Any]] = [
        {
            "type": "gone",
            "flow_exit": None,
            "member_exits": {},
            "lost_member": 0,
            "notice": notice["kind"] if notice else None,
            "last_commit_step": commits[-1] if commits else None,
            "start_failure": None if started else "the gang's supervisor died before the start barrier opened",
        }
    ]
    if not any(event["type"] == "devices_released" for event in events):
        rest.insert(0, {"type": "devices_released"})
    for number, event in enumerate(rest, start=sequence + 1):
        events.append({"seq": number, "at": clock.now(), **event})
    files.write(directory.gone, to_bytes({"events": events}), at="cluster.gone.write")
    files.remove(Path(record["channel"]), at="cluster.channel.remove")


def clear_away(directory: GangDirectory) -> None:
    """Remove all but the logs. May be called again after an `OSError`."""
    for scratch in (directory.spool, directory.runs, directory.work):
        files.remove_tree(scratch, at="cluster.forget.scratch")
    records = (directory.supervisor, directory.events, directory.notice, directory.stop_before, directory.gone)
    half_written = directory.path.glob(".*.json.*")
    # The order goes last, without it the directory is only logs; but a supervisor that told its end and has not
    # written it yet may do so in between. From here on it removes that itself.
    for path in (*records, *half_written, directory.lock, directory.order, directory.gone):
        files.remove(path, at="cluster.forget.record")
