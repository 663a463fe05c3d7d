"""Records that are made in bulk are the records that are made one by one."""

import dataclasses
import gc

import pytest

from dsec_blocks.model.bulk import builder, nothing_is_garbage
from dsec_blocks.model.devices import Device
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.requests import GangRequest

DEVICE = Device(uuid="u", node="n", index=3, model="H100", memory_bytes=1)


def test_a_record_made_in_bulk_is_the_record_made_alone() -> None:
    values = dataclasses.astuple(DEVICE)
    made = builder(Device)(*values)
    assert type(made) is Device
    assert made == DEVICE and hash(made) == hash(DEVICE) and repr(made) == repr(DEVICE)
    assert builder(Device)(**{f.name: getattr(DEVICE, f.name) for f in dataclasses.fields(Device)}) == DEVICE
    assert dataclasses.replace(made, index=4) == dataclasses.replace(DEVICE, index=4)


def test_it_cannot_be_changed_either() -> None:
    made = builder(Device)(*dataclasses.astuple(DEVICE))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.index = 4  # type: ignore[misc]


def test_a_field_that_is_missing_is_refused() -> None:
    with pytest.raises(TypeError):
        builder(Device)("u", "n")


def test_a_gang_keeps_all_its_fields() -> None:
    gang = Gang(
        run_id="a", name="a", pool="p", team="t", request=GangRequest(), state=GangState.WAITING, submitted_at=1.0,
        eligible_at=2.0, metrics={"loss": 0.5}, tags=("x",),
    )  # fmt: skip
    assert builder(Gang)(*(getattr(gang, field.name) for field in dataclasses.fields(Gang))) == gang


def test_the_collector_looks_again_once_the_last_has_left() -> None:
    assert gc.isenabled()
    with nothing_is_garbage():
        with nothing_is_garbage():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(RuntimeError), nothing_is_garbage():
        raise RuntimeError
    assert gc.isenabled()


def test_a_collector_that_somebody_switched_off_stays_off() -> None:
    gc.disable()
    try:
        with nothing_is_garbage():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
