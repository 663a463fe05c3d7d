"""What vendors call their GPUs on Kubernetes: one table from resource names and node labels to our words.

A node advertises whole cards (`nvidia.com/gpu`), MIG slices (`nvidia.com/mig-1g.10gb`) and time-shared replicas
(`nvidia.com/gpu.shared`) under names of their own; labels from GPU feature discovery say which card it is. Under the
"single" MIG strategy, and where replicas are not renamed, slices and replicas go by the whole card's name: then only
the labels tell.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from dsec_blocks.model.errors import InvalidRequest

MIB = 2**20
_MIG_PRODUCT = re.compile(r"-MIG-(\d+g\.\d+gb(?:\.me)?)")
_QUANTITY = re.compile(r"([+-]?[0-9.]+)([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE])?")
_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(10**3), "M": Decimal(10**6),
    "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18), "Ki": Decimal(2**10),
    "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip


def quantity(text: object) -> Decimal:
    """The number that a Kubernetes quantity such as "500m", "8", "64Gi" or "1e3" stands for.

    Raises `InvalidRequest` for anything else.
    """
    match = _QUANTITY.fullmatch(str(text).strip())
    try:
        if match is None:
            raise InvalidOperation
        number, suffix = Decimal(match[1]), match[2] or ""
    except InvalidOperation:
        raise InvalidRequest(
            f"{text!r} is not a Kubernetes quantity; write for example '500m', '8' or '64Gi'"
        ) from None
    if suffix[1:].lstrip("+-").isdigit():
        return number * Decimal(10) ** int(suffix[1:])
    return number * _SUFFIXES[suffix] if suffix else number


class Share(StrEnum):
    """What one unit of a resource is."""

    WHOLE = "whole"
    SLICE = "slice"
    TIME_SLICE = "time-slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """How one vendor's device plugin names things."""

    name: str
    whole: str
    """Resource name of a whole card."""
    slice_pattern: re.Pattern[str] | None
    """Resource names of slices; group 1 is the profile."""
    shared: str | None
    """Resource name of a time-shared replica."""
    product_labels: tuple[str, ...]
    memory_labels: tuple[tuple[str, int], ...]
    """Labels that hold one card's memory, and the bytes of their unit."""
    domain_labels: tuple[str, ...] = ()
    """Labels that name the domain of the fast interconnect, when it spans nodes."""
    count_label: str | None = None
    """Label that says how many cards the node has, however they are shared."""
    replicas_label: str | None = None
    """Label that says how many replicas each card is shared into."""
    dra_driver: str = ""
    """The driver under whose name ResourceSlices describe its cards."""


VENDORS = (
    Vendor(
        name="nvidia",
        whole="nvidia.com/gpu",
        slice_pattern=re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb(?:\.me)?)"),
        shared="nvidia.com/gpu.shared",
        product_labels=("nvidia.com/gpu.product",),
        memory_labels=(("nvidia.com/gpu.memory", MIB),),
        domain_labels=("nvidia.com/gpu.clique",),
        count_label="nvidia.com/gpu.count",
        replicas_label="nvidia.com/gpu.replicas",
        dra_driver="gpu.nvidia.com",
    ),
    Vendor(
        name="amd",
        whole="amd.com/gpu",
        slice_pattern=None,
        shared=None,
        product_labels=("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
        memory_labels=(("amd.com/gpu.vram", 1), ("beta.amd.com/gpu.vram", 1)),
        dra_driver="gpu.amd.com",
    ),
    Vendor(
        name="intel",
        whole="gpu.intel.com/i915",
        slice_pattern=None,
        shared=None,
        product_labels=("gpu.intel.com/product",),
        memory_labels=(("gpu.intel.com/memory.max", 1),),
        dra_driver="gpu.intel.com",
    ),
    Vendor(
        name="intel-xe",
        whole="gpu.intel.com/xe",
        slice_pattern=None,
        shared=None,
        product_labels=("gpu.intel.com/product",),
        memory_labels=(("gpu.intel.com/memory.max", 1),),
        dra_driver="gpu.intel.com",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResource:
    """One GPU resource name, understood."""

    resource: str
    vendor: Vendor
    share: Share
    profile: str | None = None
    """Of a slice, for example `1g.10gb`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What one unit of a resource on one node is: its part of a card (empty: the whole) and its memory in bytes."""

    profile: str
    memory_bytes: int


def gpu_resource(resource: str) -> GpuResource | None:
    """What a resource name means, or None when it is no GPU."""
    for vendor in VENDORS:
        if resource == vendor.whole:
            return GpuResource(resource=resource, vendor=vendor, share=Share.WHOLE)
        if resource == vendor.shared:
            return GpuResource(resource=resource, vendor=vendor, share=Share.TIME_SLICE)
        match = vendor.slice_pattern.fullmatch(resource) if vendor.slice_pattern else None
        if match:
            return GpuResource(resource=resource, vendor=vendor, share=Share.SLICE, profile=match[1])
    return None


def unit_of(gpu: GpuResource, labels: Mapping[str, str], *, offered: int) -> Unit:
    """What one of the `offered` units of a resource is on a node with these labels.

    A profile is written as requests write it ("1g.10gb+me"), a part of a card's time as a fraction ("1/4").
    """
    card = memory_bytes(labels, gpu.vendor)
    if gpu.share is Share.SLICE:
        said = labels.get(f"{gpu.resource}.memory", "")
        return _slice(gpu.profile or "", _bytes(said, unit=MIB))
    if gpu.share is Share.WHOLE and (cut := _MIG_PRODUCT.search(_said(labels, gpu.vendor.product_labels))):
        return _slice(cut[1], card)  # every card of the node is cut alike, and the labels describe one slice
    replicas = _replicas(gpu, labels, offered)
    return Unit(profile=f"1/{replicas}" if replicas > 1 else "", memory_bytes=card // replicas)


def _slice(profile: str, memory: int) -> Unit:
    size = re.search(r"\.(\d+)gb", profile)
    return Unit(profile=profile.replace(".me", "+me"), memory_bytes=memory or (int(size[1]) * 2**30 if size else 0))


def _replicas(gpu: GpuResource, labels: Mapping[str, str], offered: int) -> int:
    said = labels.get(gpu.vendor.replicas_label or "", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    if gpu.share is Share.WHOLE:
        return 1
    cards = labels.get(gpu.vendor.count_label or "", "")
    return max(2, offered // max(1, int(cards)) if cards.isdigit() else offered)


def _said(labels: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def product(labels: Mapping[str, str], vendor: Vendor) -> str:
    """The card's model as its vendor's labels name it; the vendor's name when they do not."""
    # Time-sharing appends -SHARED and MIG -MIG-1g.10gb: the card is the same.
    return re.sub(r"(-SHARED|-MIG-[0-9a-z.]+)+$", "", _said(labels, vendor.product_labels)) or vendor.name


def memory_bytes(labels: Mapping[str, str], vendor: Vendor) -> int:
    """One card's memory by its vendor's labels; 0 when they do not say, or what they say is no number."""
    for key, unit in vendor.memory_labels:
        if labels.get(key):
            return _bytes(labels[key], unit=unit)
    return 0


def _bytes(text: str, *, unit: int) -> int:
    """What a label says, 0 for no number: one node that was labelled by hand is no reason to plan for none of them."""
    try:
        return max(0, int(quantity(text) * unit))
    except InvalidRequest:
        return 0
