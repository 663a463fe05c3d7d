"""What pods take on a node, counted as kube-scheduler and the kubelet count it.

Foreign pods share the nodes with our gangs; whoever places pods past kube-scheduler has to see what it has already
promised. Rules: containers and sidecars run together, init containers before them and one at a time (KEP-753);
overhead is added; a pod that is Terminating counts until its containers have stopped; a finished pod that a finalizer
keeps does not; a pod that preempts counts on the node it is nominated to.
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from dsec_workers.clusters.kubernetes.resources import quantity

Requests = dict[str, Decimal]


def pod_requests(pod: Mapping[str, Any]) -> Requests:
    """What this pod may use at once, by resource name."""
    return _total(pod["spec"], requests_of)


def pod_limits(pod: Mapping[str, Any]) -> Requests:
    """The limits of this pod's containers, added up in the same way."""
    return _total(pod["spec"], limits_of)


def _total(spec: Mapping[str, Any], of: Callable[[Mapping[str, Any]], Requests]) -> Requests:
    running: Requests = {}
    for container in spec.get("containers") or ():
        _add(running, of(container))
    peak: Requests = {}
    sidecars: Requests = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            _add(sidecars, of(container))
            _raise_to(peak, sidecars)
        else:
            alone = dict(sidecars)
            _add(alone, of(container))
            _raise_to(peak, alone)
    _add(running, sidecars)
    _raise_to(running, peak)
    running.update(of(spec))  # pod-level requests, where given, stand for all containers
    _add(running, {name: quantity(amount) for name, amount in (spec.get("overhead") or {}).items()})
    return running


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Whether its containers have stopped for good, whatever still keeps the object."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def node_of(pod: Mapping[str, Any]) -> str | None:
    """The node it is bound to, or nominated to while it waits for its victims there."""
    return pod["spec"].get("nodeName") or (pod.get("status") or {}).get("nominatedNodeName") or None


def taken_by_node(pods: Iterable[Mapping[str, Any]]) -> dict[str, Requests]:
    """By node, what these pods take together."""
    taken: dict[str, Requests] = {}
    for pod in pods:
        node = node_of(pod)
        if node is not None and not is_finished(pod):
            _add(taken.setdefault(node, {}), pod_requests(pod))
    return taken


def requests_of(holder: Mapping[str, Any]) -> Requests:
    """The requests of a container, or of a whole pod."""
    resources = holder.get("resources") or {}
    # A limit alone is a request too; the API server fills it in, a raw template may not.
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in amounts.items() if amount is not None}


def limits_of(holder: Mapping[str, Any]) -> Requests:
    """The limits of a container, or of a whole pod."""
    amounts = (holder.get("resources") or {}).get("limits") or {}
    return {name: quantity(amount) for name, amount in amounts.items() if amount is not None}


def _add(to: Requests, more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, Decimal(0)) + amount


def _raise_to(to: Requests, least: Mapping[str, Decimal]) -> None:
    for name, amount in least.items():
        to[name] = max(to.get(name, Decimal(0)), amount)
