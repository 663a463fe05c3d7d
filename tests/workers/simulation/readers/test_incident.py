"""An incident goes on from where it was captured."""

from dsec_workers.scheduling import Policy
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.production import Production
from dsec_workers.simulation.readers import incident
from dsec_workers.simulation.replay import Replay
from tests.workers.scheduling.world import NOW, cluster, node, running, team, waiting


def test_an_incident_goes_on_with_its_queue_in_its_order() -> None:
    snapshot = cluster(
        [node("n1", 8)],
        [running("r", "n1/0-7", ran=1000.0, max_runtime_seconds=1600.0)],
        teams=[team("a", 8)],
    )
    queue = [waiting("young", "8", waited=10.0, max_runtime_seconds=50.0),
             waiting("old", "8", waited=5000.0, max_runtime_seconds=50.0)]  # fmt: skip
    trace = incident.read("incident", snapshot, queue, Policy(), now=NOW)
    assert trace.begins_at == 5000.0
    assert {job.id: job.submit_at for job in trace.jobs} == {"r": 4000.0, "young": 4990.0, "old": 0.0}
    nodes = snapshot.fleet.source
    found = Replay(trace, nodes, Production(nodes, trace.teams, Policy(), overheads=Overheads())).run()
    starts = {id: outcome.first_start for id, outcome in found.outcomes.items()}
    assert starts == {"r": 5000.0, "old": 5600.0, "young": 5650.0}
