"""Vendors' names and Kubernetes quantities, as tables."""

from decimal import Decimal

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.clusters.kubernetes.resources import (
    VENDORS,
    Share,
    gpu_resource,
    memory_bytes,
    product,
    quantity,
)

NVIDIA = VENDORS[0]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", "8"),
        (8, "8"),
        ("500m", "0.5"),
        ("0.1", "0.1"),
        ("64Gi", str(64 * 2**30)),
        ("1e3", "1000"),
        ("12E2", "1200"),
        ("1E", str(10**18)),
        ("1Ei", str(2**60)),
        ("129M", "129000000"),
        ("-1", "-1"),
        ("250u", "0.00025"),
    ],
)
def test_a_quantity_is_read_as_kubernetes_reads_it(text: object, number: str) -> None:
    assert quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "eight", "1.2.3", "5 Gb", "1Gib", None])
def test_what_is_no_quantity_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(InvalidRequest, match="is not a Kubernetes quantity; write for example '500m'"):
        quantity(text)


@pytest.mark.parametrize(
    ("resource", "vendor", "share", "profile"),
    [
        ("nvidia.com/gpu", "nvidia", Share.WHOLE, None),
        ("nvidia.com/gpu.shared", "nvidia", Share.TIME_SLICE, None),
        ("nvidia.com/mig-1g.10gb", "nvidia", Share.SLICE, "1g.10gb"),
        ("nvidia.com/mig-1g.10gb.me", "nvidia", Share.SLICE, "1g.10gb.me"),
        ("amd.com/gpu", "amd", Share.WHOLE, None),
        ("gpu.intel.com/i915", "intel", Share.WHOLE, None),
        ("gpu.intel.com/xe", "intel-xe", Share.WHOLE, None),
    ],
)
def test_the_same_words_stand_for_every_vendors_resource(
    resource: str, vendor: str, share: Share, profile: str | None
) -> None:
    found = gpu_resource(resource)
    assert found is not None
    assert (found.vendor.name, found.share, found.profile) == (vendor, share, profile)


@pytest.mark.parametrize("resource", ["cpu", "memory", "nvidia.com/gpumem", "example.com/gpu", "pods"])
def test_what_is_no_gpu_is_none(resource: str) -> None:
    assert gpu_resource(resource) is None


@pytest.mark.parametrize(
    ("label", "model"),
    [
        ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        ("NVIDIA-A100-SXM4-80GB-SHARED", "NVIDIA-A100-SXM4-80GB"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "NVIDIA-A100-SXM4-80GB"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED", "NVIDIA-A100-SXM4-80GB"),
    ],
)
def test_a_card_is_the_same_model_however_it_is_shared(label: str, model: str) -> None:
    assert product({"nvidia.com/gpu.product": label}, NVIDIA) == model


def test_a_card_without_labels_is_called_by_its_vendor() -> None:
    assert product({}, NVIDIA) == "nvidia"
    assert memory_bytes({}, NVIDIA) == 0
    assert memory_bytes({"nvidia.com/gpu.memory": "81559"}, NVIDIA) == 81559 * 2**20
