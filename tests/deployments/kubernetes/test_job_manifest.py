"""A pool's own job manifest on its way to a gang's Jobs: the one that the page shows, and prefect-kubernetes' own."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.form import GangJobConfiguration, default_template, upgraded_template
from tests.workers.clusters.kubernetes.conftest import order_on

PAGE = Path(__file__).parents[3] / "docs/kubernetes.md"


def shown() -> dict[str, Any]:
    """The one template that the page shows."""
    (text,) = re.findall(r"```json\n(.+?)```", PAGE.read_text(), re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def template_with(manifest: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """A new pool's template into which its owner has put a job manifest, and these fields beside the form's own."""
    template = copy.deepcopy(default_template())
    template["job_configuration"]["job_manifest"] = manifest
    template["variables"]["properties"] = {**fields, **template["variables"]["properties"]}
    return template


async def job_of(template: dict[str, Any], **values: Any) -> Any:
    """The Job of a gang of one, as far as Prefect's own templating and our adapter make it."""
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):  # nothing in it asks the server
        async with get_client() as client:
            configuration = await GangJobConfiguration.from_template_and_values(template, values, client=client)
    assert configuration.job_manifest is not None
    order = order_on(["n1"], job_manifest=configuration.job_manifest)
    namespace = configuration.job_manifest["metadata"].get("namespace") or "default"
    (job,) = jobs_of(order, KubernetesSettings(pool="gpus"), namespace=namespace, template=order.job_manifest)
    return job


async def test_the_template_of_the_page_does_what_the_page_says() -> None:
    page = shown()
    template = template_with(page["job_configuration"]["job_manifest"], page["variables"]["properties"])
    job = await job_of(template)
    spec = job["spec"]["template"]["spec"]
    assert job["metadata"]["namespace"] == "team-a" and job["metadata"]["labels"]["cost-centre"] == "research"
    assert "serviceAccountName" not in spec and "imagePullPolicy" not in spec["containers"][0], (
        "empty fields say nothing"
    )
    job = await job_of(template, namespace="team-b", service_account_name="loader", image_pull_policy="Always")
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert (job["metadata"]["namespace"], spec["serviceAccountName"]) == ("team-b", "loader")
    assert container["imagePullPolicy"] == "Always"
    assert [each["secretRef"]["name"] for each in container["envFrom"]] == ["buckets", "dsec-prefect"]
    assert {"name": "SSL_CERT_FILE", "value": "/etc/ca/ca.crt"} in container["env"]
    assert container["resources"]["requests"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    assert {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"} in spec["tolerations"]


def test_an_upgrade_keeps_what_the_page_has_one_put_in() -> None:
    page = shown()
    template = template_with(page["job_configuration"]["job_manifest"], page["variables"]["properties"])
    upgraded = upgraded_template(template)
    assert upgraded["job_configuration"]["job_manifest"] == page["job_configuration"]["job_manifest"]
    assert page["variables"]["properties"].items() <= upgraded["variables"]["properties"].items()


async def test_the_manifest_of_prefect_kubernetes_can_be_copied_over_with_its_fields() -> None:
    worker = pytest.importorskip("prefect_kubernetes.worker", reason="prefect-kubernetes is not installed")
    theirs = worker.KubernetesWorker.get_default_base_job_template()
    template = template_with(theirs["job_configuration"]["job_manifest"], theirs["variables"]["properties"])
    values = {"namespace": "team-b", "service_account_name": "loader", "image": "team/image:3", "env": {"MINE": "1"}}
    job = await job_of(template, **values, labels={"cost-centre": "7"})
    spec = job["spec"]["template"]["spec"]
    container = spec["containers"][0]
    assert (job["metadata"]["namespace"], spec["serviceAccountName"]) == ("team-b", "loader")
    assert job["metadata"]["labels"]["cost-centre"] == "7" and "generateName" not in job["metadata"]
    assert container["image"] == "team/image:3" and {"name": "MINE", "value": "1"} in container["env"]
    assert (job["spec"]["backoffLimit"], job["spec"]["completions"]) == (0, 1) and "args" not in container
    assert "{{" not in json.dumps({**job, "spec": {**job["spec"], "template": {}}}), (
        "every field was filled in or left out"
    )


@pytest.mark.slow
async def test_the_api_server_takes_the_job_that_the_page_makes(kubernetes_api: Api, namespace: str) -> None:
    page = shown()
    template = template_with(page["job_configuration"]["job_manifest"], page["variables"]["properties"])
    job = await job_of(template, namespace=namespace)
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    made = await kubernetes_api.create(path, job, at="test.job", dry_run=True)
    assert made["metadata"]["labels"]["cost-centre"] == "research"
