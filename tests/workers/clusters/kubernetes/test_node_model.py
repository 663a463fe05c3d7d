"""Kubernetes nodes as `plan()` sees them."""

from decimal import Decimal
from typing import Any

import pytest

from dsec_blocks.model.devices import Health
from dsec_workers.clusters.kubernetes.node_model import node_model, place, why_closed

GPU = "nvidia.com/gpu"


def node(name: str = "n1", *, gpus: int = 4, ready: str = "True", labels: Any = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "H100", **(labels or {})}},
        "spec": spec,
        "status": {"allocatable": {GPU: str(gpus), "cpu": "8"}, "conditions": [{"type": "Ready", "status": ready}]},
    }


def frozen(model: Any) -> list[int]:
    return [device.index for device in model.devices if device.health is Health.FROZEN]


def test_each_whole_card_is_a_place_of_its_own() -> None:
    found = node_model(node(labels={"nvidia.com/gpu.memory": "81559"}), foreign={})
    assert [device.uuid for device in found.devices] == [place("n1", GPU, index) for index in range(4)]
    assert {(device.model, device.memory_bytes, device.nvlink_domain) for device in found.devices} == {
        ("H100", 81559 * 2**20, "n1")
    }


def test_foreign_pods_close_the_highest_places_that_we_do_not_hold() -> None:
    held = [place("n1", GPU, 3), place("n1", GPU, 0)]
    assert frozen(node_model(node(), foreign={GPU: Decimal(1)}, held=held)) == [2]
    assert frozen(node_model(node(), foreign={GPU: Decimal(2)}, held=held)) == [1, 2]


def test_more_foreign_use_than_places_never_closes_what_we_hold() -> None:
    assert frozen(node_model(node(), foreign={GPU: Decimal(9)}, held=[place("n1", GPU, 1)])) == [0, 2, 3]


def test_a_frozen_card_of_the_plugin_is_one_place_less() -> None:
    assert len(node_model(node(gpus=3), foreign={}).devices) == 3


