"""Where the ranks of one `gang.run` meet: all arrive, or all learn why not.

Pure: who is told what is the caller's business (`reply`), so nothing here waits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Reply = Callable[[dict[str, Any]], None]


@dataclass
class Rendezvous:
    """All meetings of one run of `world_size` ranks, by name. A name may be used again once all have met there."""

    world_size: int
    _meetings: dict[str, dict[int, tuple[Any, Reply]]] = field(default_factory=dict)
    _broken: str | None = None

    def arrive(self, name: str, rank: int, value: Any, reply: Reply) -> None:
        """`rank` waits at `name`; the last to arrive answers all: any of booleans, the largest of numbers."""
        if self._broken is not None:
            reply({"ok": False, "error": self._broken})
            return
        meeting = self._meetings.setdefault(name, {})
        if rank in meeting:
            reply({"ok": False, "error": f"rank {rank} already waits at {name!r}; give each meeting its own name"})
            return
        meeting[rank] = (value, reply)
        if len(meeting) < self.world_size:
            return
        del self._meetings[name]
        values = [given for given, _ in meeting.values() if given is not None]
        agreed = (any(values) if all(isinstance(v, bool) for v in values) else max(values)) if values else None
        for _, answer in meeting.values():
            answer({"ok": True, "value": agreed})

    def leave(self, rank: int, why: str) -> None:
        """`rank` will never come: everybody who waits, or arrives later, is told so instead of waiting forever."""
        self._broken = self._broken or f"rank {rank} {why}; the ranks cannot meet any more"
        for meeting in self._meetings.values():
            for _, reply in meeting.values():
                reply({"ok": False, "error": self._broken})
        self._meetings.clear()
