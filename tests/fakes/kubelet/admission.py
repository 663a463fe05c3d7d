"""Whether a kubelet takes a pod that was bound to it: nobody else looks again, so it may have been bound wrongly.

Reasons and messages are those of Kubernetes (pkg/kubelet/lifecycle/predicate.go).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dsec_workers.clusters.kubernetes.occupancy import pod_requests
from dsec_workers.clusters.kubernetes.resources import quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a pod was not taken: it goes to phase Failed with these."""

    reason: str
    message: str


def refusal(pod: Mapping[str, Any], node: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> Refusal | None:
    """Why `node` does not take `pod` beside `others`; None when it does. Devices are looked at by `devices`."""
    if not _matches(pod["spec"], node):
        return Refusal(
            reason="NodeAffinity",
            message="Pod was rejected: Predicate NodeAffinity failed: "
            "node(s) didn't match Pod's node affinity/selector",
        )
    others = list(others)
    allocatable = node["status"]["allocatable"]
    asked = pod_requests(pod) | {"pods": Decimal(1)}
    for name in ("pods", "cpu", "memory"):
        taken = sum((pod_requests(p).get(name, Decimal(0)) for p in others), Decimal(0))
        taken = Decimal(len(others)) if name == "pods" else taken
        capacity = quantity(allocatable[name])
        if asked.get(name) and taken + asked[name] > capacity:
            return Refusal(
                reason=f"OutOf{name}",
                message=f"Pod was rejected: Node didn't have enough resource: {name}, "
                f"requested: {asked[name]}, used: {taken}, capacity: {capacity}",
            )
    for name in asked:
        if "/" in name and name not in allocatable:
            return Refusal(
                reason=f"OutOf{name}",
                message=f"Pod was rejected: Node didn't have enough resource: {name}, "
                f"requested: {asked[name]}, used: 0, capacity: 0",
            )
    return None


def _matches(spec: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not affinity:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(_holds(rule, labels) for rule in term.get("matchExpressions") or ())
        and all(_holds(rule, fields) for rule in term.get("matchFields") or ())
        for term in affinity["nodeSelectorTerms"]
        if term
    )


def _holds(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(rule["key"]), rule.get("values") or []
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
    raise ValueError(f"node selector operator {rule['operator']!r}")
