"""A gang that moves or shrinks to make room has its place while it is on its way, whoever comes meanwhile."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dsec_blocks.ledger import Eviction, Holding
from dsec_blocks.model.gangs import Gang, GangState, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.lifecycle import resuming
from dsec_workers.lifecycle.endings import Requeue, judge
from dsec_workers.lifecycle.mirror import reading_of, view_of
from dsec_workers.lifecycle.plan_input import Facts, snapshot_of
from dsec_workers.lifecycle.records import queued
from dsec_workers.scheduling import Plan, Policy, Snapshot, plan
from tests.blocks.ledger.gangs import on
from tests.workers.lifecycle.records import gang, run, state
from tests.workers.scheduling.world import node

NOW = 5000.0
POLICY = Policy(consolidation=True, resizing=True)
EVICTED = {"kind": "evicted", "reason": "Moves to make room for big", "last_commit_step": 7}


def mover(present: GangState, *, at: Placement, to: Placement, **fields: Any) -> Gang:
    request = GangRequest(nodes=len(at.members), min_nodes=1, devices_per_node=2, grace_seconds=30.0)
    return gang(present, run_id="m", name="m", request=request, placement=at, resumes_at=to, **fields)


def seen(one: Gang, *others: Gang, holdings: list[tuple[str, int, str, int]]) -> Snapshot:
    """Two nodes of four cards; `holdings` are (device, turn, run, attempt)."""
    held = [
        Holding(device=d, turn=t, run_id=r, attempt=a, node=d[:2], state="bound", expires_at=None)
        for d, t, r, a in holdings
    ]
    told = Eviction(
        run_id="m", attempt=1, for_run="big", why="", cost=1.0, noticed_at=NOW - 5, state="open", closed_at=None
    )
    return snapshot_of(
        Facts(
            pool="pool",
            now=NOW,
            policy=POLICY,
            nodes=[node("n1", 4), node("n2", 4)],
            view=view_of(reading_of([one, *others], held, [told])),
            teams={"default": Team(name="default", nominal_devices=100)},
            usage={},
            made_way=[("m", "default", NOW - 5, "big")],
        )
    )


def newcomer(devices: int) -> Gang:
    request = GangRequest(devices_per_node=devices)
    return gang(GangState.WAITING, run_id="new", request=request, placement=None, attempt=0, submitted_at=NOW - 60)


def planned(snapshot: Snapshot, *waiting: Gang) -> Plan:
    return plan(snapshot, [queued(each) for each in waiting], POLICY, NOW)


BIG = gang(GangState.RESERVED, run_id="big", placement=on("n1/0", "n1/1", "n1/2", "n1/3"), admitted_at=NOW - 5)
MOVING = [
    *((f"n1/{index}", 0, "m", 1) for index in (0, 1)), *((f"n1/{index}", 1, "big", 1) for index in (0, 1)),
    *((f"n1/{index}", 0, "big", 1) for index in (2, 3)), *((f"n2/{index}", 0, "m", 2) for index in (2, 3)),
]  # fmt: skip


def test_the_next_arrival_took_the_place_that_a_moving_gang_was_to_have() -> None:
    """Carried out as a plain eviction, a move left its destination to whoever came next."""
    moving = mover(GangState.EVICTING, at=on("n1/0", "n1/1"), to=on("n2/2", "n2/3"))

    result = planned(seen(moving, BIG, holdings=MOVING), newcomer(2))

    assert [admit.placement for admit in result.admits] == [on("n2/0", "n2/1")]
    assert planned(seen(moving, BIG, holdings=MOVING), newcomer(4)).admits == ()


def test_a_moved_gang_that_has_left_and_waits_for_prefect_keeps_its_place() -> None:
    gone = mover(GangState.LEAVING, at=on("n1/0", "n1/1"), to=on("n2/2", "n2/3"))
    left = [row for row in MOVING if row[2] == "m" and row[3] == 2]

    snapshot = seen(gone, holdings=left)

    assert [admit.placement.members[0].node for admit in planned(snapshot, newcomer(4)).admits] == ["n1"]
    filling = replace(newcomer(4), run_id="filling")
    assert len(planned(snapshot, newcomer(4), filling).admits) == 1


def test_the_devices_that_a_shrinking_gang_keeps_are_promised_to_nobody_else() -> None:
    shrinking = mover(GangState.EVICTING, at=on("n1/0", "n1/1", "n2/0", "n2/1"), to=on("n1/0", "n1/1"))
    held = [(f"{name}/{index}", 0, "m", 1) for name in ("n1", "n2") for index in (0, 1)]
    kept = [(f"n1/{index}", 1, "m", 2) for index in (0, 1)]

    result = planned(seen(shrinking, holdings=held + kept), newcomer(4))

    assert [(admit.placement.members[0].node, admit.waits_for) for admit in result.admits] == [("n2", ("m",))]


def test_the_head_of_line_does_not_count_on_the_place_of_a_moving_gang_after_its_grace() -> None:
    moving = mover(GangState.EVICTING, at=on("n1/0", "n1/1"), to=on("n2/2", "n2/3"))

    [shadow] = planned(seen(moving, BIG, holdings=MOVING), newcomer(4)).shadows

    assert shadow.start > NOW + 30.0


def test_a_team_uses_what_its_shrinking_gang_will_have() -> None:
    shrinking = mover(GangState.EVICTING, at=on("n1/0", "n1/1", "n2/0", "n2/1"), to=on("n1/0", "n1/1"))
    held = [(f"{name}/{index}", 0, "m", 1) for name in ("n1", "n2") for index in (0, 1)]
    kept = [(f"n1/{index}", 1, "m", 2) for index in (0, 1)]
    snapshot = replace(
        seen(shrinking, holdings=held + kept),
        teams={"default": Team(name="default", nominal_devices=4, borrow_devices=0)},
    )

    assert len(planned(snapshot, newcomer(2)).admits) == 1
    result = planned(snapshot, newcomer(3))
    assert (result.admits, [hold.reason.code for hold in result.holds]) == ((), ["waits-for-quota"])


@pytest.mark.parametrize(
    ("at", "to", "told"),
    [
        (on("n1/0", "n1/1"), on("n2/2", "n2/3"), "Moves to make room for big"),
        (on("n1/0", "n2/0", "n3/0", "n4/0"), on("n1/0", "n2/0"), "Shrinks from 4 to 2 nodes to make room for big"),
        (on("n1/0"), on("n1/0", "n2/0"), "Grows from 1 to 2 nodes"),
    ],
)
def test_what_a_gang_is_told_that_goes_on(at: Placement, to: Placement, told: str) -> None:
    for_gang = None if told.startswith("Grows") else gang(run_id="big", name="big")
    assert resuming.why(gang(placement=at), to, for_gang) == told
    term: Any = SimpleNamespace(steady=lambda: 100.0, settings=SimpleNamespace(reservation_seconds=60.0))
    one = gang(placement=at, request=GangRequest(grace_seconds=30.0))
    assert resuming.resumption(term, one, to, for_gang).expires_at == 190.0


@pytest.mark.parametrize(
    ("to", "message"),
    [
        (on("n3/0"), "Moves to make room for big; resumes from step 7 on n3"),
        (on("n3/0", "n4/0"), "Moves to make room for big; resumes from step 7 on n3, n4"),
        (on(*(f"n{i}/0" for i in range(9))), "Moves to make room for big; resumes from step 7 on 9 nodes"),
        (None, "Moves to make room for big; resumes from step 7"),
    ],
)
def test_the_runs_message_says_where_it_resumes(to: Placement | None, message: str) -> None:
    verdict = judge(gang(outcome=EVICTED, resumes_at=to), run(state("RUNNING")), restarts_allowed=3)
    assert isinstance(verdict, Requeue)
    assert (verdict.message, verdict.evicted) == (message, True)


def test_a_requeue_that_was_written_before_its_place_was_given_up_is_still_ours() -> None:
    written = state("SCHEDULED", "AwaitingRetry", message="Moves to make room for big; resumes from step 7 on n3")
    verdict = judge(gang(outcome=EVICTED, resumes_at=None), run(written), restarts_allowed=3)
    assert isinstance(verdict, Requeue)
    assert verdict.written
