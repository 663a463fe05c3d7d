"""What the eviction policy remembers between processes: a snapshot, and a journal of what happened since.

Whoever uses a bundle appends one line; whoever evicts folds the lines into the policy, and now and then writes the
result down. All of it is opinion: what is resident is read from the disk, and a lost line costs a hit at most.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from dsec_blocks.cache.eviction import EvictionPolicy, open_policy
from dsec_blocks.cache.store.layout import Layout, names
from dsec_blocks.gateways import files

FOLD_BYTES = 1024 * 1024
"""A journal longer than this is folded into the snapshot even if nothing is evicted."""


def note_hit(layout: Layout, bundle: str) -> None:
    """A resident bundle was acquired."""
    _append(layout, {"hit": bundle})


def note_admission(layout: Layout, bundle: str, *, size_bytes: int, refetch_seconds: float) -> None:
    """A bundle has become resident."""
    _append(layout, {"admit": bundle, "bytes": size_bytes, "seconds": round(refetch_seconds, 3)})


@dataclass(slots=True)
class Recalled:
    """A policy, and what its next snapshot has to say about the journal."""

    policy: EvictionPolicy
    name: str
    folded: list[str]
    number: int


def recall(layout: Layout, name: str, *, capacity_bytes: int, resident: Mapping[str, int]) -> Recalled:
    """The policy as of now, agreeing with what is resident (bundle → bytes). Writes nothing."""
    told = _snapshot(layout)
    policy = open_policy(name, capacity_bytes=capacity_bytes)
    if told.get("policy") == name:
        try:
            policy.restore(told["state"])
        except (KeyError, TypeError, ValueError):
            policy = open_policy(name, capacity_bytes=capacity_bytes)
    old = _old_journals(layout)
    already = told.get("folded", ())
    for journal in [*(name for name in old if name not in already), "journal"]:
        for event in _lines(layout.policy / journal):
            _apply(policy, event)
    for bundle in [bundle for bundle in policy.resident() if bundle not in resident]:
        policy.forget(bundle)
    for bundle, size_bytes in resident.items():
        if bundle not in policy:
            policy.admit(bundle, size_bytes=size_bytes, refetch_seconds=refetch_guess(size_bytes, objects=1))
    return Recalled(policy, name, old, int(told.get("number", 0)))


def turn_journal(layout: Layout) -> None:
    """Begin a new journal, so that the old one can be folded into a snapshot."""
    number = max((_number(old) for old in _old_journals(layout)), default=int(_snapshot(layout).get("number", 0))) + 1
    with suppress(FileNotFoundError):  # nothing has happened, or another process does the same
        files.rename(
            layout.policy / "journal", layout.policy / f"old-{number}-{uuid4().hex[:8]}", at="cache.policy.turn"
        )


def remember(layout: Layout, recalled: Recalled) -> None:
    """Write the policy's state down, and drop the journals that are in it."""
    number = max((_number(old) for old in recalled.folded), default=recalled.number)
    state = {
        "policy": recalled.name,
        "state": recalled.policy.to_json(),
        "folded": recalled.folded,
        "number": number,
    }
    files.write(layout.policy / "state.json", json.dumps(state).encode(), at="cache.policy.write")
    for old in recalled.folded:
        files.remove(layout.policy / old, at="cache.policy.forget")


def is_long(layout: Layout) -> bool:
    """Whether the journal should be folded although nothing has to be evicted."""
    with suppress(FileNotFoundError):
        return (layout.policy / "journal").stat().st_size >= FOLD_BYTES
    return False


def refetch_guess(size_bytes: int, *, objects: int) -> float:
    """Seconds of a refetch where none was measured: 50 ms an object, 1.25 GB/s."""
    return objects * 0.05 + size_bytes / 1.25e9


def _append(layout: Layout, event: Mapping[str, Any]) -> None:
    files.append(layout.policy / "journal", json.dumps(event).encode() + b"\n", at="cache.policy.note")


def _apply(policy: EvictionPolicy, event: Mapping[str, Any]) -> None:
    if "hit" in event:
        policy.hit(event["hit"])
    elif "admit" in event and event["admit"] not in policy:
        policy.miss(event["admit"])
        policy.admit(event["admit"], size_bytes=int(event["bytes"]), refetch_seconds=float(event["seconds"]))


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    for line in raw.splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # a line cut short by the death of the machine
            continue
        if isinstance(event, dict):
            yield event


def _old_journals(layout: Layout) -> list[str]:
    return sorted((name for name in names(layout.policy) if name.startswith("old-")), key=_number)


def _number(journal: str) -> int:
    return int(journal.split("-")[1])


def _snapshot(layout: Layout) -> dict[str, Any]:
    try:
        told = json.loads((layout.policy / "state.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
