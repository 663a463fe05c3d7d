"""What has to be there before the manifests are applied, and what a pod would otherwise only say by never starting."""

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.names import ENV_LEDGER_URL
from dsec_deployments.kubernetes.chart import Object
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.errors import Forbidden, NotFound


async def check(api: Api, objects: Sequence[Object]) -> None:
    """Nothing, when every Secret that a pod cannot start without is there and the ledger serves all replicas.

    Raises `InvalidRequest` with what is missing and how to make it. Secrets that we may not read are taken to be well.
    """
    for workload in objects:
        if workload["kind"] not in ("Deployment", "DaemonSet") or workload["spec"].get("replicas") == 0:
            continue
        namespace = workload["metadata"]["namespace"]
        for name, reference in _references(workload):
            value = await _value(api, namespace, reference)
            if value is not None and name == ENV_LEDGER_URL:
                _judge(value, workload)


def _references(workload: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for container in workload["spec"]["template"]["spec"]["containers"]:
        for variable in container.get("env") or ():
            reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
            if reference and not reference.get("optional"):
                yield variable["name"], reference


async def _value(api: Api, namespace: str, reference: Mapping[str, Any]) -> str | None:
    name, key = reference["name"], reference["key"]
    how = f"kubectl -n {namespace} create secret generic {name} --from-literal={key}=…"
    try:
        found = await api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except Forbidden:
        return None
    except NotFound:
        raise InvalidRequest(f"there is no Secret {namespace}/{name}. Make it: {how}") from None
    content = found.get("data") or {}
    if key not in content:
        raise InvalidRequest(f"the Secret {namespace}/{name} has no key {key}. Make it anew: {how}")
    return b64decode(content[key]).decode(errors="replace")


def _judge(ledger_url: str, workload: Mapping[str, Any]) -> None:
    replicas = workload["spec"].get("replicas", 1)
    if ledger_url.startswith("sqlite") and (workload["kind"] == "DaemonSet" or replicas > 1):
        kind, name = workload["kind"], workload["metadata"]["name"]
        number = "a pod on every node" if kind == "DaemonSet" else f"{replicas} replicas"
        raise InvalidRequest(
            f"the ledger is an SQLite file, which pods cannot share, and {kind} {name} has {number}. Use a PostgreSQL "
            "database (postgresql+psycopg://…), or set worker.replicas=1 and agent.enabled=false to try it out"
        )
