"""An incident goes on from where it was captured."""

from collections.abc import Sequence
from typing import Any

import pytest

from dsec_workers.scheduling import Policy, QueuedGang, Snapshot
from dsec_workers.scheduling.decisions import Shadow
from dsec_workers.scheduling.snapshot import Frozen
from dsec_workers.scheduling.withheld import Withheld
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.policies import baseline, production
from dsec_workers.simulation.production import Production
from dsec_workers.simulation.readers import incident
from dsec_workers.simulation.recording import Recording
from dsec_workers.simulation.replay import Replay
from tests.workers.scheduling.world import NOW, cluster, node, running, team, waiting
from tests.workers.simulation.worlds import SCHEDULERS


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


BEGAN = 10_000.0
"""Seconds of the trace at which the incidents below were captured: somebody in each came that long before."""


def _gone_on(
    snapshot: Snapshot, queue: Sequence[QueuedGang], policy: Policy = Policy(), scheduler: str = "dsec"
) -> Recording:
    """What follows an incident."""
    trace = incident.read("incident", snapshot, [*queue, waiting("first", "1", waited=BEGAN, tags=("first",))], policy,
                          now=NOW)  # fmt: skip
    nodes, cost = snapshot.fleet.source, Overheads(checkpoint_seconds=10.0, restart_seconds=30.0)
    chosen = (
        production(nodes, trace.teams, policy, overheads=cost, beginning=trace.beginning)
        if scheduler == "dsec"
        else baseline(scheduler, trace.teams)
    )
    return Replay(trace, nodes, chosen, overheads=cost).run()


def _starts(found: Recording) -> dict[str, Any]:
    """First start since the capture, in seconds."""
    return {
        id: None if outcome.first_start is None else outcome.first_start - BEGAN
        for id, outcome in found.outcomes.items()
        if id != "first"
    }


SIDE = node("side", 1)
"""Where `first` runs."""


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_who_was_leaving_leaves_and_who_was_promised_its_devices_begins_then(scheduler: str) -> None:
    snapshot = cluster(
        [node("n1", 8), SIDE],
        [
            running("victim", "n1/0-7", evicting=True, evicting_for="urgent", max_runtime_seconds=7200.0),
            running("urgent", "n1/0-7", ran=0.0, promised=True, max_runtime_seconds=100.0),
        ],
    )
    found = _gone_on(snapshot, [], scheduler=scheduler)
    assert _starts(found) == {"victim": 0.0, "urgent": 10.0}
    assert [span.start - BEGAN for span in found.spans if span.id == "victim"] == [0.0, 110.0]
    assert found.outcomes["victim"].evictions == 1
    assert all(outcome.finished_at is not None for outcome in found.outcomes.values())


def test_a_gang_that_has_run_long_is_past_its_minimum_run_when_the_incident_goes_on() -> None:
    snapshot = cluster([node("n1", 8), SIDE], [running("old", "n1/0-7", ran=3000.0, first_commit_at=None)])
    assert _starts(_gone_on(snapshot, [waiting("urgent", "8", priority=50)]))["urgent"] == 10.0


def test_what_is_frozen_stays_frozen_and_is_told() -> None:
    snapshot = cluster(
        [node("n1", 8), node("n2", 8), SIDE], frozen=Frozen(teams={"a": "frozen"}, nodes={"n1": "drain"})
    )
    queue = [waiting("closed", "8"), waiting("open", "8", team="b"), waiting("next", "8", team="b", waited=1.0)]
    trace = incident.read("incident", snapshot, queue, Policy(), now=NOW)
    assert "what is frozen or drained stays so" in trace.remarks[-1]
    starts = _starts(_gone_on(snapshot, queue))
    assert starts == {"closed": None, "open": 0.0, "next": 3600.0}


def test_a_reserved_window_is_free_in_time_and_for_those_it_is_for() -> None:
    devices = frozenset(f"n1/{n}" for n in range(8))
    window = Withheld(name="w", devices=devices, start=NOW + 1000.0, end=NOW + 5000.0, tags=frozenset({"vip"}))
    snapshot = cluster([node("n1", 8), SIDE], [running("there", "n1/0-7", grace_seconds=60.0)], withheld=(window,))
    vip = waiting("vip", "8", tags=("vip",), not_before=NOW + 1100.0)
    found = _gone_on(snapshot, [vip])
    # Asked when checkpoint and grace are left; back when the window is over.
    assert next(span.end - BEGAN for span in found.spans if span.id == "there") == 1000.0 - 70.0 + 10.0
    assert _starts(found)["vip"] == 1100.0


def test_a_place_that_was_kept_for_the_head_of_line_is_still_kept() -> None:
    kept = tuple(f"n{n}/{g}" for n in (1, 2) for g in range(4))
    shadow = Shadow(run_id="head", resource_pool="H100", start=NOW + 600.0, devices=kept, since=NOW - 50.0)
    nodes = [node("n1", 4), node("n2", 4), node("n3", 4), SIDE]
    held = [running("r1", "n1/0-3", ran=0.0, max_runtime_seconds=600.0, preemptible=False),
            running("r3", "n3/0-3", ran=0.0, max_runtime_seconds=300.0, preemptible=False)]  # fmt: skip
    queue = [waiting("head", "2x4", preemptible=False), waiting("small", "4", preemptible=False, waited=1.0)]
    found = _gone_on(cluster(nodes, held, shadows=(shadow,)), queue)
    assert _starts(found)["head"] in (300.0, 600.0)
    trace = incident.read("incident", cluster(nodes, held, shadows=(shadow,)), queue, Policy(), now=NOW)
    assert trace.beginning is not None
    assert [s.start for s in trace.beginning.snapshot.shadows] == [trace.begins_at + 600.0]


def test_what_a_gang_has_had_and_suffered_before_the_capture_still_counts() -> None:
    policy = Policy(time_sharing=True)
    queue = [waiting("heavy", "8", waited=500.0, attained_seconds=400_000.0, waiting_since=NOW - 10.0, evictions=3,
                     evicted_for=("other",)), waiting("fresh", "8", waited=5.0)]  # fmt: skip
    snapshot = cluster([node("n1", 8), SIDE], usage={"a": 123.0})
    assert _starts(_gone_on(snapshot, queue, policy))["fresh"] == 0.0
    trace = incident.read("incident", snapshot, queue, policy, now=NOW)
    known = Production(snapshot.fleet.source, trace.teams, policy, overheads=Overheads(), beginning=trace.beginning)
    Replay(trace, snapshot.fleet.source, known).steps().__next__()
    assert known.waiting["heavy"].evictions == 3
    assert known.waiting["heavy"].evicted_for == ("other",)
    assert known.snapshot.usage["a"] > 0
