"""What the chart says about watching: where metrics are, who may ask, and what a kubelet asks."""

from typing import Any

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_deployments.kubernetes import chart
from dsec_workers.clusters.kubernetes.api import Object
from dsec_workers.node_agent.api import Api as AgentApi
from dsec_workers.settings import WorkerSettings
from dsec_workers.worker_api import WorkerApi
from tests.deployments.kubernetes.conftest import rendered

FROM = "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring"
SCRAPER = {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}


def one(objects: list[Object], kind: str, name: str) -> Any:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def container(objects: list[Object], kind: str, name: str) -> Any:
    return one(objects, kind, name)["spec"]["template"]["spec"]["containers"][0]


def test_a_worker_listens_where_its_annotations_its_port_and_its_probes_say() -> None:
    objects = rendered("x", "metrics.port=9500")
    worker = container(objects, "Deployment", "dsec-worker")
    env = {each["name"]: each for each in worker["env"]}
    host = env["DSEC_METRICS_HOST"]["valueFrom"]["fieldRef"]
    assert host == {"fieldPath": "status.podIP"}, "a kubelet asks there, not on the loopback"
    settings = WorkerSettings.from_environment({"DSEC_METRICS_PORT": env["DSEC_METRICS_PORT"]["value"]})
    assert settings.metrics_port == 9500
    assert worker["ports"] == [{"name": "metrics", "containerPort": 9500}]
    annotations = one(objects, "Deployment", "dsec-worker")["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": "9500",
    }
    for probe, path in [("startupProbe", "/health"), ("livenessProbe", "/health"), ("readinessProbe", "/ready")]:
        assert worker[probe]["httpGet"] == {"path": path, "port": "metrics"}


def test_the_paths_that_the_chart_names_are_answered() -> None:
    api = WorkerApi.__new__(WorkerApi)  # its routes need no worker
    assert {route.path for route in api.app().routes} >= {"/health", "/ready", "/metrics"}  # type: ignore[attr-defined]


def test_an_agent_is_probed_by_paths_that_it_answers_without_a_token() -> None:
    agent = container(rendered("x", "agent.enabled=true"), "DaemonSet", "dsec-agent")
    for probe, path in [("startupProbe", "/alive"), ("livenessProbe", "/alive"), ("readinessProbe", "/ready")]:
        assert agent[probe]["httpGet"] == {"path": path, "port": "metrics"}
        port = agent["command"][agent["command"].index("--port") + 1]
        assert agent["ports"] == [{"name": "metrics", "containerPort": int(port)}]
    api = AgentApi.__new__(AgentApi)  # its routes need no cache
    api._metrics_are_open = True
    open_to_all = {route.path: route.endpoint for route in api.app().routes}  # type: ignore[attr-defined]
    assert (open_to_all["/alive"], open_to_all["/ready"]) == (api.alive, api.ready)


def test_agents_are_scraped_too_and_nobody_is_where_that_is_switched_off() -> None:
    agent = one(rendered("x", "agent.enabled=true"), "DaemonSet", "dsec-agent")
    assert agent["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == "9410"
    for item in rendered("x", "agent.enabled=true", "metrics.scrape=false"):
        if item["kind"] in ("Deployment", "DaemonSet"):
            assert "annotations" not in item["spec"]["template"]["metadata"]


@pytest.mark.parametrize(("name", "port"), [("dsec-worker", 9411), ("dsec-agent", 9410)])
def test_nobody_connects_to_worker_or_agent_but_the_scrapers_that_the_values_name(name: str, port: int) -> None:
    closed = one(rendered("x", "agent.enabled=true"), "NetworkPolicy", name)["spec"]
    assert "Ingress" in closed["policyTypes"] and "ingress" not in closed
    opened = one(rendered("x", "agent.enabled=true", FROM), "NetworkPolicy", name)["spec"]
    assert opened["ingress"] == [{"from": [SCRAPER], "ports": [{"protocol": "TCP", "port": port}]}]


def test_the_rules_are_a_config_map_only_where_somebody_wants_them_and_word_for_word() -> None:
    assert not [each for each in rendered("x") if each["kind"] == "ConfigMap"]
    found = one(rendered("x", "metrics.rules=true", "metrics.rulesLabels.prometheus=main"), "ConfigMap", "dsec-rules")
    assert found["metadata"]["labels"]["prometheus"] == "main"
    prometheus = chart.folder().parents[1] / "prometheus" / "rules.yaml"
    assert found["data"] == {"dsec-rules.yaml": prometheus.read_text()}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("metrics.port=80", "/metrics/port.*minimum"),
        ("metrics.ports=9411", "additional properties 'ports' not allowed"),
        ("networkPolicy.metricsFrom=monitoring", "/networkPolicy/metricsFrom.*array"),
        ("metrics.rules=maybe", "/metrics/rules.*boolean"),
    ],
)
def test_values_about_metrics_that_mean_nothing_are_refused(value: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        rendered("x", value)
