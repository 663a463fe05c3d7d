"""Admission checks, what keeps a run out whatever is free: pauses and run limits of Prefect, and the cluster's owners.

The leader asks both; whoever looks on from outside knows what Prefect says and not what the cluster would, and has to
say so.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_workers.lifecycle.run_limits import Room, RunLimits
from dsec_workers.scheduling.decisions import Admit


@dataclass(frozen=True, kw_only=True)
class AdmissionChecks:
    """Of one work pool, at one instant."""

    pool: str = ""
    is_paused: bool = False
    paused_queues: frozenset[str] = frozenset()
    room: Room = field(default_factory=lambda: Room(limits=RunLimits()))

    def of_team(self, team: str) -> Reason | None:
        """Why no run of the team's queue may be admitted."""
        if self.is_paused:
            return Reason(code=ReasonCode.ADMISSION_FROZEN, text=f"work pool {self.pool} is paused")
        if team in self.paused_queues:
            return Reason(code=ReasonCode.ADMISSION_FROZEN, text=f"work queue {team} is paused")
        return self.room.reason(team)

    def refusals(self, gangs: Iterable[Gang]) -> dict[str, Reason]:
        """By run: why it may not be admitted; runs that may are absent."""
        found: dict[str, Reason] = {}
        of_team: dict[str, Reason | None] = {}
        allowance = self.room.allowance
        if not self.is_paused and not self.paused_queues and self.room.is_unlimited:
            return found
        for gang in gangs:
            team = gang.team
            if team not in of_team:
                of_team[team] = self.of_team(team)
            reason = of_team[team]
            if reason is None and allowance is not None:
                reason = allowance.reason(gang)
            if reason is not None:
                found[gang.run_id] = reason
        return found

    def refused_after(self, admits: Iterable[Admit], gang: Gang, teams: Mapping[str, str]) -> Reason | None:
        """Why the run limits keep `gang` out, although a plan admits it: those admitted before it fill them.

        `teams` are those of the others, by run.
        """
        room = replace(self.room, taken=Counter(self.room.taken))
        for admit in admits:
            team = gang.team if admit.run_id == gang.run_id else teams[admit.run_id]
            reason = room.reason(team)
            if admit.run_id == gang.run_id:
                return reason
            if reason is None:
                room.take(team)
        return None


def checks_as_told(pool: str, told: Mapping[str, Any], gangs: Iterable[Gang]) -> AdmissionChecks:
    """The checks that `{"is_paused", "paused_queues", "limit", "queue_limits"}` describes, beside these gangs."""
    limits = RunLimits(pool=told.get("limit"), queues=dict(told.get("queue_limits") or {}))
    return AdmissionChecks(
        pool=pool,
        is_paused=bool(told.get("is_paused")),
        paused_queues=frozenset(told.get("paused_queues") or ()),
        room=limits.room(gangs),
    )
