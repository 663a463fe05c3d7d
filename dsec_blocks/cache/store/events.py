"""What happened in the cache, for whoever counts: a line for each acquire and each eviction.

Starts acquire in processes of their own, so nobody else could add up hits, bytes and seconds. The lines are opinion, as
the policy's memory is: one that cannot be written, or that nobody read before the journal was turned twice, costs a
figure and nothing else.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from dsec_blocks.cache.store.layout import Layout
from dsec_blocks.gateways import files

TURN_BYTES = 2 * 2**20
"""A journal this long is turned; the one before it is dropped."""
Event = Mapping[str, Any]
Position = tuple[int, int]
"""Inode and offset of what was read last."""


def note(layout: Layout, event: Event) -> None:
    """Write one event down, if that is possible."""
    path = layout.policy / "events"
    with suppress(OSError):
        files.append(path, json.dumps(event).encode() + b"\n", at="cache.event.note")
        if path.stat().st_size >= TURN_BYTES:
            files.rename(path, layout.policy / "events.before", at="cache.event.turn")


def events_since(layout: Layout, position: Position | None) -> tuple[list[Event], Position]:
    """What was noted after `position` (None: all there is), and the next position."""
    found: list[Event] = []
    here = position or (0, 0)
    for name in ("events.before", "events"):
        with suppress(FileNotFoundError), (layout.policy / name).open("rb") as journal:
            inode = os.fstat(journal.fileno()).st_ino
            if name == "events.before" and position is not None and inode != position[0]:
                continue  # it was read to its end before
            journal.seek(position[1] if position is not None and inode == position[0] else 0)
            raw = journal.read()
            whole = raw[: raw.rfind(b"\n") + 1]
            found += _lines(whole)
            here = (inode, journal.tell() - len(raw) + len(whole))
    return found, here


def _lines(raw: bytes) -> Iterator[Event]:
    for line in raw.splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event
