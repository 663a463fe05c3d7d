"""Kubernetes nodes as `plan()` knows nodes.

On device-plugin nodes the kubelet chooses the card, so a device here is a *place* on its node ("n1/nvidia.com/gpu/3"),
reserved by count; which card it became is observed after the start. Places that foreign pods use are frozen, from the
highest free one down, so that the places our gangs hold never change under them.
"""

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any

from dsec_blocks.model.devices import Device, Health, Node
from dsec_workers.clusters.kubernetes.occupancy import Requests
from dsec_workers.clusters.kubernetes.resources import gpu_resource, product, quantity, unit_of

TOPOLOGY_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "dsec.io/block", "dsec.io/rack")
"""From the widest level down; a cluster's own keys replace them in the settings."""
CLOSING_EFFECTS = ("NoSchedule", "NoExecute")


def place(node: str, resource: str, index: int) -> str:
    """The name of one place for a card on a node; unique in the cluster."""
    return f"{node}/{resource}/{index}"


def resource_of(place_name: str) -> str:
    """The resource of a place: "nvidia.com/gpu" of "n1/nvidia.com/gpu/3"."""
    return place_name.partition("/")[2].rpartition("/")[0]


def node_model(
    node: Mapping[str, Any],
    *,
    foreign: Requests,
    held: Collection[str] = (),
    tolerations: Iterable[Mapping[str, Any]] = (),
    topology_labels: Iterable[str] = TOPOLOGY_LABELS,
) -> Node:
    """One node with a device for each card, slice, or part of a card's time that it offers.

    `foreign` is what the ledger does not count there: what pods that are not ours take, and what ours take beyond their
    request. `held` are the places our gangs hold (they are never the ones that foreign use closes).
    """
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    devices: list[Device] = []
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    cpus, memory = (_left(allocatable, foreign, resource) for resource in ("cpu", "memory"))
    for resource, amount in sorted(allocatable.items()):
        gpu = gpu_resource(resource)
        if gpu is None:
            continue
        places = [place(name, resource, index) for index in range(int(quantity(amount)))]
        closed = _closed(places, held, int(foreign.get(resource, Decimal(0))))
        unit = unit_of(gpu, labels, offered=len(places))
        domain = next((labels[key] for key in gpu.vendor.domain_labels if labels.get(key)), name)
        devices += [
            Device(
                uuid=uuid,
                node=name,
                index=len(devices) + index,
                model=product(labels, gpu.vendor),
                memory_bytes=unit.memory_bytes,
                nvlink_domain="" if unit.profile else domain,
                profile=unit.profile,
                health=Health.FROZEN if uuid in closed else Health.HEALTHY,
            )
            for index, uuid in enumerate(places)
        ]
    return Node(
        name=name,
        devices=tuple(devices),
        topology=tuple(labels[key] for key in topology_labels if labels.get(key)),
        labels=dict(labels),
        schedulable=why_closed(node, tolerations=tolerations) is None,
        cpus=None if cpus is None else round(float(cpus), 3),
        memory_bytes=None if memory is None else int(memory),
    )


def _left(allocatable: Mapping[str, Any], foreign: Requests, resource: str) -> Decimal | None:
    """What the ledger may count on; None where the node does not say how much it has."""
    if resource not in allocatable:
        return None
    return max(Decimal(0), quantity(allocatable[resource]) - foreign.get(resource, Decimal(0)))


def why_closed(node: Mapping[str, Any], *, tolerations: Iterable[Mapping[str, Any]] = ()) -> str | None:
    """Why no gang may start on the node now, in words for a person; None when one may.

    We bind pods ourselves, so what kube-scheduler honours is ours to honour: cordons, taints, and readiness.
    """
    spec, name = node.get("spec") or {}, node["metadata"]["name"]
    if node["metadata"].get("deletionTimestamp"):
        return f"node {name} is being deleted"
    conditions = {c["type"]: c["status"] for c in (node.get("status") or {}).get("conditions") or ()}
    if conditions.get("Ready") != "True":
        return f"node {name} is not Ready"
    if spec.get("unschedulable"):
        return f"node {name} is cordoned"
    tolerated = list(tolerations)
    for taint in spec.get("taints") or ():
        if taint["effect"] in CLOSING_EFFECTS and not any(tolerates(t, taint) for t in tolerated):
            return f"node {name} has the taint {in_words(taint)}"
    return None


def in_words(taint: Mapping[str, Any]) -> str:
    """A taint as kubectl writes it: "key=value:effect"."""
    return f"{taint['key']}={taint.get('value') or ''}:{taint['effect']}"


def _closed(places: list[str], held: Collection[str], foreign: int) -> set[str]:
    free = [uuid for uuid in places if uuid not in held]
    return set(free[max(0, len(free) - foreign) :]) if foreign > 0 else set()


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a pod with the toleration may be where the taint is, as Kubernetes compares them."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    operator, key = toleration.get("operator") or "Equal", toleration.get("key") or ""
    if not key:
        return bool(operator == "Exists")
    if key != taint["key"]:
        return False
    return bool(operator == "Exists" or (toleration.get("value") or "") == (taint.get("value") or ""))
