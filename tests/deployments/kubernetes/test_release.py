"""What a former call made and this one does not goes away, or all of it, and never from under gangs that run."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_deployments.control_plane.simulated_nodes import manifest as node
from dsec_deployments.kubernetes import applying, release
from dsec_deployments.kubernetes.chart import OWNER
from dsec_deployments.kubernetes.kinds import name_of
from dsec_workers.clusters.kubernetes.api import Api
from tests.deployments.kubernetes.conftest import EVERYTHING, filled, rendered
from tests.deployments.kubernetes.test_deploy_kubernetes import dsec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
AT = "test.release"


@pytest_asyncio.fixture
async def ready(kubernetes_api: Api, cleared: str) -> AsyncIterator[str]:
    """A namespace that the command can deploy into: a node, and the Secrets of Prefect and the ledger."""
    await kubernetes_api.create("/api/v1/nodes", node(f"{cleared}-node"), at=AT)
    for name, key, value in (
        ("dsec-prefect", "PREFECT_API_URL", "http://prefect:4200/api"),
        ("dsec-ledger", "url", "postgresql+psycopg://ledger/dsec"),
    ):
        body = {"metadata": {"name": name}, "stringData": {key: value}}
        await kubernetes_api.create(f"/api/v1/namespaces/{cleared}/secrets", body, at=AT)
    yield cleared
    await kubernetes_api.delete(f"/api/v1/nodes/{cleared}-node", at=AT)


async def names(api: Api, namespace: str, name: str = "dsec") -> set[str]:
    return {
        name_of(item) for item in (await release.present(api, release.Release(name=name, namespace=namespace))).objects
    }


def gang(name: str, *, pool: str = "dsec") -> dict[str, object]:
    """A Job as the worker makes them, as far as its being there goes."""
    metadata = {"name": name, "labels": {"dsec.io/pool": pool}, "annotations": {"dsec.io/run-name": f"run-{name}"}}
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
    return {"metadata": metadata, "spec": {"suspend": True, "template": pod}}


def test_everything_that_the_chart_makes_can_be_found_again() -> None:
    for values in ((), filled(EVERYTHING, "x", "y")):
        for item in rendered("x", *values, release="pool-a"):
            assert (item["apiVersion"], item["kind"]) in release.KINDS, name_of(item)
            labels = item["metadata"]["labels"]
            mine = release.Release(name="pool-a", namespace="x").labels
            assert {f"{name}={value}" for name, value in labels.items()} >= set(mine.split(",")), name_of(item)
            assert labels["app.kubernetes.io/managed-by"] in (OWNER, "dsec"), "not helm, which knows no such release"


async def test_what_the_values_no_longer_ask_for_goes_and_nothing_else(
    kubernetes_api: Api, kubernetes: ControlPlane, ready: str, other_namespace: str, tmp_path: Path
) -> None:
    labels = dict(part.split("=") for part in release.Release(name="dsec", namespace=ready).labels.split(","))
    foreign = {"metadata": {"name": "theirs", "labels": labels}}
    await kubernetes_api.create(f"/api/v1/namespaces/{ready}/configmaps", foreign, at=AT)
    own = ("gangs.priorityClass.create=false", "gangs.secret=dsec-b", "gangs.serviceAccount=dsec-b-member")
    beside = rendered(ready, *own, release="dsec-b")
    await applying.apply(kubernetes_api, beside)
    before = await names(kubernetes_api, ready, "dsec-b")
    more = ("agent.enabled=true", "metrics.rules=true", f"gangs.namespaces={{{ready},{other_namespace}}}")
    await applying.apply(kubernetes_api, rendered(ready, *more))
    extra = await names(kubernetes_api, ready) - {name_of(item) for item in rendered(ready)}
    assert {f"Role {other_namespace}/{ready}-dsec-worker", f"DaemonSet {ready}/dsec-agent"} <= extra
    shown = dsec(kubernetes, "-n", ready, "--dry-run=server", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("gone") == len(extra) and await names(kubernetes_api, ready) >= extra
    done = dsec(kubernetes, "-n", ready, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{len(extra)} that the values no longer ask for are gone" in done.stdout
    assert await names(kubernetes_api, ready) == {name_of(item) for item in rendered(ready)}
    assert await names(kubernetes_api, ready, "dsec-b") == before, "another release in the same namespace"
    assert await kubernetes_api.get(f"/api/v1/namespaces/{ready}/configmaps/theirs"), "labels alone make nothing ours"
    again = dsec(kubernetes, "-n", ready, cwd=tmp_path)
    assert again.returncode == 0 and "no longer ask" not in again.stdout
    await release.remove_all(
        kubernetes_api, release.Release(name="dsec-b", namespace=ready), clock=SystemClock(), seconds=60.0
    )


async def test_a_namespace_with_gangs_is_not_given_up_before_they_have_left(
    kubernetes_api: Api, kubernetes: ControlPlane, ready: str, other_namespace: str, tmp_path: Path
) -> None:
    both = f"gangs.namespaces={{{ready},{other_namespace}}}"
    await applying.apply(kubernetes_api, rendered(ready, both))
    before = await names(kubernetes_api, ready)
    jobs = f"/apis/batch/v1/namespaces/{other_namespace}/jobs"
    for name in "abcd":
        await kubernetes_api.create(jobs, gang(name), at=AT)
    await kubernetes_api.create(jobs, gang("z", pool="another"), at=AT)
    for words in ((), ("--delete",)):
        done = dsec(kubernetes, "-n", ready, *words, cwd=tmp_path)
        assert done.returncode == 3 and len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert f"gangs still run in namespace {other_namespace}" in done.stderr
        assert "run-a, run-b, run-c and 1 more. Nothing was taken away." in done.stderr
        assert await names(kubernetes_api, ready) == before
    for name in "abcd":
        await kubernetes_api.delete(f"{jobs}/{name}", propagation="Background", at=AT)
    done = dsec(kubernetes, "-n", ready, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    left = await names(kubernetes_api, ready)
    assert left < before and not [name for name in left if other_namespace in name], "another pool's gangs are not ours"


async def test_a_release_is_taken_away_whole_and_what_is_the_users_stays(
    kubernetes_api: Api, kubernetes: ControlPlane, ready: str, other_namespace: str, tmp_path: Path
) -> None:
    values = filled(EVERYTHING, ready, other_namespace)
    await applying.apply(kubernetes_api, rendered(ready, *values))
    shown = dsec(kubernetes, "-n", ready, "--delete", "--dry-run=server", cwd=tmp_path)
    assert f"{len(rendered(ready, *values))} objects would go; nothing was changed" in shown.stdout, shown.stderr
    assert await names(kubernetes_api, ready) == {name_of(item) for item in rendered(ready, *values)}
    done = dsec(kubernetes, "-n", ready, "--delete", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{len(rendered(ready, *values))} objects of dsec in {ready} are gone" in done.stdout
    assert not await names(kubernetes_api, ready)
    secrets, _ = await kubernetes_api.list(f"/api/v1/namespaces/{ready}/secrets")
    assert {each["metadata"]["name"] for each in secrets} >= {"dsec-prefect", "dsec-ledger"}
    again = dsec(kubernetes, "-n", ready, "--delete", cwd=tmp_path)
    assert again.returncode == 0 and "nothing was taken away" in again.stdout, again.stderr


async def test_what_helm_installed_is_left_to_helm(kubernetes_api: Api, cleared: str) -> None:
    for item in rendered(cleared):
        if item["kind"] in ("ServiceAccount", "Secret"):
            path = f"/api/v1/namespaces/{cleared}/{item['kind'].lower()}s/{item['metadata']['name']}"
            await kubernetes_api.apply(path, item, owner="helm", at=AT)
    assert not await names(kubernetes_api, cleared)


async def test_a_cluster_whose_nodes_another_clusters_worker_uses_needs_no_secrets_of_it(
    kubernetes_api: Api, kubernetes: ControlPlane, cleared: str, tmp_path: Path
) -> None:
    done = dsec(kubernetes, "-n", cleared, "--set=worker.replicas=0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {f"ServiceAccount {cleared}/dsec-worker", f"ServiceAccount {cleared}/dsec-member"} <= await names(
        kubernetes_api, cleared
    )
