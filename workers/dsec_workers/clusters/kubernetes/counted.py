"""Processors and memory of a gang's pod: what the ledger counts, and what the pod takes beyond that. Pure.

plan() knows of a member what its run's request says. A pool's job manifest may ask for more (for the gang's container,
where the run says nothing: `asked_in` makes that the run's request), and sidecars, limit ranges and runtime classes
add to a pod when it is made: that is as foreign to the ledger as what other people's pods take.
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import GangRequest
from dsec_workers.clusters.kubernetes.occupancy import Requests, pod_requests, requests_of
from dsec_workers.clusters.kubernetes.resources import quantity

ANNOTATION_COUNTED = "dsec.io/counted"
"""What the ledger counts for this pod, by resource."""
CPU, MEMORY = "cpu", "memory"
_KIB = 1024


def asked_of(request: GangRequest) -> dict[str, str]:
    """A member's processors and memory as its container asks for them; empty where the request says nothing."""
    found = {}
    if request.cpus is not None:
        found[CPU] = f"{round(request.cpus * 1000)}m"
    if request.memory_bytes is not None:
        found[MEMORY] = str(request.memory_bytes)
    return found


def annotation(request: GangRequest) -> dict[str, str]:
    """What `beyond` reads again from the pod."""
    return {ANNOTATION_COUNTED: json.dumps(asked_of(request), separators=(",", ":"))}


def beyond(pod: Mapping[str, Any]) -> Requests:
    """What a pod of ours takes of both that the ledger does not count; nothing where it says nothing of that."""
    said = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_COUNTED)
    if said is None:
        return {}
    taken = pod_requests(pod)
    try:
        counted = {name: quantity(dict(json.loads(said)).get(name, 0)) for name in (CPU, MEMORY)}
    except (ValueError, TypeError, InvalidRequest):  # somebody has written into it
        return {}
    found = {name: taken.get(name, Decimal(0)) - counted[name] for name in (CPU, MEMORY)}
    return {name: amount for name, amount in found.items() if amount > 0}


def asked_in(manifest: object) -> dict[str, Any]:
    """The job variables `cpus` and `memory` that a pool's job manifest stands for; what it says nothing of is left out.

    Raises `InvalidRequest` for what is no quantity. What is wrong otherwise is for the launch to say.
    """
    containers = _at(manifest, "spec", "template", "spec", "containers")
    container = containers[0] if isinstance(containers, list) and containers else None
    parts = (_at(container, "resources", name) for name in ("limits", "requests"))
    limits, requests = (part if isinstance(part, Mapping) else {} for part in parts)
    asked = requests_of({"resources": {"limits": limits, "requests": requests}})
    found: dict[str, Any] = {}
    if asked.get(CPU):
        found["cpus"] = float(asked[CPU])
    if asked.get(MEMORY):
        found["memory"] = f"{int(asked[MEMORY]) / _KIB!r}KiB"
    return found


def _at(value: object, *names: str) -> object:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
