"""Cards that a DRA driver has tainted (KEP-5055), read from the ResourceSlices of their nodes. Pure.

On a node whose cards a device plugin hands out the kubelet may still choose a tainted one, so such a node is closed as
a whole. What runs there runs on: with the effect NoExecute the cluster deletes the pods itself, and a gang whose pod is
deleted leaves by checkpoint.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from dsec_workers.clusters.kubernetes.node_model import CLOSING_EFFECTS, in_words, tolerates
from dsec_workers.clusters.kubernetes.resources import VENDORS

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_DRIVERS = frozenset(vendor.dra_driver for vendor in VENDORS if vendor.dra_driver)


def node_of(resource_slice: Mapping[str, Any]) -> str | None:
    """The node whose cards a slice describes; None when it describes no node's, or no cards."""
    spec = resource_slice["spec"]
    return spec.get("nodeName") or None if spec.get("driver") in _DRIVERS else None


def tainted(resource_slice: Mapping[str, Any], *, tolerations: Iterable[Mapping[str, Any]] = ()) -> str | None:
    """The first card of the slice that has a taint nobody tolerates, in words for a person; None when none has."""
    tolerated = list(tolerations)
    for device in resource_slice["spec"].get("devices") or ():
        for taint in device.get("taints") or ():
            if taint["effect"] in CLOSING_EFFECTS and not any(tolerates(each, taint) for each in tolerated):
                return f"device {device['name']} has the taint {in_words(taint)}"
    return None
