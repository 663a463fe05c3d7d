"""Weights from the cache's directory into memory: safetensors shards, read side by side, checked before they are used.

Nothing is mapped: on a network or FUSE file system a page that cannot be read is a SIGBUS (exit 135) minutes later,
in whatever happened to touch it; read() gives an error that names the file. Every tensor lies in memory that belongs
to the caller, so nothing changes under it.
"""

import importlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dsec_blocks.cache.errors import WeightsUnreadable
from dsec_blocks.cache.origins.objects import safe_path

INDEX = "model.safetensors.index.json"
CHUNK_BYTES = 16 * 2**20
_LARGEST_HEADER = 100 * 2**20
_NUMPY = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
}  # fmt: skip
_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
Framework = Literal["numpy", "torch", "jax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Where one tensor lies: bytes `[start, end)` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def check_weights(path: Path) -> tuple[Tensor, ...]:
    """The tensors of one file, if header and length agree; reads the header only.

    Raises `WeightsUnreadable` naming the file and what is wrong with it.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little") if size >= 8 else 0
            if size < 8 or length > min(size - 8, _LARGEST_HEADER):
                raise _broken(path, f"it is {size} bytes long and its header does not fit into that")
            header = json.loads(file.read(length))
    except OSError as error:
        raise _broken(path, f"it cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise _broken(path, "its header is not JSON, so it is no safetensors file") from error
    try:
        tensors = tuple(_tensor(name, entry, 8 + length) for name, entry in header.items() if name != "__metadata__")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(path, f"its header is damaged ({error!r})") from error
    end = 8 + length
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != end:
            raise _broken(path, f"its header leaves a gap or an overlap before {tensor.name}")
        end = tensor.end
    if end != size:
        what = "cut short" if size < end else "longer than its header says"
        raise _broken(path, f"it is {what}: {size} bytes instead of {end}")
    return tensors


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The shards of a model: those its index names, or every `*.safetensors` if it has none.

    Raises `WeightsUnreadable` when a named shard is missing, or there is none.
    """
    index = directory / INDEX
    if index.exists():
        try:
            named = sorted({safe_path(name) for name in json.loads(index.read_bytes())["weight_map"].values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _broken(index, "it is no index of weights") from error
        missing = [name for name in named if not (directory / name).is_file()]
        if missing:
            raise WeightsUnreadable(
                f"{directory}: {missing[0]} is missing, which {INDEX} names; fetch the bundle again"
            )
        return tuple(directory / name for name in named)
    found = tuple(sorted(directory.rglob("*.safetensors")))
    if not found:
        raise WeightsUnreadable(f"{directory} holds no *.safetensors file")
    return found


def load_weights(
    source: Path | Sequence[Path],
    *,
    framework: Framework = "numpy",
    threads: int | None = None,
    report: Callable[..., None] | None = None,
) -> dict[str, Any]:
    """Every tensor by name, from a directory or some files; all files are checked before the first byte is read.

    Types that numpy does not know (bfloat16, float8) need the package `ml_dtypes`, which JAX brings. `report` is told
    the seconds that it took: with `report=run.report` they are in the run's report and in `dsec explain`.

    Raises `WeightsUnreadable`.
    """
    began = time.monotonic()
    paths = weight_files(source) if isinstance(source, Path) and source.is_dir() else _as_paths(source)
    shards = {path: check_weights(path) for path in paths}
    owners: dict[str, Path] = {}
    for path, tensors in shards.items():
        for tensor in tensors:
            if tensor.name in owners:
                raise WeightsUnreadable(f"{tensor.name} is both in {owners[tensor.name]} and in {path}")
            owners[tensor.name] = path
    buffers = {path: _room(tensors) for path, tensors in shards.items()}
    chunks = [
        (path, offset, min(CHUNK_BYTES, len(buffer) - offset))
        for path, buffer in buffers.items()
        for offset in range(0, len(buffer), CHUNK_BYTES)
    ]
    with ThreadPoolExecutor(threads or max(4, min(16, os.cpu_count() or 1))) as pool:
        for _ in pool.map(lambda chunk: _read(chunk, shards, buffers), chunks):
            pass
    arrays = {
        tensor.name: _array(path, tensor, buffers[path], tensors[0].start if tensors else 0)
        for path, tensors in ((path, sorted(found, key=lambda t: t.start)) for path, found in shards.items())
        for tensor in tensors
    }
    loaded = {name: _as(framework, array) for name, array in arrays.items()}
    if report is not None:
        report(load_seconds=time.monotonic() - began)
    return loaded


def _tensor(name: str, entry: Mapping[str, Any], base: int) -> Tensor:
    start, end = entry["data_offsets"]
    shape = tuple(int(extent) for extent in entry["shape"])
    wanted = math.prod(shape) * _item_bytes(entry["dtype"])
    if min((0, *shape)) < 0 or end - start != wanted:
        raise ValueError(f"{name}: {end - start} bytes for {entry['dtype']} of shape {list(shape)}")
    return Tensor(name=name, dtype=entry["dtype"], shape=shape, start=base + start, end=base + end)


def _item_bytes(dtype: str) -> int:
    if dtype in _NUMPY:
        return np.dtype(_NUMPY[dtype]).itemsize
    if dtype in _ML_DTYPES:
        return 2 if dtype == "BF16" else 1
    raise ValueError(f"unknown type {dtype}")


def _room(tensors: Sequence[Tensor]) -> np.ndarray:
    start, end = min((t.start for t in tensors), default=0), max((t.end for t in tensors), default=0)
    return np.empty(end - start, dtype=np.uint8)


def _read(
    chunk: tuple[Path, int, int], shards: Mapping[Path, Sequence[Tensor]], buffers: Mapping[Path, np.ndarray]
) -> None:
    path, offset, length = chunk
    base = min(tensor.start for tensor in shards[path])
    room = memoryview(buffers[path].data)[offset : offset + length]
    try:
        with path.open("rb", buffering=0) as file:
            done = 0
            while done < length:
                count = os.preadv(file.fileno(), [room[done:]], base + offset + done)
                if not count:
                    raise _broken(path, "it was cut short while it was read")
                done += count
    except OSError as error:
        raise _broken(path, f"it cannot be read: {error.strerror or error}") from error


def _array(path: Path, tensor: Tensor, buffer: np.ndarray, base: int) -> np.ndarray:
    raw = buffer[tensor.start - base : tensor.end - base]
    dtype = _dtype(path, tensor)
    if raw.ctypes.data % dtype.alignment:
        raw = raw.copy()  # a fresh array is aligned
    return raw.view(dtype).reshape(tensor.shape)


def _dtype(path: Path, tensor: Tensor) -> np.dtype:
    if tensor.dtype in _NUMPY:
        return np.dtype(_NUMPY[tensor.dtype])
    try:
        found: np.dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), _ML_DTYPES[tensor.dtype]))
        return found
    except ImportError as error:
        raise WeightsUnreadable(
            f"{path}: {tensor.name} is {tensor.dtype}, which numpy knows only with the package ml_dtypes; install it"
        ) from error


def _as(framework: Framework, array: np.ndarray) -> Any:
    if framework == "numpy":
        return array
    if framework == "jax":
        return importlib.import_module("jax.numpy").asarray(array)
    torch = importlib.import_module("torch")
    if array.dtype.name in _ML_DTYPES.values():
        plain = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(plain).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def _as_paths(source: Path | Sequence[Path]) -> tuple[Path, ...]:
    return (source,) if isinstance(source, Path) else tuple(source)


def _broken(path: Path, what: str) -> WeightsUnreadable:
    return WeightsUnreadable(f"{path} cannot be loaded: {what}; run `dsec cache verify`, or fetch it again")
