"""The GpuPool block and what it declares."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from dsec_blocks.pool import GpuPool, declared_nodes

FAKE = Path(__file__).parents[2] / "fakes" / "nvml"


def test_declared_devices_keep_their_uuids() -> None:
    first, second = (
        declared_nodes(nodes=2, gpus_per_node=2, model="H100", memory_bytes=1),
        declared_nodes(nodes=2, gpus_per_node=2, model="A100", memory_bytes=2),
    )
    uuids = [device.uuid for node in first for device in node.devices]
    assert uuids == ["GPU-declared-0-0", "GPU-declared-0-1", "GPU-declared-1-0", "GPU-declared-1-1"]
    assert uuids == [device.uuid for node in second for device in node.devices]
    assert {device.nvlink_domain for device in first[0].devices} == {"node-0"}


def test_a_pool_on_a_machine_without_gpus_has_what_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("FAKE_NVML", "absent")
    pool = GpuPool(declared=3, gpus_per_node=4, gpu_model="A100", gpu_memory="40GiB")
    nodes = pool.nodes()
    assert [len(node.devices) for node in nodes] == [4, 4, 4]
    assert {(d.model, d.memory_bytes) for node in nodes for d in node.devices} == {("A100", 40 * 2**30)}


def test_real_gpus_win_over_declared_ones_unless_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("FAKE_NVML", "well")
    assert GpuPool().nodes()[0].devices[0].uuid == "GPU-fake-0"
    assert GpuPool(use_nvml=False).nodes()[0].devices[0].uuid == "GPU-declared-0-0"


def test_memory_without_a_unit_is_refused_with_what_to_write() -> None:
    with pytest.raises(ValidationError, match="'80' has no unit; write for example '80GiB'"):
        GpuPool(gpu_memory="80")


def test_every_field_of_the_form_has_a_title_and_a_description() -> None:
    own = set(GpuPool.__annotations__)
    fields = {name: field for name, field in GpuPool.model_fields.items() if name in own}
    assert len(fields) == 5
    for name, field in fields.items():
        assert field.title and field.description and field.description.endswith("."), name
    assert GpuPool.get_description() and GpuPool._logo_url and "GpuPool.load" in (GpuPool.get_code_example() or "")


def test_the_collection_registers_the_blocks() -> None:
    import dsec_blocks.collection as collection

    assert {"GpuPool", "CheckpointStore"} <= set(collection.__all__)
    assert collection.GpuPool.get_block_type_slug() == "dsec-gpu-pool"
