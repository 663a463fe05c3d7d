"""The whole way: a worker, Prefect, a real control plane, and gangs that train in pods, give way and resume."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.model.gangs import CARDS, GangState
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.lifecycle.reports import REPORT_KEY
from tests.deployments.test_command import dsec
from tests.fixtures.pausing import pause
from tests.integration.site import Site
from tests.workers.clusters.kubernetes.conftest import OpenSite
from tests.workers.clusters.kubernetes.test_cluster import until_nothing_is_left

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
PATIENCE_SECONDS = 240.0


@pytest.fixture
def site(open_site: OpenSite) -> Site:
    return open_site()


def deploy(site: Site, flow: str, **variables: Any) -> None:
    """A deployment of a flow of `flows_in_pods`, for `Site.submit` to find."""
    path = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    flow_id = site.http.post("flows/", json={"name": flow}).raise_for_status().json()["id"]
    body = {
        "name": f"{site.pool}-{flow}",
        "flow_id": flow_id,
        "work_pool_name": site.pool,
        "entrypoint": f"flows_in_pods.py:{flow}",
        "path": str(HERE),
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(HERE)}}],
        "job_variables": {**variables, "env": {"PYTHONPATH": path}},
        "enforce_parameter_schema": False,
    }
    made = site.http.post("deployments/", json=body).raise_for_status().json()["id"]
    site._deployments[(flow, repr([]))] = made


def said_on_its_page(site: Site, run: str) -> Counter[str]:
    """What the ranks themselves have printed, as the run's page in Prefect shows it."""
    body = {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200}
    lines = site.http.post("logs/filter", json=body).raise_for_status().json()
    return Counter(line["message"] for line in lines if line["message"].startswith("rank "))


def steps_of(notes: Path, rank: int) -> list[tuple[int, int, str]]:
    lines = (notes / f"rank-{rank}").read_text().splitlines() if (notes / f"rank-{rank}").exists() else []
    return [(int(a), int(s), loss) for a, s, loss, _ in (line.split() for line in lines)]


async def test_a_gang_in_pods_gives_way_by_checkpoint_and_ends_with_the_same_loss(
    site: Site, kubernetes_api: Api, namespace: str
) -> None:
    steps, notes = 100, site.home / "notes"
    deploy(site, "train", nodes=2, devices_per_node=2, grace=120)
    deploy(site, "urgent", nodes=2, devices_per_node=2, priority=50)
    site.start_worker()
    parameters = {"steps": steps, "store": str(site.home / "store"), "notes": str(notes)}
    low = site.submit("train", parameters=parameters)
    site.wait("its first steps", lambda: len(steps_of(notes, 3)) > 10, seconds=PATIENCE_SECONDS)
    site.wait("its first commit", lambda: (site.gang(low) or 0) and site.gang(low).last_step, seconds=PATIENCE_SECONDS)
    high = site.submit("urgent", parameters={"notes": str(notes)})
    site.wait_state(high, "COMPLETED", seconds=PATIENCE_SECONDS)
    site.wait_state(low, "COMPLETED", seconds=PATIENCE_SECONDS)
    assert (notes / "urgent").read_text() == high
    assert "AwaitingRetry" in site.history(low)
    told_steps = [steps_of(notes, rank) for rank in range(4)]
    stopped_before = [max(step for attempt, step, _ in each if attempt == 1) for each in told_steps]
    assert len(set(stopped_before)) == 1, "all ranks stopped before the same step"
    for each in told_steps:
        assert [step for _, step, _ in each] == list(range(steps)), "no step was lost or done twice"
    loss = 100.0
    for _ in range(steps):
        loss = loss * 0.99 + 3.0 * 0.001
    assert (notes / "losses").read_text() == repr([loss] * 4), "the very loss of a run that nobody interrupted"
    told = [f"rank {rank} begins attempt {attempt}" for rank in range(4) for attempt in (1, 2)]
    told += [f"rank {rank} has lost {loss:.3f}" for rank in range(4)]
    site.wait("the last words of all ranks", lambda: said_on_its_page(site, low) == Counter(told), seconds=60)
    gang = site.wait_gang(low, GangState.ENDED)
    assert (gang.evictions, gang.infrastructure_restarts) == (1, 0)
    used = {line.split()[3] for rank in range(4) for line in (notes / f"rank-{rank}").read_text().splitlines()}
    had = gang.launch[CARDS]
    assert sorted(had) == [f"{namespace}-a", f"{namespace}-b"]
    assert {card for cards in had.values() for card in cards} <= used
    told = dsec("explain", low, "--json", "--pool", site.pool, home=site.home, DSEC_LEDGER_URL=site.ledger_url,
                PREFECT_API_URL=site.api_url)  # fmt: skip
    assert json.loads(told.stdout)["gang"]["cards"] == had, told.stderr
    (report,) = site.wait("its report", lambda: site.artifacts(REPORT_KEY, flow_run_id={"any_": [low]}), seconds=60)
    assert f"| {namespace}-a | {', '.join(had[f'{namespace}-a'])} |" in report["data"]
    assert site.ledger.holders(site.pool) == [] and site.ledger.check(site.pool) == []
    await until_nothing_is_left(kubernetes_api, namespace)


