"""Whether a kubelet takes a pod that was bound to it: nobody else looks again, so it may have been bound wrongly.

Rules, reasons and messages are those of Kubernetes 1.36 (pkg/kubelet/lifecycle/predicate.go): of taints only NoExecute
counts, and an extended resource that the node has never heard of is not its business.
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
        return _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    others = list(others)
    allocatable = node["status"]["allocatable"]
    asked = pod_requests(pod) | {"pods": Decimal(1)}
    for name in ("pods", "cpu", "memory"):
        taken = sum((pod_requests(p).get(name, Decimal(0)) for p in others), Decimal(0))
        taken = Decimal(len(others)) if name == "pods" else taken
        capacity = quantity(allocatable[name])
        if asked.get(name) and taken + asked[name] > capacity:
            unit = 1000 if name == "cpu" else 1
            return out_of(
                name, requested=int(asked[name] * unit), used=int(taken * unit), capacity=int(capacity * unit)
            )
    tolerations = pod["spec"].get("tolerations") or ()
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] == "NoExecute" and not any(_tolerates(t, taint) for t in tolerations):
            return _failed("TaintToleration", "node(s) had untolerated taint(s)")
    return None


def out_of(resource: str, *, requested: int, used: int, capacity: int) -> Refusal:
    """The refusal of a pod for which the node has not enough of a resource."""
    numbers = f"requested: {requested}, used: {used}, capacity: {capacity}"
    message = f"Pod was rejected: Node didn't have enough resource: {resource}, {numbers}"
    return Refusal(reason=f"OutOf{resource}", message=message)


def _failed(predicate: str, why: str) -> Refusal:
    return Refusal(reason=predicate, message=f"Pod was rejected: Predicate {predicate} failed: {why}")


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    is_equal = (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(toleration["key"] == taint["key"] and (toleration.get("operator") == "Exists" or is_equal))


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
