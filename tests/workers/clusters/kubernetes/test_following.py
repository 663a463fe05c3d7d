"""A gang that runs whole costs its worker nothing until something happens to it: there may be thousands of them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.gangs import MemberPlacement
from dsec_workers.clusters.kubernetes import following
from dsec_workers.clusters.kubernetes.following import Following
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.supply import Supply
from dsec_workers.clusters.protocol import ClusterEvent, GangKey
from tests.workers.clusters.kubernetes.conftest import until


def pod(phase: str = "Running", *, uid: str = "u", is_deleted: bool = False, **state: Any) -> dict[str, Any]:
    leaving = {"deletionTimestamp": "2026-01-02T03:04:05Z"} if is_deleted else {}
    own = {"name": "gang", "state": state or {"running": {"startedAt": "2026-01-02T03:04:05Z"}}}
    return {
        "metadata": {"name": "p", "namespace": "x", "uid": uid, **leaving},
        "spec": {"nodeName": "n1", "containers": [{"name": "gang"}]},
        "status": {"phase": phase, "containerStatuses": [own]},
    }


def gang(name: str = "run", *, members: int = 2, is_started: bool = True) -> GangView:
    """One whose pods all run."""
    view = GangView(
        key=GangKey(name, 1),
        namespace="x",
        members={index: MemberPlacement(node=f"n{index}") for index in range(members)},
        count=members,
        created_at=SystemClock().now(),
        start_timeout_seconds=3600.0,
        grace_seconds=3600.0,
    )
    for index in range(members):
        view.see(index, pod(), before=None)
    if is_started:
        view.hear({"seq": 1, "type": "started", "at": 1.0})
    return view


DISTURBED: dict[str, Callable[[GangView], object]] = {
    "it is to leave": lambda view: setattr(view, "is_stopped", True),
    "its start was given up": lambda view: setattr(view, "failure", "no room"),
    "a member's pod is told to leave": lambda view: view.see(1, pod(is_deleted=True), before=None),
    "a member has ended": lambda view: view.see(1, pod("Failed", terminated={"exitCode": 1}), before=None),
    "a member's pod is gone": lambda view: view.see(1, None, before=pod()),
    "a member's container starts again": lambda view: view.see(1, pod(waiting={"reason": "Error"}), before=None),
}


@pytest.mark.parametrize(
    ("members", "changes", "seconds"),
    [
        (0, {}, following.NO_POD_SECONDS),
        (0, {"is_stopped": True}, following.TICK_SECONDS),
        (0, {"failure": "no room"}, following.TICK_SECONDS),
        (2, {"is_started": False}, following.TICK_SECONDS),
        (2, {}, following.CALM_SECONDS),
    ],
)
def test_while_a_controller_has_made_no_pod_its_gang_is_looked_at_when_it_would_be_asked_why(
    members: int, changes: dict[str, Any], seconds: float
) -> None:
    view = gang(members=members, is_started=changes.get("is_started", members > 0))
    view.count = 2
    view.is_stopped, view.failure = changes.get("is_stopped", False), changes.get("failure")
    settings: Any = KubernetesSettings(pool="gpus")
    nothing: Any = None
    followed = Following(
        view=view, settings=settings, jobs=nothing, complaints=nothing, secrets=nothing, supply=nothing,
        clock=SystemClock(), is_current=lambda: True, tell=nothing,
    )  # fmt: skip
    assert followed._patience() == seconds


@pytest.mark.parametrize("disturb", DISTURBED.values(), ids=DISTURBED)
def test_a_gang_that_runs_is_looked_after_again_when(disturb: Callable[[GangView], object]) -> None:
    view = gang()
    assert view.is_calm
    disturb(view)
    assert not view.is_calm


def test_a_gang_that_starts_is_looked_after_until_it_has_started() -> None:
    assert not gang(is_started=False).is_calm


def test_what_follows_from_a_pod_is_worked_out_once_for_each_of_its_states() -> None:
    view = gang()
    before = view.fate(1)
    assert view.fate(1) is before
    view.see(1, pod("Succeeded", terminated={"exitCode": 0}), before=None)
    after = view.fate(1)
    assert after is not None and (after.is_over, after.exit_code) == (True, 0)
    view.see(1, None, before=None)
    assert view.fate(1) is after, "its last state stays"


async def test_a_running_gang_is_left_alone_while_one_that_leaves_is_seen_to_and_hears_of_its_end_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(following, "CALM_SECONDS", 3600.0)
    settings, clock = KubernetesSettings(pool="gpus", has_outposts=False), SystemClock()
    looks = {"runs": 0, "leaves": 0}
    told: list[ClusterEvent] = []

    def follow(name: str, view: GangView) -> "asyncio.Task[None]":
        def look() -> bool:
            looks[name] += 1
            return name == "runs"  # the other's mirror is not current, so nothing is done about it

        async def tell(event: ClusterEvent) -> None:
            told.append(event)

        followed: Any = Following(
            view=view, settings=settings, jobs=None, complaints=None, secrets=None,  # type: ignore[arg-type]
            supply=Supply(settings, clock=clock), clock=clock, is_current=look, tell=tell,
        )  # fmt: skip
        return asyncio.create_task(followed.run())

    runs, leaves = gang("runs"), gang("leaves")
    leaves.is_stopped = True
    tasks = [follow("runs", runs), follow("leaves", leaves)]
    try:
        await until(lambda: looks["leaves"] > 50)
        assert looks["runs"] == 1
        for member in range(2):
            runs.see(member, pod("Succeeded", terminated={"exitCode": 0}), before=None)
        await asyncio.wait_for(tasks[0], 60)
        assert type(told[-1]).__name__ == "Gone"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
