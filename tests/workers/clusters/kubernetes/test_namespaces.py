"""A namespace's rules are followed from the moment in which a run names it, whatever hindered that at first."""

import pytest

from dsec_workers.clusters.kubernetes import namespaces as module
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.namespaces import Namespaces
from dsec_workers.clusters.kubernetes.roster import Roster
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.supply import Supply
from tests.fixtures.clock import ManualClock
from tests.fixtures.slow_api import Refusal, SlowApi
from tests.workers.clusters.kubernetes.conftest import AT, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("status", "reason"), [(403, "Forbidden"), (500, "Broken")])
@pytest.mark.parametrize("kind", module.KINDS)
async def test_quotas_that_could_not_be_read_when_a_run_first_named_its_namespace_were_never_looked_at_again(
    kubernetes_api: Api,
    slow_api: SlowApi,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    reason: str,
    kind: str,
) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr("dsec_workers.clusters.kubernetes.api.TRIES", 1)
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}
    await kubernetes_api.create(f"/api/v1/namespaces/{namespace}/resourcequotas", quota, at=AT)
    settings = KubernetesSettings(pool="gpus", namespace="elsewhere")
    async with await Api.connect(ClusterAccess(kubeconfig=slow_api.kubeconfig)) as api:
        found = Namespaces(
            api, settings, supply=Supply(settings, clock=ManualClock()), roster=Roster(pool="gpus"), clock=ManualClock()
        )
        slow_api.refusals.append(
            Refusal(fits=lambda request: request.path.endswith(kind), status=status, reason=reason, message="not now")
        )
        try:
            assert found.rules(namespace) is None
            rules = await until(lambda: found.rules(namespace))
            assert [each["metadata"]["name"] for each in rules.quotas] == ["gpus"] and not slow_api.refusals
            assert len(found.mirrors) == len(module.KINDS), "what was begun for nothing was stopped"
        finally:
            await found.close()
