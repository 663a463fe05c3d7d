"""Why pods are missing, asked by many gangs at once while a controller is slow."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.complaints import REREAD_SECONDS, Complaints
from tests.fixtures.clock import ManualClock
from tests.workers.clusters.kubernetes.conftest import AT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def complain(api: Api, job: dict[str, Any], message: str, reason: str = "FailedCreate") -> None:
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    about = {"kind": "Job", "namespace": namespace, "name": name, "uid": job["metadata"]["uid"]}
    event = {"metadata": {"name": f"{name}.{uuid4().hex}"}, "involvedObject": about, "reason": reason}
    await api.create(f"/api/v1/namespaces/{namespace}/events", {**event, "message": message}, at=AT)


async def test_gangs_whose_pods_are_late_together_have_the_events_read_once_and_each_hears_its_own(
    kubernetes_api: Api, namespace: str
) -> None:
    jobs = [{"metadata": {"namespace": namespace, "name": f"job-{i}", "uid": f"uid-{i}"}} for i in range(100)]
    await complain(kubernetes_api, jobs[0], "exceeded quota: small")
    await complain(kubernetes_api, jobs[1], "Created pod", reason="SuccessfulCreate")
    clock = ManualClock()
    complaints, before = Complaints(kubernetes_api, clock=clock), kubernetes_api.calls.get("GET", 0)
    heard = await asyncio.gather(*(complaints.about(job) for job in jobs))
    assert heard == ["exceeded quota: small", *[None] * 99]
    assert kubernetes_api.calls["GET"] == before + 1, "the API server reads all events for each list"

    await complain(kubernetes_api, jobs[2], "denied by a hook")
    clock.advance(REREAD_SECONDS * 1.5)
    assert await complaints.about(jobs[2]) == "denied by a hook", "what comes later is heard too"
