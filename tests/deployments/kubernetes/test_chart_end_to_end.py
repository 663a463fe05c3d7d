"""The chart's own containers run: applied by `dsec deploy kubernetes`, on nodes whose pods are processes.

Two workers with a ledger on PostgreSQL speak to the API server as their pods' account, with the token that a kubelet
gives them and no right that the chart does not give.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import httpx
import pytest

from dsec_blocks.model.gangs import Gang, GangState
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_deployments.kubernetes import applying
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ACCOUNT_DIRECTORY, ENV_ACCOUNT
from dsec_workers.clusters.kubernetes.naming import key_of, placement_of
from tests.deployments.kubernetes.conftest import token_of
from tests.deployments.kubernetes.test_deploy_kubernetes import dsec
from tests.fakes.kubelet.process_nodes import ProcessNodes, RunningPod
from tests.fixtures.prefect import CLIENT_SETTINGS, PrefectServer
from tests.integration.site import Site
from tests.workers.clusters.kubernetes.conftest import until
from tests.workers.clusters.kubernetes.test_cluster import pods, until_nothing_is_left
from tests.workers.clusters.kubernetes.test_end_to_end import deploy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_SECONDS = 240.0
METRICS_PORT = 9411
AT = "test.chart"
DENIED = re.compile(r'^authorization_attempts_total\{result="(?P<result>[^"]+)"\} (?P<count>\d+)', re.MULTILINE)
REFUSED = re.compile("is forbidden|cannot (get|list|watch|create|patch|delete) |this account may not")


@dataclass
class Release:
    """The chart as it runs: its worker pods, what they answer, and what they have written."""

    namespace: str
    nodes: ProcessNodes
    logs: dict[Path, TextIO] = field(default_factory=dict)

    def workers(self) -> list[RunningPod]:
        """Worker pods whose container runs."""
        found = [pod for pod in self.nodes.pods() if pod.namespace == self.namespace and "worker" in pod.pids]
        for pod in found:
            for path in Path(pod.folder, "logs", "worker").glob("*.log"):
                if path not in self.logs:  # kept open: the files go with their pods
                    self.logs[path] = path.open(errors="replace")
        return [pod for pod in found if pod.pids["worker"] is not None]

    def ask(self, pod: RunningPod, path: str) -> httpx.Response:
        """What a probe or a scraper is answered."""
        return httpx.get(f"http://{pod.ip}:{METRICS_PORT}/{path}", timeout=10, trust_env=False)

    def told(self) -> dict[str, dict[str, Any]]:
        """What each worker answers when it is asked whether it can do its part."""
        answers = {}
        for pod in self.workers():
            try:
                answers[pod.uid] = self.ask(pod, "ready").json()
            except httpx.HTTPError:  # it is just starting, or just going
                continue
        return answers

    def one_leads(self, count: int = 2) -> str | None:
        """The leader's pod, once so many workers are ready and one of them leads."""
        told = self.told()
        leaders = [uid for uid, answer in told.items() if answer["role"] == "leader"]
        is_settled = len(told) == count and all(answer["ok"] for answer in told.values()) and len(leaders) == 1
        return leaders[0] if is_settled else None

    def written(self) -> str:
        """All that workers have written so far."""
        self.workers()
        return "\n".join(log.read() for log in self.logs.values() if log.seek(0) == 0)


@pytest.fixture
def release(cleared: str, process_nodes: ProcessNodes) -> Iterator[Release]:
    found = Release(cleared, process_nodes)
    yield found
    for log in found.logs.values():
        log.close()


@pytest.fixture
def site(prefect_server: PrefectServer, postgres_url: str, tmp_path: Path) -> Iterator[Site]:
    # The chart mounts a /tmp of the pod's own, so the socket's path must not look like one in there.
    server, _, socket = postgres_url.partition("?host=")
    site = Site(server=prefect_server, home=tmp_path, ledger_url=f"{server}?host={socket.replace('/', '%2F')}")
    yield site
    site.close()


async def refused(plane: ControlPlane) -> int:
    """How many requests the API server has refused for want of a right, by its own count."""
    async with httpx.AsyncClient(verify=False, trust_env=False) as client:
        answer = await client.get(f"{plane.server}/metrics", headers={"Authorization": f"Bearer {plane.token}"})
    attempts = DENIED.finditer(answer.raise_for_status().text)
    return sum(int(each["count"]) for each in attempts if each["result"] != "allowed")


def values_of(site: Site, *, team: str, nodes: list[str], folder: Path) -> Path:
    """The values that whoever puts DSec on this cluster would write, and where a process finds its pod's account."""
    environment = {"KUBECONFIG": "", ENV_ACCOUNT: ACCOUNT_DIRECTORY, "DSEC_LEASE_TTL": "3", **CLIENT_SETTINGS}
    path = folder / "values.yaml"
    path.write_text(
        json.dumps(
            {
                "pool": site.pool,
                "gangs": {
                    "namespaces": [team],
                    "nodeSelector": f"kubernetes.io/hostname in ({','.join(nodes)})",
                },
                "worker": {
                    "nodeSelector": {"kubernetes.io/hostname": nodes[0]},
                    "env": [{"name": name, "value": value} for name, value in environment.items()],
                },
            }
        )
    )
    return path


