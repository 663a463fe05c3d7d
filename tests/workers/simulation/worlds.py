"""Small clusters and traces in one line each, for tests of the simulation."""

from collections.abc import Sequence

from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Policy
from dsec_workers.simulation.clusters import parse_cluster
from dsec_workers.simulation.jobs import Job, Trace, arrange
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.policies import baseline, production
from dsec_workers.simulation.recording import Recording
from dsec_workers.simulation.replay import Failure, Replay

SCHEDULERS = ("dsec", "fifo", "easy", "kueue-like", "tiresias-like", "tiresias-like-our-levels")


def job(id: str, at: float, duration: float, shape: str, *, team: str = "a", **fields: object) -> Job:
    """`shape` is "8" (one node) or "2x8"."""
    nodes, _, devices = shape.rpartition("x")
    request = GangRequest(nodes=int(nodes or 1), devices_per_node=int(devices), **fields)  # type: ignore[arg-type]
    return Job(id=id, team=team, request=request, submit_at=at, duration=duration)


def trace(*jobs: Job) -> Trace:
    return Trace(name="test", jobs=arrange(jobs))


def team(name: str, nominal: int) -> Team:
    return Team(name=name, nominal_devices=nominal)


def replayed(
    what: Trace,
    cluster: str,
    scheduler: str,
    *,
    teams: Sequence[Team] = (team("a", 1000), team("b", 1000)),
    overheads: Overheads = Overheads(),
    failures: Sequence[Failure] = (),
    tick: float = 1.0,
    policy: Policy = Policy(),
) -> Recording:
    nodes = parse_cluster(cluster)
    known = {t.name: t for t in teams}
    chosen = (
        production(nodes, known, policy, overheads=overheads) if scheduler == "dsec" else baseline(scheduler, known)
    )
    return Replay(what, nodes, chosen, overheads=overheads, failures=failures, tick=tick).run()


def starts(recording: Recording) -> dict[str, float | None]:
    return {id: outcome.first_start for id, outcome in recording.outcomes.items()}


def ends(recording: Recording) -> dict[str, float | None]:
    return {id: outcome.finished_at for id, outcome in recording.outcomes.items()}
