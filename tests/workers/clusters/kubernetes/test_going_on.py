"""In pods too a run that makes room by moving or by shrinking goes on in the place it was given, and loses no step.

As `tests/integration/test_going_on.py` on one machine; here its next attempt is other pods, which a kubelet admits only
when those of the first have left.
"""

import signal
from collections import Counter
from pathlib import Path

import pytest

from dsec_blocks.model.gangs import CARDS, Gang, GangState
from dsec_workers.clusters.kubernetes.api import Api
from tests.integration.site import Site
from tests.workers.clusters.kubernetes.conftest import OpenSite
from tests.workers.clusters.kubernetes.test_cluster import until_nothing_is_left
from tests.workers.clusters.kubernetes.test_end_to_end import PATIENCE_SECONDS, deploy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 8


def steps_of(notes: Path) -> list[tuple[int, int, int, int]]:
    """(attempt, step, sum, world size) of each step that rank 0 has begun."""
    path = notes / "rank-0"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in map(str.split, lines)]


def submitted(site: Site, flow: str, **more: object) -> str:
    """A run of one of the flows that the tests deploy, which write into the site's `notes`."""
    return site.submit(flow, parameters={"notes": str(site.home / "notes"), **more})


def committed(site: Site, run: str) -> Gang:
    """The gang, once it stands still in its fourth step, with a commit behind it."""
    gang: Gang = site.wait("its commit", lambda: (g := site.gang(run)) and g.first_commit_at and g, PATIENCE_SECONDS)
    site.wait("its fourth step", lambda: len(steps_of(site.home / "notes")) == 4, PATIENCE_SECONDS)
    return gang


def told_to_leave(site: Site, run: str) -> Gang:
    gang = site.wait_gang(run, GangState.EVICTING, seconds=PATIENCE_SECONDS)
    site.wait("it to have been told", (site.home / "notes" / "leaves").exists, PATIENCE_SECONDS)
    return gang


def completed(site: Site, run: str) -> None:
    site.wait_state(run, "COMPLETED", "FAILED", "CRASHED", seconds=PATIENCE_SECONDS)
    assert site.state(run)[0] == "COMPLETED", site.logs(run)


def outcomes(site: Site, run: str) -> list[str]:
    return sorted(d.outcome for d in site.ledger.decisions(site.pool, run_id=run, limit=1000) if d.stage == "plan")


async def test_a_gang_in_pods_that_is_moved_resumes_at_its_step_in_the_place_that_was_kept_for_it(
    open_site: OpenSite, kubernetes_api: Api, namespace: str
) -> None:
    site = open_site(2, gpus=4)
    site.ledger.put_policy(site.pool, {"consolidation": True}, by="ann", why="fragments")
    deploy(site, "holds", devices_per_node=2, preemptible=False, grace=1)
    deploy(site, "elastic", devices_per_node=2, grace=240)
    deploy(site, "urgent", devices_per_node=4)
    site.start_worker()
    stays = submitted(site, "holds", name="stays")
    home = site.wait_gang(stays, GangState.RUNNING, seconds=PATIENCE_SECONDS).placement
    goes = submitted(site, "holds", name="goes")
    beside = site.wait_gang(goes, GangState.RUNNING, seconds=PATIENCE_SECONDS).placement
    assert home is not None and beside is not None
    assert beside.members[0].node == home.members[0].node, "the two share a node"
    mover = submitted(site, "elastic", steps=STEPS, store=str(site.home / "store"))
    before = committed(site, mover)
    assert before.placement is not None and before.placement.members[0].node != home.members[0].node
    (site.home / "notes" / "stop-goes").touch()
    site.wait_gang(goes, GangState.ENDED, seconds=PATIENCE_SECONDS)

    big = submitted(site, "urgent")
    leaving = told_to_leave(site, mover)
    assert leaving.resumes_at == beside, "what is left on the first node"
    newcomer = site.submit("urgent", parameters={"notes": str(site.home / "notes")}, overrides={"devices_per_node": 2})
    site.wait("the newcomer to have to wait", lambda: (g := site.gang(newcomer)) and g.reason_code, PATIENCE_SECONDS)
    (site.home / "notes" / "may leave").touch()

    again = site.wait("its next attempt", lambda: (g := site.gang(mover)) and g.attempt == 2 and g, PATIENCE_SECONDS)
    assert again.placement == beside
    for run in (mover, big, newcomer):
        completed(site, run)
    seen = steps_of(site.home / "notes")
    assert [(step, total) for _, step, total, _ in seen] == [(step, step + 1) for step in range(STEPS)], seen
    first = sum(attempt == 1 for attempt, *_ in seen)
    assert [attempt for attempt, *_ in seen] == [1] * first + [2] * (STEPS - first), seen
    assert 4 <= first < STEPS, "it stopped before a step that its ranks agreed on"
    ended = site.wait_gang(mover, GangState.ENDED, seconds=PATIENCE_SECONDS)
    assert (ended.attempt, ended.evictions, ended.infrastructure_restarts) == (2, 1, 0)
    assert list(ended.launch[CARDS]) == [beside.members[0].node], "on cards of the node that was kept for it"
    assert outcomes(site, mover) == ["admit", "move"], "it never waited for another admission"
    (site.home / "notes" / "stop-stays").touch()
    site.wait_gang(stays, GangState.ENDED, seconds=PATIENCE_SECONDS)
    assert site.ledger.holders(site.pool) == [] and site.ledger.check(site.pool) == []
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_a_gang_in_pods_that_shrinks_goes_on_with_the_node_it_keeps_though_its_worker_was_killed_meanwhile(
    open_site: OpenSite, kubernetes_api: Api, namespace: str
) -> None:
    site = open_site(2, gpus=1)
    site.ledger.put_policy(site.pool, {"resizing": True}, by="ann", why="elastic")
    deploy(site, "elastic", nodes=2, min_nodes=1, devices_per_node=1, grace=240)
    deploy(site, "urgent", devices_per_node=1, priority=50)
    worker = site.start_worker()
    run = submitted(site, "elastic", steps=STEPS, store=str(site.home / "store"))
    before = committed(site, run)
    assert before.placement is not None and len(before.placement.members) == 2

    urgent = submitted(site, "urgent")
    leaving = told_to_leave(site, run)
    assert leaving.resumes_at is not None and leaving.resumes_at.members == before.placement.members[:1]
    site.stop_worker(worker, signal.SIGKILL)
    site.start_worker()
    (site.home / "notes" / "may leave").touch()

    again = site.wait("its next attempt", lambda: (g := site.gang(run)) and g.attempt == 2 and g, PATIENCE_SECONDS)
    assert again.placement == leaving.resumes_at
    for each in (run, urgent):
        completed(site, each)
    seen = steps_of(site.home / "notes")
    assert [(step, total) for _, step, total, _ in seen] == [(step, step + 1) for step in range(STEPS)], seen
    first = sum(attempt == 1 for attempt, *_ in seen)
    assert Counter((attempt, size) for attempt, _, _, size in seen) == {(1, 2): first, (2, 1): STEPS - first}, seen
    assert outcomes(site, run) == ["admit", "shrink"]
    ended = site.wait_gang(run, GangState.ENDED, seconds=PATIENCE_SECONDS)
    assert (ended.attempt, ended.evictions, ended.infrastructure_restarts) == (2, 1, 0)
    site.wait_gang(urgent, GangState.ENDED, seconds=PATIENCE_SECONDS)
    assert site.ledger.holders(site.pool) == [] and site.ledger.check(site.pool) == []
    await until_nothing_is_left(kubernetes_api, namespace)