async def make_secret(api: Api, namespace: str, name: str, **values: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}
    await api.apply(path, body, owner="test", at=AT)


def steps_of(notes: Path) -> list[int]:
    file = notes / "steps-a"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def test_two_workers_of_the_chart_lead_in_turn_and_their_gang_does_not_notice(
    kubernetes_api: Api,
    kubernetes: ControlPlane,
    release: Release,
    other_namespace: str,
    site: Site,
    tmp_path: Path,
) -> None:
    namespace, team, notes = release.namespace, other_namespace, tmp_path / "notes"
    nodes = [f"{namespace}-a", f"{namespace}-b"]
    for name in nodes:
        release.nodes.add(name, gpus=2)
    await make_secret(kubernetes_api, namespace, "dsec-prefect", PREFECT_API_URL=site.api_url)
    await make_secret(kubernetes_api, namespace, "dsec-ledger", url=site.ledger_url)
    refused_before = await refused(kubernetes)
    values = values_of(site, team=team, nodes=nodes, folder=tmp_path)
    done = dsec(kubernetes, "-n", namespace, "--values", str(values), "--wait", "10m", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + release.written()[-4000:]
    await until(release.one_leads, PATIENCE_SECONDS)
    for pod in release.workers():
        for path in ("health", "ready", "metrics"):
            answer = release.ask(pod, path)
            assert answer.status_code == 200, answer.text

    deploy(site, "open_ended", nodes=2, devices_per_node=2, grace=120)
    parameters = {"store": str(site.home / "store"), "notes": str(notes), "name": "a"}
    run = site.submit("open_ended", parameters=parameters)
    site.wait("its first steps", lambda: len(steps_of(notes)) > 3, seconds=PATIENCE_SECONDS)
    running = members_of(release, team)
    assert len(running) == 2

    async def is_rolled_out() -> bool:
        deployment = await kubernetes_api.get(path)
        return applying.lacking(deployment) is None and not before & {pod.uid for pod in release.workers()}

    before = {pod.uid for pod in release.workers()}
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/dsec-worker"
    restarted = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    await kubernetes_api.merge(path, {"spec": {"template": {"metadata": {"annotations": restarted}}}}, at=AT)
    await until(is_rolled_out, PATIENCE_SECONDS)
    leader = await until(release.one_leads, PATIENCE_SECONDS)

    pid = release.nodes.pod(leader).pids["worker"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    def is_led_again() -> bool:
        return release.nodes.pod(leader).pids["worker"] not in (None, pid) and release.one_leads() is not None

    await until(is_led_again, PATIENCE_SECONDS)
    seen = len(steps_of(notes))
    site.wait("further steps", lambda: len(steps_of(notes)) > seen + 3, seconds=PATIENCE_SECONDS)
    assert members_of(release, team) == running, "no pod and no process of the gang was touched"
    assert untouched(site.gang(run))
    held = {placement_of(pod) for pod in await pods(kubernetes_api, team) if key_of(pod) == (run, 1)}
    assert {d for member in held for d in member.devices} == {each.device for each in site.ledger.holders(site.pool)}
    (notes / "stop-a").touch()
    site.wait_state(run, "COMPLETED", seconds=PATIENCE_SECONDS)
    assert untouched(site.wait_gang(run, GangState.ENDED, seconds=PATIENCE_SECONDS))
    steps = steps_of(notes)
    assert steps == list(range(len(steps))), "no step was lost or done twice"
    await until_nothing_is_left(kubernetes_api, team)
    assert site.ledger.holders(site.pool) == [] and site.ledger.check(site.pool) == []
    assert await refused(kubernetes) == refused_before, "the rights that the chart gives were enough"
    assert not REFUSED.search(release.written())


async def test_a_request_that_is_refused_is_counted_by_the_api_server(
    kubernetes_api: Api, kubernetes: ControlPlane, namespace: str
) -> None:
    before = await refused(kubernetes)
    token = await token_of(kubernetes_api, namespace, "default")
    async with httpx.AsyncClient(verify=False, trust_env=False) as client:
        answer = await client.get(f"{kubernetes.server}/api/v1/nodes", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 403 and REFUSED.search(answer.text)
    assert await refused(kubernetes) == before + 1


def members_of(release: Release, team: str) -> dict[str, dict[str, int | None]]:
    """The processes of the gangs' pods, by pod."""
    return {pod.uid: pod.pids for pod in release.nodes.pods() if pod.namespace == team}


def untouched(gang: Gang | None) -> bool:
    assert gang is not None
    return (gang.attempt, gang.evictions, gang.infrastructure_restarts) == (1, 0, 0)