@pytest.mark.parametrize("said", ["80GB", "", "unknown", "-1"])
def test_a_node_whose_labels_say_no_number_has_cards_of_unknown_memory_and_hinders_no_plan(said: str) -> None:
    labels = {"nvidia.com/gpu.memory": said, "nvidia.com/mig-1g.10gb.memory": said}
    odd = node(gpus=1, labels=labels)
    odd["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] = "1"
    whole, piece = node_model(odd, foreign={}).devices
    assert (whole.memory_bytes, piece.memory_bytes) == (0, 10 * 2**30)


def test_a_thousand_parts_of_cards_are_counted_as_the_api_server_writes_them() -> None:
    many = node()
    many["status"]["allocatable"] = {"nvidia.com/gpu.shared": "1k"}
    assert len(node_model(many, foreign={}).devices) == 1000


def test_topology_runs_from_the_widest_level_down_and_leaves_out_what_is_not_labelled() -> None:
    labels = {"topology.kubernetes.io/zone": "z1", "dsec.io/rack": "r7"}
    assert node_model(node(labels=labels), foreign={}).topology == ("z1", "r7")


def test_cards_of_one_clique_are_one_nvlink_domain_across_nodes() -> None:
    label = {"nvidia.com/gpu.clique": "c.1"}
    one, two = (node_model(node(name, labels=label), foreign={}) for name in ("n1", "n2"))
    assert {device.nvlink_domain for device in (*one.devices, *two.devices)} == {"c.1"}


MIB, GIB = 2**20, 2**30
CARD = {"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": "40960"}


@pytest.mark.parametrize(
    ("offered", "labels", "found"),
    [
        pytest.param({GPU: "2"}, CARD, [("A100", "", 40 * GIB)] * 2, id="whole cards"),
        pytest.param(
            {"nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-3g.20gb": "1", GPU: "0"},
            {**CARD, "nvidia.com/mig-3g.20gb.memory": "19968"},
            [("A100", "1g.5gb", 5 * GIB)] * 2 + [("A100", "3g.20gb", 19968 * MIB)],
            id="slices of several sizes, whose memory a label tells or else their name",
        ),
        pytest.param(
            {"nvidia.com/mig-1g.10gb.me": "1"}, CARD, [("A100", "1g.10gb+me", 10 * GIB)], id="with media engines"
        ),
        pytest.param(
            {GPU: "2"},
            {"nvidia.com/gpu.product": "A100-MIG-1g.5gb", "nvidia.com/gpu.memory": "4864"},
            [("A100", "1g.5gb", 4864 * MIB)] * 2,
            id="the single strategy, where slices go by the name of whole cards",
        ),
        pytest.param(
            {"nvidia.com/gpu.shared": "4"},
            {**CARD, "nvidia.com/gpu.replicas": "4"},
            [("A100", "1/4", 10 * GIB)] * 4,
            id="parts of a card's time",
        ),
        pytest.param(
            {GPU: "4"},
            {**CARD, "nvidia.com/gpu.product": "A100-SHARED", "nvidia.com/gpu.replicas": "4"},
            [("A100", "1/4", 10 * GIB)] * 4,
            id="parts of a card's time that were not renamed",
        ),
        pytest.param(
            {"nvidia.com/gpu.shared": "4"}, {"nvidia.com/gpu.count": "2"}, [("nvidia", "1/2", 0)] * 4,
            id="parts whose size follows from the count of cards",
        ),
        pytest.param({"amd.com/gpu": "1"}, {"amd.com/gpu.product-name": "MI300X"}, [("MI300X", "", 0)], id="AMD's"),
    ],
)  # fmt: skip
def test_what_a_node_offers_becomes_cards_slices_and_parts(
    offered: dict[str, str], labels: dict[str, str], found: list[tuple[str, str, int]]
) -> None:
    shared = node()
    shared["status"]["allocatable"], shared["metadata"]["labels"] = offered, labels
    devices = node_model(shared, foreign={}).devices
    assert [(device.model, device.profile, device.memory_bytes) for device in devices] == found
    assert [device.index for device in devices] == list(range(len(devices)))


def test_foreign_pods_close_slices_of_the_kind_that_they_have() -> None:
    sliced = node()
    sliced["status"]["allocatable"] = {"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-3g.40gb": "2"}
    assert frozen(node_model(sliced, foreign={"nvidia.com/mig-1g.10gb": Decimal(2)})) == [0, 1]


TAINTED = "node n1 has the taint dedicated=ml:NoSchedule"
TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
OTHER_EFFECT = {"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("changed", "tolerations", "why"),
    [
        ({}, [], None),
        ({"ready": "False"}, [], "node n1 is not Ready"),
        ({"ready": "Unknown"}, [], "node n1 is not Ready"),
        ({"unschedulable": True}, [], "node n1 is cordoned"),
        ({"taints": [TAINT]}, [], TAINTED),
        ({"taints": [TAINT]}, [{"key": "dedicated", "value": "ml"}], None),
        ({"taints": [TAINT]}, [{"key": "dedicated", "operator": "Exists"}], None),
        ({"taints": [TAINT]}, [{"operator": "Exists"}], None),
        ({"taints": [TAINT]}, [{"key": "dedicated", "value": "web"}], TAINTED),
        ({"taints": [TAINT]}, [OTHER_EFFECT], TAINTED),
        ({"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, [], None),
    ],
)  # fmt: skip
def test_what_closes_a_node(changed: dict[str, Any], tolerations: list[dict[str, Any]], why: str | None) -> None:
    assert why_closed(node(**changed), tolerations=tolerations) == why
    assert node_model(node(**changed), foreign={}, tolerations=tolerations).schedulable is (why is None)


def test_a_node_without_conditions_yet_is_not_ready() -> None:
    young = node()
    del young["status"]["conditions"]
    assert why_closed(young) == "node n1 is not Ready"
