"""A worker of a newer version, however it was started, brings its pool's form up to date and keeps the edits."""

import copy
from typing import Any

import pytest

from dsec_workers.form import SHIPPED, default_template
from tests.crash.cases import seed
from tests.fixtures.rotation import in_turn
from tests.integration.site import Site

pytestmark = pytest.mark.slow
NEW = "max_runtime"


def _older(site: Site) -> None:
    """The pool as a version without the field `NEW` made it, with two edits of its owner."""
    template = copy.deepcopy(default_template())
    for shipped in (template, template[SHIPPED]["shipped"]):
        del shipped["variables"]["properties"][NEW]
        del shipped["job_configuration"][NEW]
    template["variables"]["properties"]["priority"]["default"] = 7
    template["variables"]["properties"]["cost_center"] = {"type": "string", "default": "x1"}
    body = {"base_job_template": template}
    site.http.patch(f"work_pools/{site.pool}", json=body).raise_for_status()


def _fields(site: Site) -> dict[str, Any]:
    pool: dict[str, Any] = site.http.get(f"work_pools/{site.pool}").raise_for_status().json()
    fields: dict[str, Any] = pool["base_job_template"]["variables"]["properties"]
    return fields


@pytest.mark.parametrize(
    "fault", ["", *in_turn(["kill_before", "lost:1", "kill_after", "error:1"], day=seed(), days=2)]
)
def test_the_form_has_the_new_field_and_the_edits_and_a_run_uses_them(site: Site, fault: str) -> None:
    _older(site)
    assert NEW not in _fields(site)
    worker = site.start_worker(**({"DSEC_FAULT": f"prefect.template.write:{fault}"} if fault else {}))
    if fault.startswith("kill"):
        site.wait("the worker to be killed", lambda: worker.poll() is not None)
        site.start_worker()
    site.wait("the new field", lambda: NEW in _fields(site))
    fields = _fields(site)
    assert fields["priority"]["default"] == 7
    assert fields["cost_center"]["default"] == "x1"
    run = site.submit("hello", devices_per_node=1, max_runtime="1h")
    site.wait_state(run, "COMPLETED")
    gang = site.gang(run)
    assert gang is not None
    assert (gang.request.priority, gang.request.max_runtime_seconds) == (7, 3600.0)
