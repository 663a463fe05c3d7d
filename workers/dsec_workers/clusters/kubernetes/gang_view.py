"""One gang as the adapter sees it: its pods, what its supervisor has told, and what follows from both.

Nothing here waits or asks; `following` does. What was told may be repeated, what is seen may be late: a gang is over
when none of its pods can still be running, and only then are its devices anybody else's.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dsec_blocks.model.exits import meaning
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_workers.clusters.kubernetes.api import Object
from dsec_workers.clusters.kubernetes.outpost.termination import decode
from dsec_workers.clusters.kubernetes.pod_fate import Fate, fate_of
from dsec_workers.clusters.local.happenings import event_of
from dsec_workers.clusters.protocol import ClusterEvent, GangKey, Started

_LAST = ("devices_released", "gone")
"""What the supervisor says when its processes have ended; on Kubernetes the pods have the last word on that."""


@dataclass(kw_only=True)
class GangView:
    """`members` is where each was put; `pods` what was last seen of each, `lost` of those that are there no more."""

    key: GangKey
    namespace: str
    members: dict[int, MemberPlacement]
    count: int
    created_at: float
    start_timeout_seconds: float
    grace_seconds: float
    jobs: list[Object] = field(default_factory=list)
    pods: dict[int, Object] = field(default_factory=dict)
    lost: dict[int, Object] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    cards: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """On each node the cards that its kubelet chose, as far as its supervisor has told."""
    failure: str | None = None
    """Why we gave its start up."""
    notice: str | None = None
    is_stopped: bool = False
    are_jobs_deleted: bool = False
    fresh: list[dict[str, Any]] = field(default_factory=list)
    """Records that were not passed on yet."""
    is_over: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _fates: dict[int, tuple[Object, Fate]] = field(default_factory=dict)
    """By member, what follows from its pod as that was seen last."""

    @property
    def placement(self) -> Placement:
        """Where the gang is, as far as its Jobs say."""
        return Placement(members=tuple(self.members[index] for index in sorted(self.members)))

    @property
    def is_started(self) -> bool:
        """Whether user code was let through the barrier."""
        return any(record["type"] == "started" for record in self.records)

    @property
    def is_calm(self) -> bool:
        """Whether it runs whole and nobody wants it to leave: then only its pods and its supervisor bring news."""
        if self.is_stopped or self.failure is not None or len(self.pods) < self.count or not self.is_started:
            return False
        return all(fate.is_running and not fate.is_leaving for fate in self.fates().values())

    @property
    def last_seq(self) -> int:
        """The number of the newest record."""
        return max((record["seq"] for record in self.records), default=0)

    def see(self, member: int, pod: Object | None, *, before: Object | None) -> None:
        """A pod of this gang came, changed or went."""
        if pod is not None:
            self.pods[member] = pod
            self.lost.pop(member, None)
        else:
            gone = self.pods.pop(member, None) or before
            if gone is not None:
                self.lost[member] = gone
        self.changed.set()

    def fate(self, member: int) -> Fate | None:
        """What is known of a member's pod; None when none was ever seen."""
        pod = self.pods.get(member) or self.lost.get(member)
        if pod is None:
            return None
        known = self._fates.get(member)
        if known is None or known[0] is not pod:
            known = self._fates[member] = (pod, fate_of(pod))
        return known[1]

    def fates(self) -> dict[int, Fate]:
        """Of all members whose pods were seen."""
        found = {index: self.fate(index) for index in range(self.count)}
        return {index: fate for index, fate in found.items() if fate is not None}

    def hear(self, record: Mapping[str, Any]) -> None:
        """The supervisor tells something; repetitions are no news."""
        if record["seq"] <= self.last_seq:
            return
        taken = {name: value for name, value in record.items() if name not in ("id", "ok", "done")}
        if taken["type"] == "progressed":  # told often, and only the newest is worth keeping
            self.records = [each for each in self.records if each["type"] != "progressed"]
        self.records.append(taken)
        self.fresh.append(taken)

    def news(self) -> list[ClusterEvent]:
        """Events not passed on yet, but those that the pods must confirm first."""
        fresh, self.fresh = self.fresh, []
        return self._events_of(fresh)

    def known(self) -> list[ClusterEvent]:
        """All that was told so far, for a successor; none of it is told again as news."""
        self.fresh = []
        return self._events_of(self.records)

    def _events_of(self, records: Sequence[Mapping[str, Any]]) -> list[ClusterEvent]:
        events = [event_of(self.key, record) for record in records if record["type"] not in _LAST]
        return [replace(each, cards=dict(self.cards)) if isinstance(each, Started) else each for each in events]

    def hear_status(self, answer: Mapping[str, Any]) -> None:
        """The supervisor answers what the gang is now: which cards its members have (an older one does not say)."""
        self.cards = {self._node(int(index)): tuple(cards) for index, cards in (answer.get("cards") or {}).items()}

    def settled(self, *, is_fenced: Callable[[str], bool]) -> bool:
        """Whether no container of the gang can be running any more."""
        for index in range(self.count):
            fate = self.fate(index)
            if fate is None:
                if not self.are_jobs_deleted:
                    return False
            elif not fate.is_over and (index in self.pods or not is_fenced(fate.node)):
                return False
        return True

    def fallen(self) -> dict[int, str]:
        """Members that have ended, or whose pods have vanished, each with why, as far as the platform knows."""
        fallen = {}
        for index, fate in self.fates().items():
            if fate.platform is not None and (fate.is_over or index in self.lost):
                fallen[index] = fate.platform
            elif fate.has_ended:
                code = "" if fate.exit_code is None else f" (exit code {fate.exit_code})"
                means = "" if fate.exit_code is None else meaning(fate.exit_code)
                fallen[index] = f"its pod ended{code}{means and f': {means}'}"
            elif index in self.lost:
                fallen[index] = "its pod was deleted"
        return fallen

    def ending(self, now: float) -> list[ClusterEvent]:
        """The last events: what the supervisor said at the end, or what follows from how the pods ended."""
        leader = self.fate(0)
        for record in decode(leader.message) if leader is not None else ():
            self.hear(record)
        events = self.news()
        said: dict[str, Any] = next((dict(r) for r in reversed(self.records) if r["type"] == "gone"), {})
        for field_name in ("seq", "type"):
            said.pop(field_name, None)
        gone = {**self._from_pods(), **said, "at": said.get("at", now)}
        if self.failure is not None and not self.is_started:
            # Its pods were told to stop by us: what they say of that is not why the gang left.
            gone.update(start_failure=said.get("start_failure") or self.failure, notice=self.notice)
        if gone.get("notice") is not None and self.notice is None:
            gone["reason"] = self._told_by()
        released = next((r["at"] for r in self.records if r["type"] == "devices_released"), now)
        events.append(event_of(self.key, {"type": "devices_released", "at": max(released, gone["at"])}))
        events.append(event_of(self.key, {"type": "gone", **gone}))
        return events

    def _from_pods(self) -> dict[str, Any]:
        fates, fallen = self.fates(), self.fallen()
        commits = [record["step"] for record in self.records if record["type"] == "committed"]
        by_platform = [index for index, fate in fates.items() if fate.platform is not None]
        failed = [index for index, fate in fates.items() if fate.exit_code not in (0, None)]
        lost = next(iter([*by_platform, *failed, *fallen, 0]))
        start_failure = None
        if not self.is_started:
            why = fallen.get(lost) or "its pod did not start"
            start_failure = f"member {lost} on {self._node(lost)}: {why}"
        return {
            "flow_exit": None,
            "member_exits": {i: f.exit_code for i, f in fates.items() if f.exit_code is not None},
            "lost_member": lost,
            "notice": self.notice,
            "last_commit_step": commits[-1] if commits else None,
            "start_failure": start_failure,
        }

    def _told_by(self) -> str | None:
        """Who asked the gang to leave when it was not us, as far as its pods say: a drain, a taint, kube-scheduler."""
        leaving = [(index, fate) for index, fate in self.fates().items() if fate.is_leaving]
        for index, fate in sorted(leaving, key=lambda each: each[1].platform is None):
            who = fate.platform or "somebody deleted it"
            return f"Its pod on {self._node(index)} was told to leave ({who})"
        return None

    def _node(self, member: int) -> str:
        placed = self.members.get(member)
        return placed.node if placed is not None else "an unknown node"
