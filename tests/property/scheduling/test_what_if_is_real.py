"""What `dsec what-if` says is what happens: the run is then really made, in a real ledger, planned and admitted."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cycle_live import loop_of
from dsec_blocks.ledger import CachedBundle, Fence, Ledger
from dsec_blocks.ledger.inventories import STALE_SECONDS
from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_deployments import foresight
from dsec_workers.lifecycle import incidents
from dsec_workers.lifecycle.run_limits import RunLimits
from dsec_workers.scheduling import Memory, Plan, Policy, QueuedGang, RunningGang, plan
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger
from tests.property.scheduling.worlds import NOW, TEAMS, nodes, queues, requests, running, teams


@contextmanager
def pools(
    cluster: Sequence[Node], known: dict[str, Team], run: Sequence[RunningGang], wait: Sequence[QueuedGang]
) -> Iterator[tuple[Ledger, Fence]]:
    """A pool in a real ledger, in which these gangs run and wait."""
    with TemporaryDirectory() as folder:
        ledger = new_ledger(Path(folder) / "ledger.db", clock=ManualClock(NOW))
        try:
            fence = ledger.take_lease("pool", "test", seen=None)
            assert fence is not None
            ledger.put_nodes(fence, cluster)
            for team in known.values():
                ledger.put_team("pool", team)
            ledger.enqueue(fence, [_gang(gang) for gang in (*run, *wait)])
            for gang in run:
                attempt = ledger.admit(fence, gang.run_id, gang.placement, expires_at=NOW + 60).attempt
                ledger.claimed(fence, gang.run_id, attempt, user_retries=None)
                ledger.started(fence, gang.run_id, attempt, gang.started_at)
            yield ledger, fence
        finally:
            ledger.close()


INPUTS = st.lists(st.sampled_from(["s3://b/llama", "s3://b/llama/", "https://h/w?sig=1", "odd"]), max_size=2).map(tuple)


@st.composite
def inventories(draw: st.DrawFn, cluster: Sequence[Node]) -> dict[str, tuple[list[CachedBundle], float | None, float]]:
    """What some nodes say they hold, what their fetches get, and how long ago they said so."""
    bundles = st.builds(
        CachedBundle,
        address=st.sampled_from(["s3://b/llama", "https://h/w?sig=1", "https://h/w?sig=2"]),
        digest=st.just("d"),
        bytes_total=st.just(10**11),
        bytes_resident=st.sampled_from([0, 10**9, 10**11]),
    )
    told = st.tuples(
        st.lists(bundles, max_size=3, unique_by=lambda bundle: bundle.address),
        st.sampled_from([None, 1e8, 1e8, 1e9]),
        st.sampled_from([0.0, 1.0, STALE_SECONDS + 1]),
    )
    return draw(st.dictionaries(st.sampled_from([node.name for node in cluster]), told))


def _gang(gang: RunningGang | QueuedGang) -> Gang:
    return Gang(
        run_id=gang.run_id,
        name=f"run {gang.run_id}",
        pool="pool",
        team=gang.team,
        request=gang.request,
        state=GangState.WAITING,
        submitted_at=gang.submitted_at,
        eligible_at=gang.eligible_at if isinstance(gang, QueuedGang) else gang.submitted_at,
    )


POLICIES: tuple[dict[str, object], ...] = (
    {},
    {"evictions_per_team": 1},
    {"consolidation": True},
    {"time_sharing": True},
)


@st.composite
def checks(draw: st.DrawFn) -> dict[str, Any]:
    """What somebody has set in Prefect; mostly nothing."""
    return {
        "is_paused": draw(st.sampled_from([False, False, False, True])),
        "paused_queues": draw(st.sampled_from([[], [], [TEAMS[0]]])),
        "limit": draw(st.sampled_from([None, None, 1, 4])),
        "queue_limits": draw(st.sampled_from([{}, {}, {TEAMS[-1]: 1}])),
    }


def _made_way(ledger: Ledger, fence: Fence, run_ids: Sequence[str]) -> None:
    """These were evicted a moment ago, for somebody, and wait again."""
    for run_id in ledger.evict(fence, run_ids, why="for another", for_run="another"):
        gang = ledger.gang(run_id)
        assert gang is not None
        ledger.leave(fence, run_id, gang.attempt, {"kind": "evicted"})
        ledger.requeue(fence, run_id, gang.attempt, evicted=True)


def _lost(ledger: Ledger, fence: Fence, run_ids: Sequence[str]) -> None:
    """The processes of these have disappeared, and they wait again."""
    for run_id in run_ids:
        gang = ledger.gang(run_id)
        assert gang is not None
        if gang.state is GangState.RUNNING:
            ledger.leave(fence, run_id, gang.attempt, {"kind": "lost"})
            ledger.requeue(fence, run_id, gang.attempt, evicted=False, infrastructure=True)


def _planned(ledger: Ledger, fence: Fence, cluster: Sequence[Node], told: dict[str, Any]) -> Plan:
    """What a worker's planning step decides that leads this pool now, and carries out."""
    loop = loop_of(ledger, fence, ManualClock(NOW), cluster, Policy())
    form = loop.intake.form
    form.is_paused, form.paused_queues = told["is_paused"], frozenset(told["paused_queues"])
    form.limits = RunLimits(pool=told["limit"], queues=told["queue_limits"])
    plans: list[Plan] = []

    def noting(*args: Any, memory: Memory | None = None) -> Plan:
        plans.append(plan(*args, memory=memory))
        return plans[-1]

    loop.planning.plan = noting
    anyio.run(loop.plan)
    return plans[0] if plans else Plan()


