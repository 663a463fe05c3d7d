"""What really ran on a pool, from its own ledger: replayed, it tells what another policy would have made of it.

A run's work is the time that its attempts held devices, from admission to end, as the decision log tells. Runs that
never held any, and those whose entries the log no longer has, are left out.
"""

from collections.abc import Iterable, Mapping, Sequence

from dsec_blocks.ledger.decisions import Decision
from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.teams import Team
from dsec_workers.simulation.jobs import Job, Trace, arrange


def read(
    name: str, gangs: Sequence[Gang], decisions: Iterable[Decision], teams: Mapping[str, Team], *, now: float
) -> Trace:
    """The gangs of a pool as a trace; those that still run are taken to end `now`."""
    held: dict[str, float] = {}
    since: dict[str, float] = {}
    for entry in sorted(decisions, key=lambda entry: entry.at):
        if entry.run_id is None:
            continue
        if entry.stage == "plan" and entry.outcome == "admit":
            since.setdefault(entry.run_id, entry.at)
        elif entry.stage == "end" and entry.run_id in since:
            held[entry.run_id] = held.get(entry.run_id, 0.0) + entry.at - since.pop(entry.run_id)
    for run_id, at in since.items():
        held[run_id] = held.get(run_id, 0.0) + max(0.0, now - at)
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
