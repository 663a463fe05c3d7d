"""Weights are what was saved, in memory of one's own; a broken file is named before anything is loaded."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from dsec_blocks.cache import load_weights
from dsec_blocks.cache.errors import WeightsUnreadable
from dsec_blocks.cache.weights import INDEX, check_weights
from dsec_workers.lifecycle.start_split import LOAD_METRIC


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    tensors = {
        "a.weight": random.normal(size=(300, 700)).astype(np.float32),
        "a.bias": random.normal(size=(7,)).astype(np.float16),
        "odd": np.arange(3, dtype=np.uint8),
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 4), dtype=np.int64),
        "b.weight": random.integers(0, 9, (5, 5)),
    }
    names = list(tensors)
    save_file({name: tensors[name] for name in names[:4]}, tmp_path / "model-1.safetensors")
    save_file({name: tensors[name] for name in names[4:]}, tmp_path / "model-2.safetensors")
    return tmp_path, tensors


def test_every_tensor_is_what_was_saved(model: tuple[Path, dict[str, np.ndarray]]) -> None:
    directory, tensors = model
    loaded = load_weights(directory)
    assert loaded.keys() == tensors.keys()
    for name, array in tensors.items():
        assert loaded[name].dtype == array.dtype and loaded[name].shape == array.shape
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].flags.aligned


def test_what_is_loaded_belongs_to_the_caller(model: tuple[Path, dict[str, np.ndarray]]) -> None:
    directory, tensors = model
    loaded = load_weights(directory)
    for path in directory.glob("*.safetensors"):
        path.write_bytes(b"")  # mapped memory would now be a SIGBUS
    np.testing.assert_array_equal(loaded["a.weight"], tensors["a.weight"])
    loaded["a.weight"][0, 0] = 1.0


def test_every_byte_of_every_tensor_is_the_files_own_and_stays_so_while_more_is_loaded(
    model: tuple[Path, dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C32: a loader that hands out its buffers again corrupts weights without a word; so each tensor is hashed."""
    directory, _ = model
    monkeypatch.setattr("dsec_blocks.cache.weights.CHUNK_BYTES", 1000)  # many threads at one file
    first = load_weights(directory, threads=8)
    load_weights(directory, threads=8)
    for path in directory.glob("*.safetensors"):
        raw = path.read_bytes()
        for tensor in check_weights(path):
            assert blake3(first[tensor.name].tobytes()).digest() == blake3(raw[tensor.start : tensor.end]).digest()


def test_how_long_it_took_is_reported_as_the_metric_that_a_start_is_split_by(
    model: tuple[Path, dict[str, np.ndarray]],
) -> None:
    told: dict[str, float] = {}
    load_weights(model[0], report=lambda **metrics: told.update(metrics))
    assert list(told) == [LOAD_METRIC] and told[LOAD_METRIC] > 0


# C23: a truncated file gives an obscure buffer error
@pytest.mark.parametrize("cut", [1, 100, -1, -1000])
def test_a_file_that_is_cut_short_or_too_long_is_named(model: tuple[Path, dict[str, np.ndarray]], cut: int) -> None:
    directory, _ = model
    path = directory / "model-1.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-cut] if cut > 0 else content + bytes(-cut))
    with pytest.raises(WeightsUnreadable, match=r"model-1\.safetensors cannot be loaded: it is (cut short|longer)"):
        load_weights(directory)


@pytest.mark.parametrize(
    "content", [b"", b"1234", b"\xff" * 100, b"\x02" + bytes(7) + b"{}x", b"<html>not found</html>"]
)
def test_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsUnreadable, match=r"x\.safetensors cannot be loaded"):
        check_weights(path)


@given(st.binary(max_size=200))
def test_no_header_is_an_obscure_error(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    try:
        assert check_weights(path) == ()
    except WeightsUnreadable as error:
        assert "fuzz.safetensors" in str(error)


def test_a_shard_that_the_index_names_must_be_there(model: tuple[Path, dict[str, np.ndarray]]) -> None:
    directory, _ = model
    names = {"a.weight": "model-1.safetensors", "b.weight": "model-3.safetensors"}
    (directory / INDEX).write_text(json.dumps({"weight_map": names}))
    with pytest.raises(WeightsUnreadable, match=r"model-3\.safetensors is missing"):
        load_weights(directory)


def test_a_file_that_may_not_be_read_is_named(model: tuple[Path, dict[str, np.ndarray]]) -> None:
    directory, _ = model
    (directory / "model-1.safetensors").unlink()
    os.mkdir(directory / "model-1.safetensors")
    with pytest.raises(WeightsUnreadable, match=r"model-1\.safetensors cannot be loaded: it cannot be read"):
        load_weights([directory / "model-1.safetensors"])


def test_bfloat16_is_loaded_with_its_own_type(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(2, 3)
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + array.tobytes())
    loaded = load_weights(tmp_path)["x"]
    assert loaded.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(loaded, array)
