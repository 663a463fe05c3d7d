"""A shard holds what was saved, says when it is not whole, and never runs anything."""

import random
from typing import Any

import numpy as np
import pytest

from dsec_blocks.checkpoints.shards import (
    ShardLabel,
    Torn,
    decode,
    encode,
    global_randomness,
    read_label,
    set_global_randomness,
)
from dsec_blocks.model.errors import CheckpointError

LABEL = ShardLabel(run="r", step=7, attempt=2, rank=1, world_size=4, started_at=12.5)


def content(state: Any, position: Any = None) -> bytes:
    return b"".join(bytes(piece) for piece in encode(LABEL, state, position=position, randomness={}))


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 2**80, 0.1, float("inf"), "text", b"bytes", [1, [2]], (1, (2,)), {}, {"$": 1}, {1: "a", (2,): "b"}],
)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert decode(content({"value": value})).state == {"value": value}


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "complex64", "uint8", "<U3", "datetime64[s]"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_arrays_come_back_with_their_type_shape_and_bytes(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype=dtype)
    found = decode(content([array])).state[0]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable


def test_bfloat16_arrays_come_back() -> None:
    import ml_dtypes

    array = np.array([1.5, -2.25], dtype=ml_dtypes.bfloat16)
    found = decode(content(array)).state
    assert found.dtype == array.dtype and (found == array).all()


def test_arrays_that_are_views_are_saved_by_value() -> None:
    array = np.arange(12.0).reshape(3, 4).T[::2]
    assert (decode(content(array)).state == array).all()


def test_a_generator_continues_its_sequence() -> None:
    generator = np.random.default_rng(5)
    generator.random(10)
    found = decode(content(generator)).state
    assert (found.random(5) == generator.random(5)).all()


def test_the_global_random_sequences_continue() -> None:
    states = decode(content(global_randomness())).state
    expected = (random.random(), np.random.random())
    set_global_randomness(states)
    assert (random.random(), np.random.random()) == expected


def test_a_value_that_cannot_be_saved_is_named_by_its_place() -> None:
    with pytest.raises(CheckpointError, match=r"state\['model'\]\[1\]: a object cannot be saved"):
        content({"model": [1, object()]})


def test_the_label_is_read_without_the_arrays(tmp_path: Any) -> None:
    (tmp_path / "shard").write_bytes(content(np.zeros(1000)))
    assert read_label(tmp_path / "shard") == LABEL


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_shard_that_is_not_whole_says_so(damage: str, tmp_path: Any) -> None:
    whole = content({"weights": np.arange(100.0)})
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    damaged = {"cut": whole[:-5], "flip": bytes(flipped), "empty": b"", "other": b"x" * 200}[damage]
    with pytest.raises(Torn):
        decode(damaged)
