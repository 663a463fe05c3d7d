"""The downward API: a pod's own fields and resources as text; pure."""

import math
import re
from collections.abc import Mapping
from typing import Any

from dsec_workers.clusters.kubernetes.resources import quantity

_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


def field(path: str, pod: Mapping[str, Any], *, pod_ip: str, host_ip: str) -> str:
    """The value of a `fieldRef`.

    Raises `KeyError` for a field that the downward API does not offer.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((metadata.get(keyed[1]) or {}).get(keyed[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        found: Mapping[str, str] = metadata.get(path.removeprefix("metadata.")) or {}
        return "\n".join(f'{key}="{_escaped(value)}"' for key, value in sorted(found.items()))
    plain: dict[str, str] = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
    }
    return plain[path]


def resource(reference: Mapping[str, Any], container: Mapping[str, Any], allocatable: Mapping[str, str]) -> str:
    """The value of a `resourceFieldRef`, rounded up to its divisor; a limit that is not set is the node's."""
    kind, _, name = reference["resource"].partition(".")
    amounts = (container.get("resources") or {}).get(kind) or {}
    if name not in amounts and kind == "limits":
        amounts = allocatable
    divisor = quantity(reference.get("divisor") or "1") or quantity("1")
    return str(math.ceil(quantity(amounts.get(name, "0")) / divisor))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
