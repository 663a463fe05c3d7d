"""The demo's yardsticks are right themselves: the cheapest victims, and the difference of two loss curves."""

import json
from pathlib import Path

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_deployments.demo.brute_force import cheapest_victims
from dsec_deployments.demo.losses import Curve, largest_difference, read_curve
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import RunningGang

NOW = 1000.0


def gang(name: str, *nodes: str, last_commit: float | None = 990.0, priority: int = 10, **fields: bool) -> RunningGang:
    members = tuple(MemberPlacement(node=node, devices=(f"{name}-{node}-0", f"{name}-{node}-1")) for node in nodes)
    return RunningGang(
        run_id=name,
        team="t",
        request=GangRequest(nodes=len(nodes), devices_per_node=2, priority=priority, **fields),
        placement=Placement(members=members),
        submitted_at=0.0,
        started_at=900.0,
        first_commit_at=last_commit,
        last_commit_at=last_commit,
    )


def chosen(*running: RunningGang, nodes: int = 1, free: dict[str, int] | None = None) -> frozenset[str] | None:
    request = GangRequest(nodes=nodes, devices_per_node=2, priority=80)
    best = cheapest_victims(request, free=free or {"a": 0, "b": 0}, running=running, policy=Policy(), now=NOW)
    return best.victims if best else None


def test_the_gang_with_the_fresher_checkpoint_is_cheaper() -> None:
    assert chosen(gang("fresh", "a", last_commit=999.0), gang("stale", "b", last_commit=910.0)) == {"fresh"}


def test_a_shape_of_two_nodes_needs_room_on_both() -> None:
    assert chosen(gang("one", "a"), gang("other", "b"), nodes=2) == {"one", "other"}


def test_nobody_is_evicted_when_there_is_room() -> None:
    assert chosen(gang("one", "a"), free={"a": 0, "b": 2}) == frozenset()


def test_equal_priority_and_the_not_preemptible_are_no_candidates() -> None:
    assert chosen(gang("equal", "a", priority=80), gang("fixed", "b", preemptible=False)) is None


def test_a_gang_within_its_minimum_run_is_no_candidate() -> None:
    assert chosen(gang("new", "a", last_commit=None)) is None


def test_a_step_that_was_run_twice_is_seen(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 1.0} for step in (0, 1, 1, 2)]
    (tmp_path / "losses.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    assert read_curve(tmp_path / "losses.jsonl").repeated == (1,)


def test_curves_of_different_length_are_not_equal() -> None:
    one, other = Curve(loss={0: 1.0, 1: 0.5}, repeated=()), Curve(loss={0: 1.0}, repeated=())
    assert largest_difference(one, other) == float("inf")
    assert largest_difference(one.until(1), other) == 0.0