async def test_a_worker_that_is_killed_leaves_its_gang_running_and_the_next_one_hears_it_end(
    site: Site, kubernetes_api: Api, namespace: str
) -> None:
    steps, notes = 40, site.home / "notes"
    deploy(site, "train", nodes=2, devices_per_node=1, grace=120)
    worker = site.start_worker()
    parameters = {"steps": steps, "store": str(site.home / "store"), "notes": str(notes)}
    run = site.submit("train", parameters=parameters)
    site.wait("its first steps", lambda: len(steps_of(notes, 1)) > 3, seconds=PATIENCE_SECONDS)
    worker.kill()
    worker.wait()
    site.wait("its last step", lambda: len(steps_of(notes, 1)) == steps, seconds=PATIENCE_SECONDS)
    site.start_worker()
    site.wait_state(run, "COMPLETED", seconds=PATIENCE_SECONDS)
    gang = site.wait_gang(run, GangState.ENDED, seconds=PATIENCE_SECONDS)
    assert (gang.attempt, gang.infrastructure_restarts) == (1, 0)
    assert {attempt for attempt, _, _ in steps_of(notes, 0)} == {1}
    assert site.ledger.holders(site.pool) == []


async def test_a_leader_that_was_paused_is_fenced_and_touches_no_gang_of_its_successor(
    site: Site, kubernetes_api: Api, namespace: str
) -> None:
    steps, notes = 200, site.home / "notes"
    deploy(site, "train", nodes=2, devices_per_node=1, grace=120)
    deploy(site, "urgent", nodes=1, devices_per_node=1)
    paused = site.start_worker()
    parameters = {"steps": steps, "store": str(site.home / "store"), "notes": str(notes)}
    run = site.submit("train", parameters=parameters)
    site.wait("its first steps", lambda: len(steps_of(notes, 1)) > 3, seconds=PATIENCE_SECONDS)
    before = site.ledger.lease(site.pool)
    pause(paused.pid, site.ledger_url)
    site.start_worker()
    site.wait(
        "a successor", lambda: (now := site.ledger.lease(site.pool)) and before and now.token > before.token, seconds=60
    )
    second = site.submit("urgent", parameters={"notes": str(notes)})
    site.wait_state(second, "COMPLETED", seconds=PATIENCE_SECONDS)
    os.kill(paused.pid, signal.SIGCONT)
    site.wait("the old leader to notice", lambda: "another worker leads" in site.worker_log(0), seconds=60)
    site.wait_state(run, "COMPLETED", seconds=PATIENCE_SECONDS)
    for ended in (run, second):
        gang = site.wait_gang(ended, GangState.ENDED, seconds=PATIENCE_SECONDS)
        assert (gang.attempt, gang.infrastructure_restarts, gang.evictions) == (1, 0, 0)
    assert [step for _, step, _ in steps_of(notes, 0)] == list(range(steps))
    assert site.ledger.holders(site.pool) == [] and site.ledger.check(site.pool) == []
    await until_nothing_is_left(kubernetes_api, namespace)
