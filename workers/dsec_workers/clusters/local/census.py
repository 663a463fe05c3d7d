"""Who descends from this supervisor: what must be stopped, and what may still use a device.

As a subreaper the supervisor inherits every orphan of its gang, so that a child which called setsid, or whose parent
is dead, is still found below it.
"""

import os
from collections.abc import Collection
from pathlib import Path

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.processes import Sighting


def strays(*, spared: Collection[int], uploader: Collection[int]) -> list[Sighting]:
    """All descendants of this process, but the `spared` ones and the uploader with its own."""
    if not uploader and _are_all(spared):
        return []
    table = list(processes.processes())
    left_out = {*spared, *uploader, *(row.pid for row in processes.descendants(uploader, among=table))}
    return [row for row in processes.descendants([os.getpid()], among=table) if row.pid not in left_out]


def device_strays(
    *, spared: Collection[int], flow: Collection[int], uploader: Collection[int], locks: Path
) -> list[Sighting]:
    """What ranks left behind outside of their groups: it was started as a rank, or holds a device's lock."""
    held = f"{locks.resolve()}{os.sep}"
    left_out = {*spared, *flow, *(row.pid for row in (processes.descendants(flow) if flow else ()))}
    return [
        row
        for row in strays(spared=left_out, uploader=uploader)
        if "RANK" in processes.environment(row.pid)
        or any(path.startswith(held) for path in processes.open_files(row.pid).values())
    ]


def _are_all(known: Collection[int]) -> bool:
    """Whether no descendant of this process lives but `known` children of it, which have none themselves.

    Nearly every gang ends so, and the whole process table costs milliseconds. Both lists are exact here: only this
    process takes children off its own, and of the others' a single entry is enough to have the table read.
    """
    own = processes.children(os.getpid())
    return own is not None and own.issubset(known) and all(processes.children(pid) == set() for pid in own)
