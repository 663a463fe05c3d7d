"""LimitRanges as the API server's admission reads them: what it adds to containers, and what it refuses. Pure."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from dsec_workers.clusters.kubernetes.occupancy import Requests, limits_of, pod_limits, pod_requests, requests_of
from dsec_workers.clusters.kubernetes.resources import quantity

Object = Mapping[str, Any]


def with_defaults(pod: Object, ranges: Iterable[Object]) -> dict[str, Any]:
    """The pod (or template) with the requests and limits that these LimitRanges give to containers without."""
    filled = copy.deepcopy(dict(pod))
    items = [item for _, item in _items(ranges, "Container")]
    for container in _containers(filled["spec"]):
        resources = container["resources"] = dict(container.get("resources") or {})
        limits = dict(resources.get("limits") or {})
        requests = {**limits, **(resources.get("requests") or {})}
        for item in items:
            limits = {**(item.get("default") or {}), **limits}
            requests = {**(item.get("defaultRequest") or {}), **requests}
        resources.update(limits=limits, requests=requests)
    return filled


def refusal(pod: Object, ranges: Iterable[Object]) -> str | None:
    """Why these LimitRanges let no such pod (defaults filled in) in, in words for a person; None when they do."""
    ranges = list(ranges)
    for kind, asked in _asked(pod):
        for name, item in _items(ranges, kind):
            why = _breach(item, *asked)
            if why is not None:
                return f"limit range {name} allows a {kind.lower()} {why}"
    return None


def _asked(pod: Object) -> Iterator[tuple[str, tuple[Requests, Requests]]]:
    for container in _containers(pod["spec"]):
        yield "Container", (requests_of(container), limits_of(container))
    yield "Pod", (pod_requests(pod), pod_limits(pod))


def _breach(item: Object, requests: Requests, limits: Requests) -> str | None:
    for resource, text in (item.get("max") or {}).items():
        most = quantity(text)
        asked = [amounts[resource] for amounts in (requests, limits) if resource in amounts]
        if any(amount > most for amount in asked):
            return f"at most {text} {resource}, and {max(asked):f} are asked for"
        if resource not in limits:
            return f"at most {text} {resource}, and no limit is set; set limits.{resource} in the pool's job manifest"
    for resource, text in (item.get("min") or {}).items():
        least = quantity(text)
        if resource not in requests:
            return f"no less than {text} {resource}, and none is asked for; set it in the pool's job manifest"
        if min(requests[resource], limits.get(resource, requests[resource])) < least:
            return f"no less than {text} {resource}, and {requests[resource]:f} are asked for"
    for resource, text in (item.get("maxLimitRequestRatio") or {}).items():
        asked_for = requests.get(resource, Decimal(0))
        if not asked_for or resource not in limits or limits[resource] / asked_for > quantity(text):
            return f"a limit of at most {text} times its request of {resource}"
    return None


def _items(ranges: Iterable[Object], kind: str) -> Iterator[tuple[str, Object]]:
    for each in ranges:
        for item in (each.get("spec") or {}).get("limits") or ():
            if item.get("type") == kind:
                yield each["metadata"]["name"], item


def _containers(spec: Object) -> Iterator[dict[str, Any]]:
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()
