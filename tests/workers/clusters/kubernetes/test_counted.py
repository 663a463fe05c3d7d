"""Processors and memory: what a run's request says, what its pods ask for, and what the ledger counts are the same."""

from dataclasses import replace
from typing import Any

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import GangRequest, parse_request
from dsec_workers.clusters.kubernetes.counted import asked_in, beyond
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.occupancy import pod_requests
from dsec_workers.form import GangJobConfiguration
from tests.workers.clusters.kubernetes.conftest import order_on
from tests.workers.clusters.kubernetes.test_manifest import SETTINGS

GIB = 2**30


def manifest(resources: Any, *others: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"resources": resources}, *others]}}}}


def request_of(template: Any, **variables: Any) -> GangRequest:
    return parse_request(GangJobConfiguration(job_manifest=template, **variables).request_variables)


def pod_of_run(request: GangRequest, template: Any) -> dict[str, Any]:
    order = replace(order_on(["a"]), request=request)
    (job,) = jobs_of(order, SETTINGS, namespace="team", template=template)
    return job["spec"]["template"]


@pytest.mark.parametrize(
    ("resources", "variables", "asked"),
    [
        pytest.param({}, {}, (None, None), id="nobody says anything"),
        pytest.param({"requests": {"cpu": "1500m", "memory": "4Gi"}}, {}, (1.5, 4 * GIB), id="the manifest"),
        pytest.param({"limits": {"memory": "1000000"}}, {}, (None, 1_000_000), id="a limit alone is a request too"),
        pytest.param({"requests": {"cpu": "4"}}, {"cpus": "2.003"}, (2.003, None), id="the run, over the manifest"),
        pytest.param({"requests": {"cpu": None, "memory": None}}, {}, (None, None), id="placeholders left empty"),
        pytest.param({"requests": {"cpu": 0}}, {}, (None, None), id="nothing, in so many words"),
    ],
)
def test_what_a_member_asks_for_and_what_its_pod_asks_for_agree(
    resources: Any, variables: dict[str, Any], asked: tuple[float | None, int | None]
) -> None:
    template = manifest(resources)
    request = request_of(template, **variables)
    assert (request.cpus, request.memory_bytes) == asked
    pod = pod_of_run(request, template)
    found = pod_requests(pod)
    assert [float(found.get(name, 0)) for name in ("cpu", "memory")] == [amount or 0 for amount in asked]
    assert beyond(pod) == {}


def test_what_is_added_to_a_pod_beside_its_gangs_container_is_told_apart() -> None:
    sidecar = {"name": "logs", "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "1Gi"}}}
    template = manifest({"requests": {"cpu": "4"}}, sidecar)
    pod = pod_of_run(request_of(template), template)
    assert {name: float(amount) for name, amount in beyond(pod).items()} == {"cpu": 0.25, "memory": float(GIB)}
    pod["metadata"]["annotations"] = {}
    assert beyond(pod) == {}, "a pod of an older DSec says nothing, and is believed to be what its request says"


@pytest.mark.parametrize("broken", [None, "text", {"spec": []}, {"spec": {"template": {"spec": {"containers": {}}}}}])
def test_a_manifest_of_another_shape_asks_for_nothing(broken: Any) -> None:
    assert asked_in(broken) == {}


def test_a_manifest_that_asks_for_no_quantity_is_a_reason_on_the_runs_page() -> None:
    with pytest.raises(InvalidRequest, match="'much' is not a Kubernetes quantity"):
        request_of(manifest({"requests": {"memory": "much"}}))
