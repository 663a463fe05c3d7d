"""Whoever plans from the ledger knows who passed the head of line, and calls them back in time."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.gangs import Gang, GangState, MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_deployments.cli.what_if import told
from dsec_deployments.foresight import present, what_if
from dsec_workers.clusters.protocol import GangKey
from dsec_workers.lifecycle import cancellations, incidents, recalling
from dsec_workers.lifecycle.recalling import reason
from dsec_workers.scheduling.decisions import Plan, Recall
from dsec_workers.scheduling.policy import Policy
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger
from tests.workers.lifecycle.records import gang as some_gang
from tests.workers.lifecycle.records import run, state

POOL, NOW, START = "gpus", 1_000_000.0, 1_003_600.0


def gang(run_id: str, nodes: int = 1, **request: object) -> Gang:
    return Gang(
        run_id=run_id, name=f"run {run_id}", pool=POOL, team="default", state=GangState.WAITING, submitted_at=NOW - 60,
        eligible_at=NOW - 60, request=GangRequest(nodes=nodes, devices_per_node=2, **request),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def led(tmp_path: Path) -> Iterator[tuple[Ledger, Fence]]:
    """A ledger whose clock stands at NOW, and its leader's fence."""
    ledger = new_ledger(tmp_path / "ledger.db", clock=ManualClock(NOW))
    fence = ledger.take_lease(POOL, "leader", seen=None)
    assert fence is not None
    yield ledger, fence
    ledger.close()


def term_of(ledger: Ledger, fence: Fence, **more: Any) -> Any:
    """What of a term needs a ledger, and `more`."""

    async def read(method: Any, *args: Any) -> Any:
        return method(*args)

    async def write(method: Any, *args: Any, **named: Any) -> Any:
        return method(fence, *args, **named)

    return SimpleNamespace(pool=POOL, ledger=ledger, read=read, write=write, **more)


def _node(name: str) -> Node:
    devices = (Device(uuid=f"{name}/{i}", node=name, index=i, model="H100", memory_bytes=2**36) for i in (0, 1))
    return Node(name=name, devices=tuple(devices))


