"""An incident file as a trace: the pool goes on from that instant, with nobody new.

Nobody knows how long the gangs would have run. Their max_runtime stands in, else what runs like them had lasted, else
the policy's expected runtime, doubled by those that have outlived it; services are taken to stay for a week. An elastic
gang that runs smaller than it asked for would end then at the size it has.
"""

from collections.abc import Sequence

from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.shadow import expected_runtime
from dsec_workers.scheduling.snapshot import QueuedGang, RunningGang, Snapshot
from dsec_workers.simulation.beginning import beginning, on_their_way
from dsec_workers.simulation.jobs import Job, Trace, arrange
from dsec_workers.simulation.speedup import relative_speed

STAY_SECONDS = 7 * 86400.0


def read(name: str, snapshot: Snapshot, queue: Sequence[QueuedGang], policy: Policy, *, now: float) -> Trace:
    """The running where they are, the waiting as they came. Times count from the first submit that is known.

    The pool's own scheduler goes on with all that it knew: shadows, usage, orders, what each gang has had and suffered.
    """
    coming = on_their_way(snapshot)
    attempts_to_come = {gang.run_id for gang in coming.values()}
    present = [gang for gang in snapshot.gangs() if gang.run_id not in attempts_to_come]
    first = min([now, *(gang.submitted_at for gang in present), *(gang.eligible_at for gang in queue)])
    jobs = [_job(gang, gang.submitted_at - first, gang.started_at, policy, now) for gang in present]
    jobs += [_job(gang, gang.eligible_at - first, now, policy, now) for gang in queue]
    remarks = ["durations are expected runtimes: an incident tells none"]
    frozen = snapshot.frozen
    if frozen.everything or frozen.teams or frozen.nodes:
        remarks.append("what is frozen or drained stays so, and who waits for it does not finish")
    return Trace(
        name=name,
        jobs=arrange(jobs),
        teams=dict(snapshot.teams),
        remarks=tuple(remarks),
        placed={gang.run_id: gang.placement for gang in present},
        leaving=frozenset(gang.run_id for gang in present if gang.evicting),
        promised=frozenset(gang.run_id for gang in present if gang.promised),
        coming={run_id: gang.placement for run_id, gang in coming.items()},
        beginning=beginning(snapshot, queue, zero=first),
        begins_at=now - first,
    )


def _job(gang: RunningGang | QueuedGang, submit_at: float, since: float, policy: Policy, now: float) -> Job:
    elapsed = now - since
    lasts = expected_runtime(gang.request, policy, elapsed, learned=gang.expected_seconds)
    left = min(max(1.0, lasts - elapsed), STAY_SECONDS)
    if isinstance(gang, RunningGang):
        left *= relative_speed(len(gang.placement.members), gang.request.nodes)
    return Job(id=gang.run_id, team=gang.team, request=gang.request, submit_at=max(0.0, submit_at), duration=left)
