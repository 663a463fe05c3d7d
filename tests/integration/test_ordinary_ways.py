"""Flows get to the pool in the ordinary ways of Prefect, unchanged: schedules, automations, subflows."""

import json
from typing import Any
from uuid import uuid4

import pytest

from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def runs_of(site: Site, deployment: str) -> list[dict[str, Any]]:
    body = {"deployments": {"id": {"any_": [deployment]}}}
    found: list[dict[str, Any]] = site.http.post("flow_runs/filter", json=body).raise_for_status().json()
    return found


def completed(site: Site, deployment: str) -> list[dict[str, Any]]:
    return [run for run in runs_of(site, deployment) if run["state_type"] == "COMPLETED"]


def test_runs_that_the_servers_scheduler_makes_start_when_they_are_due(site: Site) -> None:
    site.start_worker()
    deployment = site.deployment("hello", devices_per_node=1)
    schedule = {"active": True, "schedule": {"interval": 3.0, "anchor_date": "2026-01-01T00:00:00Z"}}
    site.http.post(f"deployments/{deployment}/schedules", json=[schedule]).raise_for_status()
    done = site.wait("two scheduled runs", lambda: len(d := completed(site, deployment)) >= 2 and d, 60)
    site.http.patch(f"deployments/{deployment}", json={"paused": True}).raise_for_status()
    assert all(run["auto_scheduled"] for run in done)
    # None started before it was due.
    assert all(run["estimated_start_time_delta"] >= 0 for run in done), done


def test_a_run_that_the_server_has_named_late_starts_as_any_other(site: Site) -> None:
    run = site.submit("hello", devices_per_node=1)
    site.set_state(run, "SCHEDULED", "Late", force=True)
    site.start_worker()
    site.wait_state(run, "COMPLETED")


def test_what_is_typed_in_the_form_of_one_run_goes_before_what_its_deployment_says(site: Site) -> None:
    """The environment is merged name by name, everything else replaced."""
    notes = site.home / "notes"
    site.start_worker()
    env = {"KEPT": "deployment", "CHANGED": "deployment"}
    typed = {"devices_per_node": 3, "env": {"CHANGED": "run", "ADDED": "run"}}
    parameters = {"where": str(notes), "names": ["KEPT", "CHANGED", "ADDED"]}
    run = site.submit("tells", parameters=parameters, overrides=typed, devices_per_node=1, priority=7, env=env)
    site.wait_state(run, "COMPLETED")
    request = site.wait_gang(run, GangState.ENDED).request
    assert (request.devices_per_node, request.priority) == (3, 7)
    assert json.loads(notes.read_text()) == {"KEPT": "deployment", "CHANGED": "run", "ADDED": "run"}


def test_a_pool_that_nobody_has_made_is_made_with_our_form_by_its_first_worker_10964(site: Site) -> None:
    """Issue 10964: the UI cannot create a pool of a type that is not Prefect's own."""
    site.zygote, site.pool = None, f"new-{uuid4().hex[:8]}"
    site.start_worker()
    made = site.wait(
        "the pool", lambda: (a := site.http.get(f"work_pools/{site.pool}")).status_code == 200 and a.json()
    )
    assert made["type"] == "dsec-gang"
    assert {"nodes", "devices_per_node", "priority"} <= set(made["base_job_template"]["variables"]["properties"])
    run = site.submit("hello", devices_per_node=1)
    site.wait_state(run, "COMPLETED")


def test_an_automation_starts_a_run_on_the_pool(site: Site) -> None:
    site.start_worker()
    deployment = site.deployment("hello", devices_per_node=1)
    event = f"test.data-arrived.{uuid4().hex}"
    automation = {
        "name": event,
        "trigger": {"type": "event", "expect": [event], "posture": "Reactive", "threshold": 1, "within": 0},
        "actions": [{"type": "run-deployment", "source": "selected", "deployment_id": deployment}],
    }
    made = site.http.post("automations/", json=automation).raise_for_status().json()["id"]
    happened = {
        "id": str(uuid4()),
        "event": event,
        "occurred": "2099-01-01T00:00:00Z",
        "resource": {"prefect.resource.id": "test.data"},
    }
    try:
        site.wait("the automation is loaded", lambda: site.http.get(f"automations/{made}").status_code == 200)

        def emitted() -> bool:
            from datetime import UTC, datetime

            now = datetime.now(UTC).isoformat()
            site.http.post("events", json=[{**happened, "id": str(uuid4()), "occurred": now}]).raise_for_status()
            return bool(runs_of(site, deployment))

        site.wait("a run", emitted)
        site.wait("it completes", lambda: completed(site, deployment))
    finally:
        site.http.delete(f"automations/{made}")


def test_21950_a_subflow_runs_on_its_parents_gang_and_a_resumed_parent_leaves_no_twin_of_it(site: Site) -> None:
    notes = site.home / "notes"
    site.start_worker()
    parent = site.submit(
        "outer", parameters={"where": str(notes), "seconds": 4}, nodes=2, devices_per_node=4, grace=0.5
    )
    site.wait("the subflow runs", lambda: notes.exists())
    site.wait_gang(parent, GangState.RUNNING)
    site.commit(parent)
    urgent = site.submit("hello", nodes=2, devices_per_node=4, priority=50)
    site.wait_state(urgent, "COMPLETED")
    site.wait_state(parent, "COMPLETED", seconds=60)
    assert notes.read_text().splitlines() == ["inner 1", "inner 2"]
    body = {"flow_runs": {"parent_flow_run_id": {"any_": [parent]}}}
    children = site.http.post("flow_runs/filter", json=body).raise_for_status().json()
    states = sorted(child["state_type"] for child in children)
    assert states.count("COMPLETED") == 1
    assert not {"RUNNING", "PENDING", "SCHEDULED"} & set(states), states
    assert {gang.run_id for gang in site.ledger.gangs(site.pool)} == {parent, urgent}
