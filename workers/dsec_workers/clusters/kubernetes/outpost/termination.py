"""The gang's last word as a pod can leave it: the termination message, at most 4 KiB of JSON. Pure but for `leave`.

Whoever asks later, with every process and disk of the pod gone, reads from it what `gone.json` says on one machine.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import files

MOST_BYTES = 4096
_VERSION = 1
_ONCE = ("started", "progressed", "snapshotting", "committed", "devices_released", "gone")
_LONGEST_TEXT = 1200


def encode(records: Sequence[Mapping[str, Any]]) -> bytes:
    """The events that a successor needs: the newest of each kind, and of those what fits."""
    newest = {record["type"]: dict(record) for record in records if record["type"] in _ONCE}
    events = [newest[kind] for kind in _ONCE if kind in newest]
    for shorten in (_as_it_is, _without_metrics, _without_good_exits, _without_long_texts):
        events = [shorten(event) for event in events]
        text = json.dumps({"dsec": _VERSION, "events": events}, separators=(",", ":")).encode()
        if len(text) <= MOST_BYTES:
            return text
    gone = [event for event in events if event["type"] == "gone"]
    return json.dumps({"dsec": _VERSION, "events": [{**e, "member_exits": {}} for e in gone]}).encode()[:MOST_BYTES]


def decode(message: str) -> list[dict[str, Any]]:
    """The events that `encode` wrote; none when the message is anything else (a log's tail, say)."""
    try:
        found = json.loads(message)
    except ValueError:
        return []
    if not isinstance(found, dict) or found.get("dsec") != _VERSION:
        return []
    return list(found["events"])


def leave(path: Path | None, content: bytes) -> None:
    """Leave the message where the kubelet looks for it; a pod whose disk is full ends as it would without."""
    if path is None:
        return
    try:
        files.append(path, content, at="outpost.termination.write")
    except OSError as error:
        print(f"the last word could not be left at {path}: {error}", flush=True)


def _as_it_is(event: dict[str, Any]) -> dict[str, Any]:
    return event


def _without_metrics(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "metrics": {}} if "metrics" in event else event


def _without_good_exits(event: dict[str, Any]) -> dict[str, Any]:
    exits = {member: code for member, code in (event.get("member_exits") or {}).items() if code}
    return {**event, "member_exits": dict(list(exits.items())[:64])} if "member_exits" in event else event


def _without_long_texts(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:_LONGEST_TEXT] if isinstance(value, str) else value for name, value in event.items()}
