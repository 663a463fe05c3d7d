"""What happens to a gang, as it is told to workers: numbered records, each of which one `ClusterEvent`.

Progress is told often and only the newest is news, so one record of it is kept and replaced; everything else stays
and is written to the gang's directory too, so that a gang whose supervisor is gone can still tell how far it got.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import files
from dsec_blocks.model.clock import Clock
from dsec_workers.clusters.local.loop import Loop, Timer
from dsec_workers.clusters.protocol import (
    ClusterEvent,
    Committed,
    DevicesReleased,
    GangKey,
    Gone,
    Progressed,
    Snapshotting,
    Started,
)

PROGRESS_INTERVAL_SECONDS = 0.5

_TYPES: Mapping[str, type[ClusterEvent]] = {
    "started": Started,
    "progressed": Progressed,
    "snapshotting": Snapshotting,
    "committed": Committed,
    "devices_released": DevicesReleased,
    "gone": Gone,
}


def event_of(key: GangKey, record: Mapping[str, Any]) -> ClusterEvent:
    """The event that one record tells of."""
    fields = {k: v for k, v in record.items() if k not in ("seq", "type", "id", "ok", "done")}
    if "member_exits" in fields:  # JSON has text keys only
        fields["member_exits"] = {int(member): code for member, code in fields["member_exits"].items()}
    return _TYPES[record["type"]](key=key, **fields)


def read_events(path: Path) -> list[dict[str, Any]]:
    """The records in `events.jsonl`; a last line cut off by a crash is left out."""
    records = []
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    for line in filter(None, lines):
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


class Happenings:
    """The supervisor's record of its gang, and those who follow it."""

    def __init__(self, *, loop: Loop, clock: Clock, path: Path) -> None:
        self._loop = loop
        self._clock = clock
        self._path = path
        self._records: list[dict[str, Any]] = []
        self._sequence = 0
        self._followers: list[Callable[[dict[str, Any]], None]] = []
        self._progress: dict[str, Any] = {}
        self._progress_timer: Timer | None = None
        self._progress_told_at: float | None = None

    @property
    def records(self) -> list[dict[str, Any]]:
        """All that has happened, of progress only the newest."""
        return list(self._records)

    def has(self, kind: str) -> bool:
        """Whether an event of this type has happened."""
        return any(record["type"] == kind for record in self._records)

    def last(self, kind: str) -> dict[str, Any] | None:
        """The newest event of a type."""
        return next((record for record in reversed(self._records) if record["type"] == kind), None)

    def tell(self, kind: str, **fields: Any) -> None:
        """Record an event now, and tell whoever follows."""
        self._tell_progress()
        record = self._append(kind, fields)
        try:
            files.append(self._path, json.dumps(record).encode() + b"\n", at="supervisor.event.append")
        except OSError as error:  # a full disk must not end a gang that could go on
            print(f"{kind} could not be written to {self._path}: {error}", flush=True)
        self._publish(record)

    def progress(self, **fields: Any) -> None:
        """Note progress; it is told at once when the last word is old enough, else together with what follows."""
        metrics = {**self._progress.get("metrics", {}), **(fields.get("metrics") or {})}
        self._progress.update({name: value for name, value in fields.items() if value is not None})
        self._progress["metrics"] = metrics
        now = self._clock.monotonic()
        told = self._progress_told_at
        if told is None or now - told >= PROGRESS_INTERVAL_SECONDS or "has_on_evict" in self._progress:
            self._tell_progress()
        elif self._progress_timer is None:
            self._progress_timer = self._loop.after(PROGRESS_INTERVAL_SECONDS - (now - told), self._tell_progress)

    def follow(self, after: int, receive: Callable[[dict[str, Any]], None]) -> None:
        """Have `receive` called with every record after number `after`, past and future."""
        for record in self._records:
            if record["seq"] > after:
                receive(record)
        self._followers.append(receive)

    def unfollow(self, receive: Callable[[dict[str, Any]], None]) -> None:
        """Stop calling `receive`."""
        self._followers = [follower for follower in self._followers if follower is not receive]

    def _tell_progress(self) -> None:
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None
        if not self._progress:
            return
        fields, self._progress = self._progress, {}
        before = self.last("progressed")
        if before is not None:
            self._records.remove(before)
            fields = {"step": before.get("step"), "has_on_evict": before.get("has_on_evict"), **fields}
            fields["metrics"] = {**before.get("metrics", {}), **fields.get("metrics", {})}
        self._progress_told_at = self._clock.monotonic()
        self._publish(self._append("progressed", fields))

    def _append(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        self._sequence += 1
        record = {"seq": self._sequence, "type": kind, "at": self._clock.now(), **fields}
        self._records.append(record)
        return record

    def _publish(self, record: dict[str, Any]) -> None:
        for follower in list(self._followers):
            follower(record)
