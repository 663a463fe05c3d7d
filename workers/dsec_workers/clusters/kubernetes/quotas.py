"""ResourceQuotas as the API server counts them: what a pod costs, which quotas it counts for, what they leave. Pure.

Names are those that quotas use: an extended resource counts by its requests alone (`requests.nvidia.com/gpu`),
processors and memory by requests and by limits, and by a plain name that means requests.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dsec_workers.clusters.kubernetes.occupancy import Requests, limits_of, pod_limits, pod_requests, requests_of
from dsec_workers.clusters.kubernetes.resources import quantity

Object = Mapping[str, Any]
_COMPUTE = ("cpu", "memory")
_PLAIN = (*_COMPUTE, "ephemeral-storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A quota that lets no more in. `is_for_ever`: not even an empty namespace has enough."""

    quota: str
    resource: str
    used: Decimal
    hard: Decimal
    needed: Decimal

    @property
    def is_for_ever(self) -> bool:
        """Whether waiting cures nothing."""
        return self.needed > self.hard

    def __str__(self) -> str:
        if self.is_for_ever:
            return f"{self.resource}: {self.hard:f} in all, {self.needed:f} needed"
        return f"{self.resource}: {self.used:f} of {self.hard:f} used"


def charge(pod: Object) -> Requests:
    """What one pod (or template, defaults filled in) and its Job count in a namespace, by the names of quotas."""
    found: Requests = {"pods": Decimal(1), "count/pods": Decimal(1), "count/jobs.batch": Decimal(1)}
    for name, amount in pod_requests(pod).items():
        found[f"requests.{name}"] = amount
        if name in _PLAIN:
            found[name] = amount
    for name, amount in pod_limits(pod).items():
        if name in _PLAIN:
            found[f"limits.{name}"] = amount
    return found


def counting(pod: Object, quotas: Iterable[Object]) -> Iterator[Object]:
    """Those of the quotas that such a pod counts for."""
    for quota in quotas:
        spec = quota.get("spec") or {}
        selected = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
        wanted = [(scope, "Exists", ()) for scope in spec.get("scopes") or ()]
        wanted += [(each["scopeName"], each["operator"], each.get("values") or ()) for each in selected]
        if all(_in_scope(pod["spec"], *scope) for scope in wanted):
            yield quota


def hard(quota: Object) -> Requests:
    """What a quota allows in all."""
    return _amounts((quota.get("status") or {}).get("hard") or (quota.get("spec") or {}).get("hard"))


def used(quota: Object) -> Requests:
    """What a quota has counted so far: pods that exist and have not finished."""
    return _amounts((quota.get("status") or {}).get("used"))


def unsaid(pod: Object, quota: Object) -> str | None:
    """What the quota counts and the pod does not say: the API server refuses such pods. None when all is said."""
    counted = hard(quota)
    for container in [*(pod["spec"].get("initContainers") or ()), *(pod["spec"].get("containers") or ())]:
        for name in _COMPUTE:
            if (name in counted or f"requests.{name}" in counted) and name not in requests_of(container):
                return f"requests.{name}"
            if f"limits.{name}" in counted and name not in limits_of(container):
                return f"limits.{name}"
    return None


def shortage(quota: Object, needed: Mapping[str, Decimal], besides: Mapping[str, Decimal] = {}) -> Shortage | None:
    """What the quota lacks for `needed` (by the names of quotas); `besides` is used too, though not counted yet."""
    counted, worst = used(quota), None
    for name, most in hard(quota).items():
        amount = needed.get(name, Decimal(0))
        taken = counted.get(name, Decimal(0)) + besides.get(name, Decimal(0))
        if amount > 0 and taken + amount > most:
            found = Shortage(quota=quota["metadata"]["name"], resource=name, used=taken, hard=most, needed=amount)
            worst = found if worst is None or found.is_for_ever else worst
    return worst


def _amounts(given: Mapping[str, Any] | None) -> Requests:
    return {name: quantity(amount) for name, amount in (given or {}).items()}


def _in_scope(spec: Object, scope: str, operator: str, values: Iterable[str]) -> bool:
    if scope == "PriorityClass":
        name = spec.get("priorityClassName") or ""
        answers = {"In": name in values, "NotIn": name not in values, "Exists": bool(name), "DoesNotExist": not name}
        return answers.get(operator, False)
    if scope in ("Terminating", "NotTerminating"):
        return (spec.get("activeDeadlineSeconds") is not None) == (scope == "Terminating")
    if scope in ("BestEffort", "NotBestEffort"):
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        says = any(name in requests_of(each) for each in containers for name in _COMPUTE)
        return says == (scope == "NotBestEffort")
    return False  # a scope that our pods cannot be in, or that is newer than this