@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_if_is_what_the_worker_then_does(data: st.DataObject) -> None:
    cluster = data.draw(nodes())
    run = [replace(gang, evicting=False) for gang in data.draw(running(cluster))]
    wait, known = data.draw(queues(most=6)), data.draw(teams())
    asked, team, more = data.draw(requests()), data.draw(st.sampled_from(TEAMS)), data.draw(st.integers(0, 2))
    asked = replace(asked, inputs=data.draw(INPUTS))
    wait = [replace(gang, request=replace(gang.request, inputs=data.draw(INPUTS))) for gang in wait]
    told = data.draw(checks())
    with pools(cluster, known, run, wait) as (ledger, fence):
        for node, (held, bandwidth, age) in data.draw(inventories(cluster)).items():
            ledger.report_inventory(node, at=NOW - age, bandwidth_bytes_per_s=bandwidth, bundles=held)
        if rules := data.draw(st.sampled_from(POLICIES)):
            ledger.put_policy("pool", rules, by="ops", why="test")
        if run:
            names = st.lists(st.sampled_from([gang.run_id for gang in run]), max_size=2)
            _made_way(ledger, fence, data.draw(names))
            _lost(ledger, fence, data.draw(names))
        document = incidents.capture(ledger, "pool", now=NOW, by="test", checks=told)
        incident = incidents.load(json.loads(json.dumps(document)))
        by_file = plan(incident.snapshot, incident.queue, incident.policy, NOW)
        assert by_file == foresight.present(ledger, "pool", now=NOW, checks=told).plan()
        there = foresight.present(ledger, "pool", now=NOW, checks=told)
        assert there.unknown == ()
        if more:
            there, _ = foresight.with_more_nodes(there, more)
        newcomer = foresight.newcomer(asked, team=team, now=NOW)
        answer = foresight.what_if(there, newcomer)
        assert ledger.gang(foresight.NEWCOMER) is None

        larger = there.snapshot.fleet.source
        ledger.put_nodes(fence, larger)
        ledger.enqueue(fence, [replace(newcomer, pool="pool")])
        foreseen = foresight.present(ledger, "pool", now=NOW, checks=told)
        real = _planned(ledger, fence, larger, told)
        assert real == foreseen.plan()
        made = ledger.gang(foresight.NEWCOMER)
        assert made is not None
        if answer.admit is not None:
            assert made.placement == answer.admit.placement
            assert {v.run_id for v in answer.admit.victims} <= {each.run_id for each in ledger.evictions("pool")}
        else:
            assert made.placement is None
        held = next((hold for hold in real.holds if hold.run_id == foresight.NEWCOMER), None)
        if held is not None and answer.hold is not None:
            assert (answer.hold.reason, answer.hold.position) == (held.reason, held.position)
            assert held.eta is None or answer.hold.eta == held.eta
        elif answer.hold is not None and made.reason is not None:
            assert answer.hold.reason.text in made.reason


def test_who_cannot_ask_prefect_says_that_it_does_not_know_its_pauses_and_limits() -> None:
    from tests.workers.scheduling.world import cluster, node

    there = foresight.Present(snapshot=cluster([node("a", 4)]), waiting=(), policy=foresight.Policy(), now=NOW)
    answer = foresight.what_if(there, foresight.newcomer(GangRequest(devices_per_node=1), team="a", now=NOW))
    assert answer.unknown == ("pauses and run limits set in Prefect",)
    on_kubernetes = replace(node("a", 4), labels={"kubernetes.io/hostname": "a"})
    both = foresight.Present(snapshot=cluster([on_kubernetes]), waiting=(), policy=foresight.Policy(), now=NOW)
    assert len(both.unknown) == 2


def test_more_nodes_are_like_the_commonest_healthy_and_named_anew() -> None:
    from tests.workers.scheduling.world import cluster, node

    snapshot = cluster([node("added-1", 4, frozen=[0]), node("b", 4), node("c", 8)])
    there = foresight.Present(snapshot=snapshot, waiting=(), policy=foresight.Policy(), now=NOW)
    larger, like = foresight.with_more_nodes(there, 2)
    assert like.name == "added-1"
    assert sorted(larger.snapshot.fleet.nodes) == ["added-1", "added-2", "added-3", "b", "c"]
    assert larger.snapshot.fleet.device_usable.sum() == there.snapshot.fleet.device_usable.sum() + 8