def test_an_onlooker_and_an_incident_file_say_what_the_leader_will_do_with_a_passer(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    ledger = new_ledger(tmp_path / "ledger.db", clock=clock)
    fence = ledger.take_lease(POOL, "leader", seen=None)
    assert fence is not None
    ledger.put_nodes(fence, [_node("n1"), _node("n2")])
    lasting = gang("lasting", max_runtime_seconds=START - NOW, preemptible=False)
    ledger.enqueue(fence, [lasting, gang("passer"), gang("head", 2)])
    for run_id, node, until in (("lasting", "n1", None), ("passer", "n2", START)):
        place = Placement(members=(MemberPlacement(node=node, devices=(f"{node}/0", f"{node}/1")),))
        attempt = ledger.admit(fence, run_id, place, expires_at=NOW + 60, conditional_until=until).attempt
        ledger.claimed(fence, run_id, attempt, user_retries=None)
        ledger.started(fence, run_id, attempt, NOW)
    hand_over = Policy().checkpoint_seconds + GangRequest(devices_per_node=2).grace_seconds
    assert present(ledger, POOL, now=START - hand_over - 1).plan().recalls == ()
    due = present(ledger, POOL, now=START - hand_over)
    (recall,) = due.plan().recalls
    assert (recall.run_id, recall.for_run, recall.start) == ("passer", "head", START)
    captured = incidents.capture(ledger, POOL, now=due.now, by="test")
    loaded = incidents.load(json.loads(json.dumps(captured)))
    assert replace(due, snapshot=loaded.snapshot).plan().recalls == (recall,)
    ledger.close()


@pytest.mark.parametrize("answered", [False, True])
async def test_when_the_head_is_cancelled_a_recall_that_was_not_answered_is_taken_back(
    led: tuple[Ledger, Fence], answered: bool
) -> None:
    ledger, fence = led
    ledger.enqueue(fence, [gang("passer"), gang("head", 2)])
    place = Placement(members=(MemberPlacement(node="n2", devices=("n2/0", "n2/1")),))
    attempt = ledger.admit(fence, "passer", place, expires_at=NOW + 60, conditional_until=START).attempt
    ledger.claimed(fence, "passer", attempt, user_retries=None)
    ledger.started(fence, "passer", attempt, NOW)
    assert ledger.evict(fence, ["passer"], why="in time", for_run="head") == ["passer"]

    async def cancelled(*_: object) -> None:
        pass

    async def withdraw(_: object) -> bool:
        return not answered

    term = term_of(
        ledger, fence, api=SimpleNamespace(cancelled=cancelled),
        cluster=SimpleNamespace(withdraw=withdraw), forget=lambda _: None, leaving_soon=set(), leave_by={},
        notices={GangKey("passer", attempt): object()}, astray=set(),
    )  # fmt: skip
    await cancellations.observe(term, "head", run(state("CANCELLING")))
    known = ledger.gang("passer")
    assert known is not None
    assert known.state is (GangState.EVICTING if answered else GangState.RUNNING)
    assert [each.run_id for each in ledger.evictions(POOL)] == (["passer"] if answered else [])
    assert ledger.check(POOL) == []


@pytest.mark.parametrize("one_ended", [False, True])
async def test_those_that_give_way_by_priority_to_a_gang_without_cards_are_told_all_or_none(
    led: tuple[Ledger, Fence], one_ended: bool
) -> None:
    ledger, fence = led
    ledger.enqueue(fence, [replace(gang(name), request=GangRequest(cpus=1.0)) for name in ("v1", "v2", "head")])
    for name in ("v1", "v2"):
        attempt = ledger.admit(
            fence, name, Placement(members=(MemberPlacement(node="n1"),)), expires_at=NOW + 60
        ).attempt
        ledger.claimed(fence, name, attempt, user_retries=None)
        ledger.started(fence, name, attempt, NOW)
    planned = {name: ledger.gang(name) for name in ("v1", "v2", "head")}
    if one_ended:
        ledger.leave(fence, "v2", 1, {"kind": "exited", "at": NOW})
        ledger.end(fence, "v2", 1, final_state="Completed")
    rung, notices, entries = [], [], []

    term = term_of(
        ledger, fence, wake=SimpleNamespace(ring=lambda: rung.append(True)),
        decide=lambda *what, **_: entries.append(what),
        errands=SimpleNamespace(start=lambda *what: notices.append(what[0])),
    )  # fmt: skip
    recalls = tuple(
        Recall(run_id=name, for_run="head", start=NOW + 30, cost=0.0, passed=False) for name in ("v1", "v2")
    )
    await recalling.begin(term, Plan(recalls=recalls), planned)  # type: ignore[arg-type]
    told = ledger.evictions(POOL)
    if one_ended:
        assert (told, notices, rung) == ([], [], [True])
    else:
        assert {(each.run_id, each.for_run, each.why) for each in told} == {
            (name, "head", "Preempted by run head (team default, priority 0)") for name in ("v1", "v2")
        }
        assert notices == ["notice:v1", "notice:v2"] and entries == [("plan", "preempt")] * 4


def test_what_if_names_whom_a_gang_without_cards_would_have_leave(led: tuple[Ledger, Fence]) -> None:
    ledger, fence = led
    ledger.put_nodes(fence, [replace(_node("n1"), cpus=8.0)])
    ledger.enqueue(fence, [replace(gang("low"), request=GangRequest(cpus=6.0))])
    attempt = ledger.admit(fence, "low", Placement(members=(MemberPlacement(node="n1"),)), expires_at=NOW + 60).attempt
    ledger.claimed(fence, "low", attempt, user_retries=None)
    ledger.started(fence, "low", attempt, NOW)
    later = present(ledger, POOL, now=NOW + Policy().min_run_seconds)
    asked = replace(gang("urgent"), request=GangRequest(cpus=4.0, priority=50))
    answer = told("now", what_if(later, asked), later)
    assert [(victim["run_id"], victim["cost_device_seconds"]) for victim in answer["evicts"]] == [("low", 0.0)]
    assert not answer["starts"] and answer["starts_in_seconds"] == GangRequest().grace_seconds


def test_a_passer_is_told_in_plain_words_for_whom_and_until_when() -> None:
    recall = Recall(run_id="passer", for_run="run", start=86_400.0 + 3600, cost=1.0)
    assert reason(recall, some_gang(GangState.WAITING, name="wide-owl", team="vision")) == (
        "It started before wide-owl (team vision), which was ahead of it in line, on the condition that it leaves in "
        "time: wide-owl starts on its devices at 01:00:00 UTC"
    )
