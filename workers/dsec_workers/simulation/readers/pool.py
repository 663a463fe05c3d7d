"""What really ran on a pool, from its own ledger: replayed, it tells what another policy would have made of it.

A run's work is the time that its attempts held devices, from admission (or from when it went on elsewhere, or at
another size) to end, as the decision log tells. Time at a smaller size than an elastic run asked for counts for that
part of it, by device-seconds: the ledger knows no other law. Runs that never held any device, and those whose entries
the log no longer has, are left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dsec_blocks.ledger.decisions import Decision
from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.teams import Team
from dsec_workers.simulation.jobs import Job, Trace, arrange
from dsec_workers.simulation.speedup import relative_speed

GOES_ON = ("move", "shrink", "grow")
"""What the plan has of a run that leaves to go on at once."""


@dataclass(frozen=True, slots=True)
class _Stay:
    since: float
    members: int

    def work(self, until: float, full: int) -> float:
        """Seconds of work by then, as of the full size."""
        return max(0.0, until - self.since) * relative_speed(self.members, full)


def read(
    name: str, gangs: Sequence[Gang], decisions: Iterable[Decision], teams: Mapping[str, Team], *, now: float
) -> Trace:
    """The gangs of a pool as a trace; those that still run are taken to end `now`."""
    full = {gang.run_id: gang.request.nodes for gang in gangs}
    held: dict[str, float] = {}
    present: dict[str, _Stay] = {}
    told: dict[str, int] = {}
    between: dict[str, _Stay] = {}
    for entry in sorted(decisions, key=lambda entry: entry.at):
        id, what = entry.run_id, (entry.stage, entry.outcome)
        if id is None or id not in full:
            continue
        if what == ("plan", "admit"):
            between.pop(id, None)
            present.setdefault(id, _Stay(entry.at, _members(entry, full[id])))
        elif entry.stage == "plan" and entry.outcome in GOES_ON:
            told[id] = _members(entry, full[id])
        elif entry.stage == "end" and id in present:
            held[id] = held.get(id, 0.0) + present.pop(id).work(entry.at, full[id])
            if entry.outcome == "requeued" and id in told:
                between[id] = _Stay(entry.at, told[id])
            told.pop(id, None)
        elif entry.stage == "launch" and id in between:
            present[id] = between.pop(id)
    for id, stay in present.items():
        held[id] = held.get(id, 0.0) + stay.work(now, full[id])
    ran = [gang for gang in gangs if gang.run_id in held]
    first = min((gang.eligible_at for gang in ran), default=0.0)
    jobs = [
        Job(
            id=gang.run_id,
            team=gang.team,
            request=gang.request,
            submit_at=gang.eligible_at - first,
            duration=held[gang.run_id],
        )
        for gang in ran
    ]
    left_out = len(gangs) - len(ran)
    remarks = (f"{left_out:,} runs never held a device and are left out",) if left_out else ()
    return Trace(name=name, jobs=arrange(jobs), teams=teams, remarks=remarks)


def _members(entry: Decision, full: int) -> int:
    """How many members that decision gave the run; all, where the log does not say."""
    return len(entry.detail.get("placement") or ()) or full
